"""The state witness: did anything but the optimizer write to the weights, and did the optimizer keep its state?

An in-place write increases a tensor's version. Each sample shows how many writes a step makes, so the writes of the
steps between two samples are known. Any others come from elsewhere: a loaded checkpoint, averaged weights swapped in
for a validation, a clamp. Adam counts its own steps, and a falling count means that its state was reset.
`load_state_dict` is seen directly. Only numbers on the host are read: no kernel, no waiting. Writes through
`tensor.data` leave no trace and are not seen.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.vitals.gauge import Gauge, Tell
from torchdoctor.vitals.hooks import Hook
from torchdoctor.vitals.patient import Setup, optimizer_tensors, tensor_names, unwrap_model
from torchdoctor.vitals.transfer import Slot

Item = TypeVar("Item")
WITNESSES = 3
"""Tensors that must all have been written to: a norm constraint on an embedding writes to that one alone."""
LISTED = 4
"""Maximum number of step ranges in the fact: the last ones."""
MOST_LOADS = 8
"""Maximum number of load steps in the fact: the last ones."""
ENOUGH = 5
"""Samples with a write at each step, or with an empty state, after which counting stops."""
MEMORIES = ("momentum_buffer", "exp_avg", "square_avg")
SLICE = 64
"""Elements of each witness by which weights are recognized."""
YOUNG = 10
"""Minimum steps that a state must cover once it has existed for longer."""


class StateWitness(Gauge):
    """Tells `state.*`, if there is one optimizer: with several, it is unknown how often each has stepped."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        self._optimizers, self._tell = setup.optimizers, tell
        self._alone = len(setup.optimizers) == 1
        self._names = partial(tensor_names, setup.models, setup.optimizers)
        self._before: list[int] = []
        self._after: tuple[int, list[Tensor], list[int], list[int]] | None = None
        """Of the sample before: its step, the tensors, their versions after it, and the writes that it made."""
        self._stretches: list[list[int]] = []
        self._parts: list[list[Any]] = []
        self._always = 0
        self._count: int | None = None
        """Steps that the optimizer has taken by its own count."""
        self._left: tuple[int, int] | None = None
        """The last sample at which a step left something in the optimizer's state, and how many steps that covered."""
        self._forgotten = 0
        self._restarted: int | None = None
        """The step at which the count restarted, if this sample shows it."""
        self._anew: list[int] = []
        self._loaded: list[int] = []
        self._in_parts = False
        """Whether the last of them was into a part of a model."""
        self._first_loaded: Tensor | None = None
        """Some of the weights after the first load."""
        self._same: Tensor | None = None
        """Whether the latest load restored the same weights: a device scalar, for the next sample."""
        self._begun = False
        self._models = [unwrap_model(model) for model in setup.models.values()]
        for inner in self._models:
            for part in (inner, *inner.children()):  # an encoder may be loaded alone
                handle = part.register_load_state_dict_post_hook(Hook(self, "loaded"))  # type: ignore[no-untyped-call]
                weakref.finalize(self, handle.remove).atexit = False

    @property
    def _optimizer(self) -> Optimizer:
        return self._optimizers[0]  # one of the same kind may have taken over

    def loaded(self, part: nn.Module, keys: Any) -> None:
        """Weights were loaded into a model or part of it; the caller must not see our errors."""
        with contextlib.suppress(Exception):
            self._note_load(part)

    def _note_load(self, part: nn.Module) -> None:
        """Find the next step from how often the weights were written to."""
        known, tensors = self._after, self._tensors()
        if not self._alone or known is None or not _are_the_same(tensors, known[1]):
            return
        its_own = set(map(id, part.parameters()))
        rows = _witnesses([row for row in zip(*known[1:], strict=True) if id(row[0]) in its_own])
        if not rows or not min(each for _, _, each in rows) > 0:
            return
        step = known[0] + 1 + min((tensor._version - 1 - last) // each for tensor, last, each in rows)
        told, self._in_parts = self._in_parts and step in self._loaded[-1:], part not in self._models
        if not self._in_parts:
            self._know_again([tensor for tensor, _, _ in rows])
        if told:  # a whole model loaded part by part
            return
        self._loaded = [*self._loaded, step][-MOST_LOADS:]
        self._tell({"state.loaded": self._loaded})

    def _know_again(self, tensors: Sequence[Tensor]) -> None:
        """Compare the loaded weights with those of the first load, for the next sample."""
        now = torch.cat([tensor.detach().reshape(-1)[:SLICE].float() for tensor in tensors])
        if self._first_loaded is None or self._first_loaded.shape != now.shape:
            self._first_loaded = now
        else:
            self._same = (now == self._first_loaded).all()

    def before_step(self, index: int, slot: Slot) -> None:
        """Read versions before the step, and the optimizer's own step count."""
        if not self._alone:
            return
        if self._same is not None:
            slot.keep("state_same", self._same.float())
            self._same = None
        tensors = self._tensors()
        self._before, chosen = [tensor._version for tensor in tensors], _witnesses(tensors)
        if not self._begun:
            self._begun = True
            known = [_remembered(self._optimizer.state.get(tensor)) for tensor in chosen]
            self._tell({"state.at_start": max(known, default=0)})
        count = _count_of(self._optimizer.state.get(chosen[0])) if chosen else None
        self._restarted = None
        if count is not None:
            if self._count is not None and count < self._count:
                self._restarted = slot.number - count
            self._count = count
        self._compare_memory(count, slot.number)

    def after_step(self, index: int, slot: Slot) -> None:
        """Report writes since the last sample, then an optimizer restart, which they may explain."""
        if not self._alone:
            return
        self._compare_versions(slot)
        if self._restarted is not None:
            self._tell({"state.restarted": self._restarted})

    def _compare_versions(self, slot: Slot) -> None:
        """Find writes since the last sample that the steps in between do not explain."""
        tensors, known, before = self._tensors(), self._after, self._before
        if tensors and (left := _remembered(self._optimizer.state.get(tensors[0]))):
            self._left = slot.number, left
        now = [tensor._version for tensor in tensors]
        if len(before) != len(now) or not now:
            self._after = None
            return
        writes = [after - first for after, first in zip(now, before, strict=True)]
        self._after = slot.number, tensors, now, writes
        if known is None or not _are_the_same(tensors, known[1]):
            return
        between = slot.number - known[0] - 1
        extra = [first - last - each * between for first, last, each in zip(before, known[2], writes, strict=True)]
        same, least = _witnesses(writes) == _witnesses(known[3]), min(_witnesses(extra))
        if not same or not min(_witnesses(writes)) > 0:
            return
        if least > between:  # at every step, including the current one
            self._always += 1
            self._tell({"state.written_always": min(self._always, ENOUGH)})
        elif least > 0:
            self._stretches = [*self._stretches, [known[0] + 1, slot.number]][-LISTED:]
            self._tell({**self._beginning(known[0]), "state.written": self._stretches})
        elif writes == known[3]:
            self._note_parts([known[0] + 1, slot.number], tensors, extra)

    def _beginning(self, since: int) -> dict[str, list[int]]:
        """New weights and a new state at the same point are intended, unless a checkpoint was loaded."""
        if self._restarted is None or any(step > since for step in self._loaded):
            return {}
        self._anew = [*self._anew, self._restarted][-MOST_LOADS:]
        return {"state.begun_anew": self._anew}

    def _note_parts(self, stretch: list[int], tensors: list[Tensor], extra: list[int]) -> None:
        """Some tensors were written to, others not, and not at each step: a layer was reinitialized."""
        written = [tensor for tensor, count in zip(tensors, extra, strict=True) if 0 < count < stretch[1] - stretch[0]]
        if not written:
            return
        self._parts = [*self._parts, [*stretch, self._names()[written[0]]]][-LISTED:]
        if len(written) > 1 or len(self._parts) > 1:  # one tensor, once: a flipped bit, or a value set by hand
            self._tell({"state.written_in_part": self._parts})

    def _compare_memory(self, count: int | None, number: int) -> None:
        """Check whether what the last sample left is gone, so that the state covers only a few steps."""
        if self._left is None:
            return
        step, left = self._left
        emptied = count is not None and count < YOUNG and count < max(left, (number - step) // 2)
        if emptied or self._forgotten:
            self._forgotten = min(self._forgotten + 1, ENOUGH) if emptied else 0
            self._tell({"state.forgotten": self._forgotten})

    def _tensors(self) -> list[Tensor]:
        return [item for item in optimizer_tensors(self._optimizer) if item.requires_grad and item.is_leaf]


def _witnesses(rows: list[Item]) -> list[Item]:
    """The first, a middle and the last one: what was written to all tensors was written to these."""
    places = sorted({(len(rows) - 1) * part // (WITNESSES - 1) for part in range(WITNESSES)}) if rows else []
    return [rows[place] for place in places]


def _are_the_same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    return len(tensors) == len(others) and all(map(operator.is_, tensors, others))


def _count_of(state: Any) -> int | None:
    """An optimizer's step count for a tensor: 0 if it has no state; None if the count is not available."""
    if not state:
        return 0
    count = state.get("step")
    if isinstance(count, Tensor):
        return int(count) if count.device.type == "cpu" else None
    return int(count) if isinstance(count, int | float) else None


def _remembered(state: Any) -> int:
    """Minimum number of steps that an optimizer's state of a tensor covers; 0 if it has none or does not show it."""
    if state and any(isinstance(state.get(name), Tensor) for name in MEMORIES):  # counts on the device are not read
        return max(1, _count_of(state) or 1)
    return (_count_of(state) or 0) if state else 0
