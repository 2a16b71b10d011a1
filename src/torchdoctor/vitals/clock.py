"""Which step does a reading belong to?

Steps are counted from 0; the count is the largest number of steps that any watched optimizer has taken, so that two
optimizers that take turns (a GAN, Muon beside AdamW) are one step, not two. A step that a scaler skipped has its
number too.

A loss may be logged before backward, after backward or after the optimizer's step. A tensor with a graph says it
itself: autograd numbers its nodes, and a node made after the last step can only belong to the next one, unless it is
mere arithmetic on older ones (`4 * loss`). A float has no graph: there the loop's habit decides, learnt where it
cannot be misread.

Its owner may call a step by a number of their own: a resumed run goes on at 10,000. Steps never go back, whatever is
said: journals are read, and detectors look, in their order. So a given number is followed while it is a whole one and
no smaller than the count; one that goes back (the place in an epoch, the epoch itself) is no count of steps, and from
then on the doctor counts alone.

>>> clock = Clock(["adam"])
>>> clock.belongs_to_next("loss", None)      # no step yet: this loop logs before it steps
True
>>> clock.stepped("adam")
0
>>> clock.belongs_to_next("loss", None)
True
>>> clock.call(1, 10_000), clock.label(0), clock.label(2)
(True, 0, 10001)
>>> clock.call(2, 7), clock.label(2), clock.follows
(False, 10001, False)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdoctor.vitals.graph_nodes import is_made_of_older

sequence_number: Callable[[], int | None] = getattr(torch.autograd, "_get_sequence_nr", lambda: None)
"""Autograd's node counter: private, so where it is gone the loop's habit decides."""
LARGEST = 10**11
"""Steps that somebody may call theirs: of more, a journal's reader would think that a line is damaged."""


class Clock:
    """Counts steps and attributes losses to them."""

    def __init__(self, optimizers: Iterable[Hashable]) -> None:
        self._taken: dict[Hashable, int] = dict.fromkeys(optimizers, 0)
        self._count = 0
        self.mark = sequence_number()
        self._logs_before: dict[str, bool] = {}
        self._offsets: deque[tuple[int, int]] = deque([(0, 0)])
        """From which step on its owner counts how much further, for steps whose numbers have not been read yet."""
        self.follows = True
        """Whether its owner's numbers are followed: not once they have gone back."""
        self.is_told = False
        """Whether its owner has numbered steps so far."""
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
                    return bool(number >= self.mark) and not is_made_of_older(node, self.mark)
            except AttributeError:
                pass
        if name not in self._logs_before:
            self._logs_before[name] = self.backward_seen()
        return self._logs_before[name]

    def label(self, number: int) -> int:
        """The step as its owner counts it."""
        offsets = self._offsets
        if len(offsets) == 1 or number >= offsets[-1][0]:
            return number + offsets[-1][1]
        return number + next((offset for first, offset in reversed(offsets) if first <= number), offsets[0][1])

    def forget(self, number: int) -> None:
        """What steps before this one were called is not asked for any more."""
        offsets = self._offsets
        while len(offsets) > 1 and offsets[1][0] <= number:
            offsets.popleft()

    def call(self, number: int, given: Any) -> bool:
        """The owner calls this step `given`: later ones count on from there; False where that cannot be followed."""
        step = _whole(given)
        if step is None or not self.follows:
            return step is not None
        if step < self.label(number):
            self.follows = False
            return False
        self.is_told = True
        last, offset = self._offsets[-1]
        if step - number != offset and number >= last:  # else the step after it has its number already
            if number == last:
                self._offsets.pop()
            self._offsets.append((number, step - number))
        return True


def _whole(given: Any) -> int | None:
    """A step as somebody may give it, None where it is none; a tensor is not looked into, which could mean waiting.

    >>> _whole(3), _whole(3.0), _whole(-5), _whole(1.5), _whole(True), _whole("3")
    (3, 3, None, None, None, None)
    """
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer):
        return None
    return int(given) if 0 <= given < LARGEST and given == int(given) else None
