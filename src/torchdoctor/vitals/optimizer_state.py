"""The optimizer's state at sampled steps: whether its averages still fit the gradients, and whether updates arrive.

It reads slices of the tensors, as the update gauge does, joined into one vector: a few kernels per sample, no waiting.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdoctor.vitals.gauge import Gauge
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.transfer import Slot

SLICE = 512
MOST_TENSORS = 32
"""Number of tensors that are looked at, spread over the model: enough for a share of many elements."""
HALF = (torch.bfloat16, torch.float16)
APART = 5
"""Minimum steps between two samples for measuring how far the weights have moved."""
AWAY, ANCHORED = 60, 240
"""Steps after which weights should have left a place, and after which a new place is taken."""


class OptimizerStateGauge(Gauge):
    """Measures of the first optimizer: `adam_*`, `momentum_cosine`, `update_*`, `course`, `outside_*`."""

    def __init__(self, setup: Setup) -> None:
        self._optimizers = setup.optimizers
        self._before: tuple[Tensor, Tensor] | None = None
        """Weights in half precision before the step, and where their gradient is not zero."""
        self._whole: Tensor | None = None
        """Weights before the step, if there is only one optimizer."""
        self._moved: tuple[int, Tensor, Tensor] | None = None
        """Of the sample before: its step, the weights before it, and how far it moved them."""
        self._way: Tensor | None = None
        """How the weights moved between the two samples before this one."""
        self._after: tuple[int, Tensor] | None = None
        """The last sampled step, and the weights after it."""
        self._anchor: tuple[int, Tensor] | None = None

    def before_step(self, index: int, slot: Slot) -> None:
        """Compare gradients with the averages that the step is about to mix them into."""
        self._before = None
        if index:
            return
        with torch.no_grad():
            held = self._usable(index)
            self._compare_whole(slot, held)
            half = [tensor for tensor, _, _ in held if tensor.dtype in HALF]
            if half:
                gradient = torch.cat([_middle(tensor.grad) for tensor in half if tensor.grad is not None])
                self._before = torch.cat([_middle(tensor) for tensor in half]), gradient != 0
            adam = [item for item in held if "exp_avg_sq" in item[1] and "exp_avg" in item[1]]
            if adam:
                self._read_adam(slot, adam)
            elif held and all(isinstance(state.get("momentum_buffer"), Tensor) for _, state, _ in held):
                gradients = _joined([tensor.grad for tensor, _, _ in held])
                self._keep_cosine(slot, gradients, _joined([state["momentum_buffer"] for _, state, _ in held]))

    def after_step(self, index: int, slot: Slot) -> None:
        """Measure the share of weights with a gradient that did not change: half precision rounds off small updates."""
        if self._whole is not None and not index:
            with torch.no_grad():
                now = _joined([tensor for tensor, _, _ in self._usable(index)])
                if now.shape == self._whole.shape:
                    self._moved = slot.number, self._whole, torch.linalg.vector_norm(now - self._whole)
                    self._after = slot.number, now
            self._whole = None
        if self._before is None or index:
            return
        with torch.no_grad():
            before, pushed = self._before
            after = torch.cat([_middle(tensor) for tensor, _, _ in self._usable(index) if tensor.dtype in HALF])
            if after.shape == before.shape == pushed.shape:
                slot.keep("update_lost", ((after == before) & pushed).sum() / pushed.sum().clamp_min(1))
        self._before = None

    def disarm(self) -> None:
        """Release the copies."""
        self._before = self._whole = None

    def _compare_whole(self, slot: Slot, held: list[tuple[Tensor, dict[str, Any], dict[str, Any]]]) -> None:
        """Measure how far, and in which direction, the weights have moved since the sample before.

        The distance is relative to that sample's step. It is taken after an odd number of steps, so that oscillating
        weights are not back where they were.
        """
        self._whole = _joined([tensor for tensor, _, _ in held]) if held and len(self._optimizers) == 1 else None
        if self._whole is None or self._moved is None:
            return
        number, before, moved = self._moved
        self._look_outside(slot, self._whole)
        self._look_away(slot, self._whole, moved)
        apart = slot.number - number
        if apart < APART or before.shape != self._whole.shape:
            self._way = None
            return
        way = self._whole - before
        if apart % 2:
            come = torch.linalg.vector_norm(way)
            slot.keep("update_kept", torch.where(moved > 0, come / moved.clamp_min(1e-30), 1.0))
        if self._way is not None and self._way.shape == way.shape:
            self._keep_cosine(slot, way, self._way, "course")
        self._way = way

    def _look_outside(self, slot: Slot, now: Tensor) -> None:
        """Measure what was done to the weights since the step before, if that one was also sampled."""
        if self._after is None or self._after[0] != slot.number - 1 or self._after[1].shape != now.shape:
            return
        left = self._after[1]
        change, size = now - left, torch.linalg.vector_norm(left).clamp_min(1e-30)
        slot.keep("outside_scaled", torch.dot(change, left) / size.square())
        self._keep_cosine(slot, change, left, "outside_cosine")

    def _look_away(self, slot: Slot, now: Tensor, moved: Tensor) -> None:
        """Compare the distance from where the weights were long ago with that of a random walk of such steps."""
        if self._anchor is None or self._anchor[1].shape != now.shape:
            self._anchor = slot.number, now
            return
        apart = slot.number - self._anchor[0]
        if apart >= AWAY:
            come = torch.linalg.vector_norm(now - self._anchor[1])
            slot.keep("update_away", torch.where(moved > 0, come / moved.clamp_min(1e-30) / apart**0.5, 1.0))
        if apart >= ANCHORED:
            self._anchor = slot.number, now

    def _usable(self, index: int) -> list[tuple[Tensor, dict[str, Any], dict[str, Any]]]:
        """Evenly spaced tensors on one device with a dense gradient, each with its state and group."""
        optimizer = self._optimizers[index]
        pairs = [(tensor, group) for group in optimizer.param_groups for tensor in group["params"]]
        chosen = pairs[:: max(1, len(pairs) // MOST_TENSORS)]
        device = chosen[0][0].device if chosen else None
        return [
            (tensor, optimizer.state.get(tensor, {}), group)
            for tensor, group in chosen
            if tensor.device == device and _is_plain(tensor.grad) and not hasattr(tensor, "to_local")
        ]

    def _read_adam(self, slot: Slot, held: list[tuple[Tensor, dict[str, Any], dict[str, Any]]]) -> None:
        _, state, group = held[0]
        beta = group["betas"][1] if "betas" in group else 0.999
        taken = state.get("step", slot.number)
        hidden = isinstance(taken, Tensor) and taken.device.type != "cpu"  # on the device: reading it means waiting
        taken = taken if hidden else float(taken)
        if not isinstance(beta, float) or not (hidden or taken):
            return
        passed = (1 - beta**taken).clamp_min(1e-8) if hidden else 1 - beta**taken
        gradients = _joined([tensor.grad for tensor, _, _ in held])
        scale = getattr(self._optimizers[0], "grad_scale", None)
        if isinstance(scale, Tensor):  # a fused step removes the scaler's factor itself
            gradients /= scale
        roots = _joined([state["exp_avg_sq"] for _, state, _ in held]).div_(passed).sqrt_()
        eps = group.get("eps", 1e-8)
        eps = eps if isinstance(eps, float) else 0.0
        if eps:
            moving = roots > 0
            slot.keep("adam_eps_share", ((roots < eps) & moving).sum() / moving.sum().clamp_min(1))
        # Below eps, Adam divides by eps; an element that never had a gradient is not stale.
        ratios = torch.where(roots > 1e-20, gradients / roots.clamp_min(max(eps, 1e-30)), 0.0)
        slot.keep("adam_staleness", ratios.square().mean().sqrt())
        self._keep_cosine(slot, gradients, _joined([state["exp_avg"] for _, state, _ in held]))

    @staticmethod
    def _keep_cosine(slot: Slot, first: Tensor, second: Tensor, vital: str = "momentum_cosine") -> None:
        size = torch.linalg.vector_norm(first) * torch.linalg.vector_norm(second)
        slot.keep(vital, torch.dot(first, second) / size.clamp_min(1e-30))


def _joined(tensors: list[Any]) -> Tensor:
    joined: Tensor = torch.cat([_middle(tensor) for tensor in tensors])
    return joined.float()


def _is_plain(grad: Any) -> bool:
    return type(grad) is Tensor and not grad.is_sparse and grad.is_floating_point()


def _middle(tensor: Any) -> Tensor:
    """Adjacent elements from a tensor's middle; the same places in a weight, its gradient and its state."""
    size = tensor.numel()
    start, length = max(0, (size - SLICE) // 2), min(size, SLICE)
    if type(tensor) is Tensor and tensor.is_contiguous():  # one view instead of three: about a hundred per look
        middle: Tensor = tensor.as_strided((length,), (1,), tensor.storage_offset() + start)
        return middle
    flat: Tensor = tensor.detach().reshape(-1)
    return flat[start : start + length]
