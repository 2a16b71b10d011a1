"""Which step does a reading belong to?

Steps are counted from 0; the count is the largest number of steps that any watched optimizer has taken, so that two
optimizers that take turns (a GAN, Muon beside AdamW) are one step, not two. A step that a scaler skipped has its
number too.

A loss may be logged before backward, after backward or after the optimizer's step. A tensor with a graph says it
itself: autograd numbers its nodes, and a node made after the last step can only belong to the next one. A float has no
graph: there the loop's habit decides, learnt where it cannot be misread.

>>> clock = Clock(["adam"])
>>> clock.belongs_to_next("loss", None)      # no step yet: this loop logs before it steps
True
>>> clock.stepped("adam")
0
>>> clock.belongs_to_next("loss", None)
True
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import torch
from torch import Tensor

sequence_number: Callable[[], int | None] = getattr(torch.autograd, "_get_sequence_nr", lambda: None)
"""Autograd's node counter: private, so where it is gone the loop's habit decides."""


class Clock:
    """Counts steps and attributes losses to them."""

    def __init__(self, optimizers: Iterable[Hashable]) -> None:
        self._taken: dict[Hashable, int] = dict.fromkeys(optimizers, 0)
        self._count = 0
        self.mark = sequence_number()
        self._logs_before: dict[str, bool] = {}
        self._offset = 0
        self.backward_seen: Callable[[], bool] = lambda: False
        """Tells whether gradients have arrived since the last step."""

    @property
    def count(self) -> int:
        """Steps taken so far."""
        return self._count

    def number_of_next(self, optimizer: Hashable) -> int:
        """The number that this optimizer's next step will have."""
        return max(self._count, self._taken[optimizer] + 1) - 1

    def stepped(self, optimizer: Hashable) -> int:
        """An optimizer has stepped, or its step was skipped; returns the step's number."""
        self._taken[optimizer] += 1
        self._count = max(self._count, self._taken[optimizer])
        self.mark = sequence_number()
        return self._count - 1

    def passed(self, optimizer: Hashable, steps: int) -> None:
        """An only optimizer has taken some steps."""
        self._taken[optimizer] += steps
        self._count += steps

    def belongs_to_next(self, name: str, loss: Tensor | None) -> bool:
        """Whether a loss that is logged now belongs to the step that comes, rather than to the one just taken."""
        if self._count == 0:
            self._logs_before.setdefault(name, True)
            return True
        node = None if loss is None else loss.grad_fn
        if node is not None and self.mark is not None:
            try:
                # A checkpointed or custom node can lack a number (it reads as a huge one); habit decides then.
                number = node._sequence_nr()
                if number < 2**63:
                    return bool(number >= self.mark)
            except AttributeError:
                pass
        if name not in self._logs_before:
            self._logs_before[name] = self.backward_seen()
        return self._logs_before[name]

    def label(self, number: int) -> int:
        """The step as its owner counts it."""
        return number + self._offset

    def relabel(self, number: int, step: int) -> None:
        """The owner calls this step `step`: later ones count on from there."""
        self._offset = step - number
