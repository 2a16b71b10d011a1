"""What a loop hands over: numbers, or tensors that hold one, under a name; whatever else comes is said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Given:
    """Turns what was given into what can be recorded.

    >>> said = []
    >>> given = Given(lambda key, text: said.append(text))
    >>> given.scalar(torch.tensor([2.0]), "loss")[0], given.scalar("high", "loss")[0], given.name(5)
    (2.0, None, '5')
    >>> said[0]
    'loss was given as str, expected a number or a tensor: left out.'
    """

    longest_name = 200
    """Letters that a loss may be called by: of many more, a journal's reader would think that a line is damaged."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note

    def name(self, name: object) -> str:
        """The text that stands for a name which is none, or too long for one."""
        text = str(name)[: self.longest_name]
        self._note(f"name {text}", f"log_loss(name={name!r:.40}): a name is a short text, so {text!r:.40} is recorded.")
        return text

    def scalar(self, value: Any, name: str) -> tuple[Any, Any]:
        """A number, or a detached scalar on a device, and the tensor whose graph tells its step."""
        if type(value) is float:
            return value, None
        if not isinstance(value, Tensor):
            try:
                return float(value), None
            except (TypeError, ValueError, OverflowError):
                return self._left_out(
                    "type", name, f"was given as {type(value).__name__}, expected a number or a tensor"
                )
        scalar = value.detach()
        if scalar.is_meta:
            return self._left_out("meta", name, "is a tensor on the meta device, which holds no number")
        if scalar.is_complex() or scalar.layout is not torch.strided:
            kind = "complex numbers" if scalar.is_complex() else str(scalar.layout).removeprefix("torch.")
            return self._left_out("type", name, f"is a tensor of {kind}, expected one real number")
        if scalar.dim():
            if not scalar.numel():
                return self._left_out("shape", name, "was given as an empty tensor, expected one number")
            if scalar.numel() > 1:
                shape = tuple(value.shape)
                self._note(f"shape {name}", f"{name} has shape {shape}, expected one number: its mean is recorded.")
                scalar = scalar.float().mean()
            scalar = scalar.reshape(())
        return (float(scalar.item()) if scalar.device.type == "cpu" else scalar), value

    def _left_out(self, key: str, name: str, why: str) -> tuple[None, None]:
        self._note(f"{key} {name}", f"{name} {why}: left out.")
        return None, None
