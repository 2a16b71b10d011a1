"""The recall gauge: whether samples were seen before, in training or before a validation, and with the same target.

For some samples of each sampled batch, a code is kept on the device: a sum of integers that does not depend on where
the sample comes. A sample that comes back unchanged was not augmented. One that comes back with another target was
paired differently. A validation sample that training has seen tests nothing. Only shares leave the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.batch_numbers import class_dimension, output_and_target
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.loss_inputs import what_is_compared
from torchdoctor.vitals.passes import PassGauge, is_compiled, plain_tensors, real
from torchdoctor.vitals.transfer import Slot
from torchdoctor.vitals.validation import IdleHook

LEAST_VALUES = 8
"""Minimum values per sample for it not to come again by chance."""
FEWEST = 8
"""Minimum samples per batch."""
ROWS, IDLE_ROWS = 64, 256
"""Samples of a batch that are looked at, in training and without gradients."""
VALUES = 128
"""Values of a sample that are looked at, evenly spaced."""
KEPT = 2048
"""Maximum number of samples remembered."""
APART = 0.5
"""Standard deviations of all targets by which two targets of a sample must differ to count as moved, not just noisy."""
PASSES = 64
"""Maximum consecutive passes without gradients that are looked at: a loop may evaluate its training data first."""


class RecallGauge(PassGauge):
    """Shares of samples that were seen before."""

    def __init__(self, models: Mapping[str, nn.Module], loss_fn: Any, tell: Tell) -> None:
        super().__init__(tell)
        known = list(models.values())
        self._model = known[0] if len(known) == 1 and not is_compiled(known[0]) else None
        self._loss_fn = loss_fn if isinstance(loss_fn, nn.Module) and not is_compiled(loss_fn) else None
        self._memory: Tensor | None = None
        """The codes of samples, and in a second row those of their targets: 0 if none was seen."""
        self._now: Tensor | None = None
        """The codes of this step's samples."""
        self._samples = torch.Size()
        """Their number, as a shape."""
        self._answers: Tensor | None = None
        self._numbers: Tensor | None = None
        """The targets of this step if each is one number, and those remembered with the codes."""
        self._kept: Tensor | None = None
        self._learnt = False
        """Whether backward has run since this step's samples were seen."""
        self._least: Tensor | None = None
        """The smallest share of known samples in any pass without gradients since a sampled step."""
        self._passes = 0

    def arm(self) -> None:
        """Put hooks on the model and the loss; the one for passes without gradients stays."""
        super().arm()
        if self._model is None:
            return
        self.before(self._model, "begins")
        if self._loss_fn is not None:
            self.before(self._loss_fn, "_asked")
        self.at_backward()
        if (0, "_idles") not in self._on:
            hook = IdleHook(self, "_idles")
            self._on[0, "_idles"] = hook, self._model.register_forward_pre_hook(hook, with_kwargs=True)

    def see(self, method: str, args: tuple[Any, ...]) -> None:
        """Passes without gradients are also seen between sampled steps."""
        self._armed, armed = self._armed or method == "_idles", self._armed
        super().see(method, args)
        self._armed = armed

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A batch enters the model."""
        super().begins(module, args, kwargs)
        if self.learns and (self._now is None or not self._learnt):  # a pass without backward was a test
            given = list(plain_tensors((args, kwargs)))
            self._now, self._samples = codes(given, ROWS), given[0].shape[:1] if given else torch.Size()
            self._answers = self._numbers = None

    def _asked(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        output, target = output_and_target(args, kwargs)
        if self._now is None or self._answers is not None or target is None or not self.learns:
            return
        if target.shape[:1] == self._samples and _has_answers(module, output, target):
            self._answers = codes([target], ROWS, 1)
            if target.is_floating_point() and target.numel() == target.shape[0]:
                self._numbers = target.detach().flatten()[:ROWS].float()

    def _backward(self, loss: Tensor) -> None:
        self._learnt = True
        compared = None if self._answers is not None else what_is_compared(loss)
        if compared is not None and not compared.between_outputs:
            self._asked(compared.module, (compared.output, compared.target), {})

    def _idles(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        self._passes += 1
        if self._memory is None or self._passes > PASSES:
            return
        found = codes(list(plain_tensors((args, kwargs))), IDLE_ROWS)
        if found is not None and found.device == self._memory.device:
            told = found != 0
            known, _ = _looked_up(self._memory[0], found)  # `isin` would wait for the device
            share = (known & told).sum() / told.sum().clamp_min(1)
            self._least = share if self._least is None else torch.minimum(share, self._least)

    def before_step(self, index: int, slot: Slot) -> None:
        """Compare with what is remembered, hand over, and remember."""
        if self._least is not None and self._passes <= PASSES:
            self._scalars["idle_known"] = self._least
        self._least, self._passes = None, 0
        if self._now is not None:
            answers = torch.zeros_like(self._now) if self._answers is None else self._answers
            fresh, numbers = torch.stack([self._now, answers]), self._numbers
            if self._memory is None or self._memory.device != fresh.device:
                self._memory, self._kept = fresh, numbers
            else:
                self._compare(self._memory, self._now, answers)
                self._memory = torch.cat([fresh, self._memory], 1)[:, :KEPT]
                told = self._kept is not None and numbers is not None
                self._kept = torch.cat([numbers, self._kept])[:KEPT] if told else None  # type: ignore[list-item]
        super().before_step(index, slot)
        self.forget()

    def _compare(self, memory: Tensor, now: Tensor, answers: Tensor) -> None:
        known, places = _looked_up(memory[0], now)
        again = known & (now != 0)
        self._scalars["input_again"] = again.float().mean()
        before = memory[1][places]
        told = again & (answers != 0) & (before != 0)
        self._scalars["answer_changed"] = (told & (before != answers)).sum() / told.sum().clamp_min(1)
        if self._numbers is not None and self._kept is not None and self._kept.shape == memory[1].shape:
            apart = (self._kept[places] - self._numbers).abs() > APART * self._kept.std(correction=0)
            self._scalars["answer_moved"] = (told & apart).sum() / told.sum().clamp_min(1)

    def forget(self) -> None:
        """Drop what was measured in this step."""
        super().forget()
        self._now = self._answers = self._numbers = None
        self._learnt = False

    def disarm(self) -> None:
        """Take the hooks off, except the one for passes without gradients."""
        staying = self._on.pop((0, "_idles"), None)
        super().disarm()
        if staying is not None:
            self._on[0, "_idles"] = staying


def _looked_up(memory: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Which numbers are among those remembered, and the position of each; any position if not found."""
    ordered, places = memory.sort(stable=True)  # of equal ones, the latest stays first
    found = torch.searchsorted(ordered, wanted).clamp_max(ordered.numel() - 1)
    return ordered[found] == wanted, places[found]


def codes(tensors: list[Tensor], most: int, least: int = LEAST_VALUES) -> Tensor | None:
    """An integer for each of the first samples of a batch; 0 for a sample whose values are all equal.

    >>> batch = torch.arange(320.0).view(20, 16)
    >>> bool((codes([batch], 64)[5:] == codes([batch[5:]], 64)).all())
    True
    """
    rows = [tensor for tensor in tensors if tensor.dim() and tensor.shape[0] == tensors[0].shape[0]]
    if not rows or rows[0].shape[0] < FEWEST:
        return None
    total, values, alike = None, 0, None
    for tensor in rows:
        part = tensor.detach()[:most].flatten(1) if tensor.dim() > 1 else tensor.detach()[:most, None]
        part = real(part[:, :: max(1, part.shape[1] // VALUES)]).flatten(1)
        whole = part.float().contiguous().view(torch.int32).long()
        code = (whole * _weights(whole.shape[1], whole.device)).sum(1)
        same = (whole == whole[:, :1]).all(1)
        total = code if total is None else total * 31 + code
        alike = same if alike is None else alike & same
        values += part.shape[1]
    if total is None or alike is None or values < least:
        return None
    return torch.where(alike, 0, total) if least > 1 else total | 1 << 62


def _weights(count: int, device: torch.device) -> Tensor:
    """Integers without a pattern: rows of zeros and ones must not have the same sum."""
    mixed = torch.arange(1, count + 1, device=device)
    for factor in (0x9E3779B97F4A7C15 - (1 << 64), 0x3F58476D1CE4E5B9):
        mixed = mixed * factor
        mixed = mixed ^ (mixed >> 29)
    return mixed | 1


def _has_answers(module: nn.Module, output: Tensor | None, target: Tensor) -> bool:
    """Whether there is one target per sample: not its position in the batch, nor a label for each of its parts."""
    if output is None or not target.numel():
        return False
    dimension = class_dimension(module, output, target)
    return not dimension or abs(output.shape[0] - output.shape[dimension]) > 1
