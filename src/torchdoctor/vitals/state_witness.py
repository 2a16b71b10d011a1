"""The state witness: did anybody but the optimizer write to the weights, and did the optimizer keep its memory?

An in-place write adds to a tensor's version. How many writes a step makes is seen at each sample, so what the steps
between two samples account for is known, and what is left over is somebody else's: a checkpoint that was loaded, an
average that was put in for a validation, a clamp. Adam counts its own steps, and a count that falls was started anew.
A `load_state_dict` says so itself, at once. Numbers of the host only: no kernel, no wait. Writes through
`tensor.data` leave no trace, and are not seen.
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

from torchdoctor.vitals.gauge import Gauge, Tell
from torchdoctor.vitals.hooks import Hook
from torchdoctor.vitals.patient import Setup, optimizer_tensors, tensor_names, unwrap_model
from torchdoctor.vitals.transfer import Slot

Item = TypeVar("Item")
WITNESSES = 3
"""Tensors that must all have been written to: a norm that is kept on an embedding writes to that one alone."""
LISTED = 4
"""Stretches of steps that the fact holds: the last ones."""
MOST_LOADS = 8
"""Steps before which a state was loaded that the fact holds: the last ones."""
ENOUGH = 5
"""Samples with a write at each step, or with an empty memory, after which no more are counted."""
MEMORIES = ("momentum_buffer", "exp_avg", "square_avg")
SLICE = 64
"""Elements of each witness by which a state is known again."""
YOUNG = 10
"""Steps that a memory must reach back at least, once it has been there for longer."""


class StateWitness(Gauge):
    """Tells `state.*`, where there is one optimizer: of several it is not known how often each has stepped."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        self._optimizer, self._tell = setup.optimizers[0], tell
        self._alone = len(setup.optimizers) == 1
        self._names = partial(tensor_names, setup.models, setup.optimizers)
        self._before: list[int] = []
        self._after: tuple[int, list[Tensor], list[int], list[int]] | None = None
        """Of the sample before: its step, the tensors, their versions after it, and the writes that it made."""
        self._stretches: list[list[int]] = []
        self._parts: list[list[Any]] = []
        self._always = 0
        self._count: int | None = None
        """Steps that the optimizer says it has taken."""
        self._left: tuple[int, int] | None = None
        """The last sample at which a step left something in the optimizer's memory, and of how many steps."""
        self._forgotten = 0
        self._restarted: int | None = None
        """The step at which the count was found to have begun anew, at this sample."""
        self._anew: list[int] = []
        self._loaded: list[int] = []
        self._in_parts = False
        """Whether the last of them was into a part of a model."""
        self._first_loaded: Tensor | None = None
        """A part of the weights after the first load."""
        self._same: Tensor | None = None
        """Whether the latest load has brought that state again: a number of the device, for the sample that comes."""
        self._begun = False
        self._models = [unwrap_model(model) for model in setup.models.values()]
        for inner in self._models:
            for part in (inner, *inner.children()):  # an encoder may be loaded alone
                handle = part.register_load_state_dict_post_hook(Hook(self, "loaded"))  # type: ignore[no-untyped-call]
                weakref.finalize(self, handle.remove).atexit = False

    def loaded(self, part: nn.Module, keys: Any) -> None:
        """Weights were loaded into a model or a part of it; whoever loads them must not learn of our mistakes."""
        with contextlib.suppress(Exception):
            self._note_load(part)

    def _note_load(self, part: nn.Module) -> None:
        """Which step comes next is told by how often the weights were written to."""
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
        if told:  # a whole is loaded part by part
            return
        self._loaded = [*self._loaded, step][-MOST_LOADS:]
        self._tell({"state.loaded": self._loaded})

    def _know_again(self, tensors: Sequence[Tensor]) -> None:
        """Compare what was loaded with what was loaded first; the sample that comes takes the answer along."""
        now = torch.cat([tensor.detach().reshape(-1)[:SLICE].float() for tensor in tensors])
        if self._first_loaded is None or self._first_loaded.shape != now.shape:
            self._first_loaded = now
        else:
            self._same = (now == self._first_loaded).all()

    def before_step(self, index: int, slot: Slot) -> None:
        """Versions before the step, and the optimizer's own count of steps."""
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
        """What was written since the last sample; then whether the optimizer began anew, which that may explain."""
        if not self._alone:
            return
        self._compare_versions(slot)
        if self._restarted is not None:
            self._tell({"state.restarted": self._restarted})

    def _compare_versions(self, slot: Slot) -> None:
        """What was written since the last sample, less what the steps in between account for."""
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
        if least > between:  # at every step, the one that is coming included
            self._always += 1
            self._tell({"state.written_always": min(self._always, ENOUGH)})
        elif least > 0:
            self._stretches = [*self._stretches, [known[0] + 1, slot.number]][-LISTED:]
            self._tell({**self._beginning(known[0]), "state.written": self._stretches})
        elif writes == known[3]:
            self._note_parts([known[0] + 1, slot.number], tensors, extra)

    def _beginning(self, since: int) -> dict[str, list[int]]:
        """Weights and memory that are both new at the same place: nobody does that by mistake; a load may be one."""
        if self._restarted is None or any(step > since for step in self._loaded):
            return {}
        self._anew = [*self._anew, self._restarted][-MOST_LOADS:]
        return {"state.begun_anew": self._anew}

    def _note_parts(self, stretch: list[int], tensors: list[Tensor], extra: list[int]) -> None:
        """Some tensors were written to and others were not, and not at each step: a layer was initialized anew."""
        written = [tensor for tensor, count in zip(tensors, extra, strict=True) if 0 < count < stretch[1] - stretch[0]]
        if not written:
            return
        self._parts = [*self._parts, [*stretch, self._names()[written[0]]]][-LISTED:]
        if len(written) > 1 or len(self._parts) > 1:  # one tensor, once: a bit that flipped, or a value set by hand
            self._tell({"state.written_in_part": self._parts})

    def _compare_memory(self, count: int | None, number: int) -> None:
        """Whether what the last sample left is gone, so that the memory reaches back a few steps only."""
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
    """The first, one in the middle and the last: what was written to all tensors was written to these."""
    places = sorted({(len(rows) - 1) * part // (WITNESSES - 1) for part in range(WITNESSES)}) if rows else []
    return [rows[place] for place in places]


def _are_the_same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    return len(tensors) == len(others) and all(map(operator.is_, tensors, others))


def _count_of(state: Any) -> int | None:
    """An optimizer's count of steps for a tensor: 0 where it has no state; None where that is not to be had."""
    if not state:
        return 0
    count = state.get("step")
    if isinstance(count, Tensor):
        return int(count) if count.device.type == "cpu" else None
    return int(count) if isinstance(count, int | float) else None


def _remembered(state: Any) -> int:
    """Of how many steps, at least, an optimizer's memory of a tensor is; 0 where it has none or does not say."""
    if state and any(isinstance(state.get(name), Tensor) for name in MEMORIES):  # a count on the device is not read
        return max(1, _count_of(state) or 1)
    return (_count_of(state) or 0) if state else 0
