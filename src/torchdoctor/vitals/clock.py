"""Assigns each reading to a step.

Steps are counted from 0. The count is the largest number of steps that any watched optimizer has taken, so two
optimizers that take turns (a GAN, Muon with AdamW) make one step, not two. A step that a scaler skipped also has a
number.

A loss may be logged before backward, after backward or after the optimizer's step. A tensor with a graph shows which
step it belongs to: autograd numbers its nodes, and a node made after the last step can only belong to the next one,
unless it is mere arithmetic on older nodes (`4 * loss`). A float has no graph, so the loop's habit decides, which is
learned where it is unambiguous.

The user may number steps differently: a resumed run continues at 10,000. Step numbers must never go back, because
journals are read and detectors run in their order. A given number is therefore followed if it is an integer and not
below the count. If one goes back (such as a position in an epoch, or the epoch), it is not a step count, and from then
on the doctor counts by itself.

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
"""Autograd's node counter. It is private: if it is missing, the loop's habit decides."""
LARGEST = 10**11
"""A user's step numbers must be below this: a journal reader takes a larger one for a damaged line."""


class Clock:
    """Counts steps and assigns losses to them."""

    def __init__(self, optimizers: Iterable[Hashable]) -> None:
        self._taken: dict[Hashable, int] = dict.fromkeys(optimizers, 0)
        self._count = 0
        self.mark = sequence_number()
        self._logs_before: dict[str, bool] = {}
        self._offsets: deque[tuple[int, int]] = deque([(0, 0)])
        """From which step on the user's numbers are how much larger, for steps that have not been read yet."""
        self.follows = True
        """Whether the user's numbers are followed: not after they have gone back."""
        self.is_told = False
        """Whether the user has numbered steps so far."""
        self.backward_seen: Callable[[], bool] = lambda: False
        """Returns whether gradients have arrived since the last step."""

    @property
    def count(self) -> int:
        """Steps taken so far."""
        return self._count

    def number_of_next(self, optimizer: Hashable) -> int:
        """The number that this optimizer's next step will have."""
        return max(self._count, self._taken[optimizer] + 1) - 1

    def follow(self, optimizers: Iterable[Hashable]) -> None:
        """Count on with these optimizers: the next step of each is a new one."""
        self._taken = dict.fromkeys(optimizers, self._count)

    def stepped(self, optimizer: Hashable) -> int:
        """An optimizer has stepped, or its step was skipped; returns the step's number."""
        self._taken[optimizer] += 1
        self._count = max(self._count, self._taken[optimizer])
        self.mark = sequence_number()
        return self._count - 1

    def passed(self, optimizer: Hashable, steps: int) -> None:
        """The only optimizer has taken some steps."""
        self._taken[optimizer] += steps
        self._count += steps

    def belongs_to_next(self, name: str, loss: Tensor | None) -> bool:
        """Whether a loss that is logged now belongs to the next step rather than to the one just taken."""
        if self._count == 0:
            self._logs_before.setdefault(name, True)
            return True
        node = None if loss is None else loss.grad_fn
        if node is not None and self.mark is not None:
            try:
                # A checkpointed or custom node may have no number (it reads as a huge one); then the habit decides.
                number = node._sequence_nr()
                if number < 2**63:
                    return bool(number >= self.mark) and not is_made_of_older(node, self.mark)
            except AttributeError:
                pass
        if name not in self._logs_before:
            self._logs_before[name] = self.backward_seen()
        return self._logs_before[name]

    def label(self, number: int) -> int:
        """The step's number as the user counts."""
        offsets = self._offsets
        if len(offsets) == 1 or number >= offsets[-1][0]:
            return number + offsets[-1][1]
        return number + next((offset for first, offset in reversed(offsets) if first <= number), offsets[0][1])

    def forget(self, number: int) -> None:
        """Drop the labels of steps before this one: they are not needed anymore."""
        offsets = self._offsets
        while len(offsets) > 1 and offsets[1][0] <= number:
            offsets.popleft()

    def call(self, number: int, given: Any) -> bool:
        """The user calls this step `given`, and later ones count on from there; False if that cannot be followed."""
        step = _whole(given)
        if step is None or not self.follows:
            return step is not None
        if step < self.label(number):
            self.follows = False
            return False
        self.is_told = True
        last, offset = self._offsets[-1]
        if step - number != offset and number >= last:  # else the next step has its number already
            if number == last:
                self._offsets.pop()
            self._offsets.append((number, step - number))
        return True


def _whole(given: Any) -> int | None:
    """A user's step number; None if it is not valid. Tensors are not read, because that could mean waiting.

    >>> _whole(3), _whole(3.0), _whole(-5), _whole(1.5), _whole(True), _whole("3")
    (3, 3, None, None, None, None)
    """
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer):
        return None
    return int(given) if 0 <= given < LARGEST and given == int(given) else None
