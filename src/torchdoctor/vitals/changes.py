"""Changes that the loop makes in mid-run on purpose, seen at the very step: a leap of the loss there is expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchdoctor.vitals.clock import Clock
from torchdoctor.vitals.layout import Layout
from torchdoctor.vitals.slot import Slot

LISTED = 16
"""Maximum number of changes in the fact: the last ones."""
STEADY = 16
"""Steps for which the number of gradients must have stayed the same: branches and turns of players change it often."""
HABIT = 8
"""Changes of one kind after which further ones count as a habit of the loop."""
MOST_DATA = 256
"""Data sets after which they are no longer told apart."""
NORMS = ("grad_norm", "applied_norm")


class LoopChanges:
    """Tells `loop.changes`: the last steps at which the loop changed something, and what."""

    def __init__(self, clock: Clock, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._clock, self.tell = clock, tell
        self._changes: list[list[Any]] = []
        self._counts: dict[str, int] = {}
        self._data: set[int] = set()
        """The data sets that training batches came from, by id."""
        self._learning: dict[int, tuple[int, int]] = {}
        """By optimizer: how many of its tensors get gradients, and since when."""

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self._clock.count

    @property
    def mark(self) -> int | None:
        """Autograd's node counter after the last step."""
        return self._clock.mark

    @property
    def step(self) -> int:
        """The upcoming step, as the user counts."""
        return self._clock.label(self._clock.count)

    def add(self, kind: str, text: str) -> None:
        """The loop has changed something before the upcoming step."""
        if not self._clock.count:
            return
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        if count <= HABIT:
            self._changes = [*self._changes, [self.step, text]][-LISTED:]
            self.tell({"loop.changes": self._changes})

    def regrouped(self, before: Layout, after: Layout) -> None:
        """The tensors of the optimizers have changed."""
        held = [before.owners.keys(), after.owners.keys()]
        more, fewer = len(held[1] - held[0]), len(held[0] - held[1])
        if more:
            self.add("groups", f"{_tensors(more)} {'took the place of others' if fewer else 'joined'} in the optimizer")
        self._learning.clear()

    def gradients(self, index: int, slot: Slot) -> None:
        """An optimizer is about to step: how many of its tensors have a gradient?"""
        now = sum(len(part.indices) for part in slot.parts if part.vital in NORMS and not part.modules)
        before, since = self._learning.get(index, (now, slot.number))
        if now == before:
            self._learning[index] = before, since
            return
        self._learning[index] = now, slot.number
        if slot.number - since >= STEADY and now > before:  # fewer may be a mistake, and raise no loss
            self.add("gradients", f"{_tensors(now - before)} began to get gradients")

    def loss_named(self, name: str) -> None:
        """A loss of this name was logged for the first time, after others: the first one only shows the logging."""
        self.add("losses", f"{name:.40} was logged for the first time")

    def is_new(self, loader: Any) -> bool:
        """Whether training has begun to read a data set that it has not read before; the first one does not count."""
        if not torch.is_grad_enabled():
            return False  # a validation
        known = len(self._data)
        if known < MOST_DATA:
            self._data.add(id(getattr(loader, "dataset", loader)))
        return 0 < known < len(self._data)

    def data_changed(self) -> None:
        """Batches come from another data set."""
        self.add("data", "batches began to come from another data set")


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' if count > 1 else ''}"
