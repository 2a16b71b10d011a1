"""Finds the best learning rate by short trials, and longer ones if these do not decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Trial = Callable[[float, int], float]
"""From a learning rate and a number of steps to the loss at the end; infinite if training diverged."""

CLIFF = 0.1
"""Share of the best gain: a learning rate that loses more of it is not safe."""
ALIKE = 0.03
"""Share of the best gain below which a difference in loss does not count."""
FLAT = 8.0
"""If learning rates this many times apart do equally well, the trials were too short."""
LONGER = 3
"""Factor by which the trials are then longer."""
FARTHEST = 10
"""Most doublings or halvings from the starting learning rate."""


@dataclass(frozen=True)
class Found:
    """The result of the trials."""

    suggestion: float
    maximum: float
    """The highest learning rate that still did well."""
    trials: tuple[tuple[float, float], ...]
    """(learning rate, loss) of the trials that decided, sorted by learning rate."""


def search(trial: Trial, middle: float, steps: int, first: float) -> Found:
    """The best learning rate: from `middle` in factors of four, then of two; `first` is the loss before training.

    The loss after a trial may have several minima: a model may learn linear relations at a low learning rate and the
    rest at a high one. So the search goes up until training diverges or is much worse twice. A learning rate next to
    the highest safe one is halved, because a longer run diverges sooner.

    >>> found = search(lambda lr, steps: math.inf if lr > 0.5 else (math.log10(lr) + 1.5) ** 2, 0.001, 100, 10.0)
    >>> 0.02 < found.suggestion < 0.05
    True
    """
    ends: dict[int, float] = {}

    def end(power: int) -> float:
        if power not in ends:
            ends[power] = trial(middle * 2.0**power, steps)
        return ends[power]

    power = worse = 0
    while worse < 2 and power <= FARTHEST:
        worse = worse + 1 if _is_worse(end(power), ends, first) else 0
        power += 2 if math.isfinite(end(power)) else FARTHEST + 1
    power = -2
    while power >= -FARTHEST and end(power) <= min(ends.values()):
        power -= 2
    best = min(ends, key=ends.__getitem__)
    end(best + 1), end(best - 1)
    alike = [power for power, loss in ends.items() if not _is_worse(loss, ends, first, ALIKE)]
    if 2.0 ** (max(alike) - min(alike)) >= FLAT:
        ends = _longer(trial, middle, LONGER * steps, alike)
    best = min(ends, key=ends.__getitem__)
    above, below = ends.get(best + 1, math.inf), ends.get(best - 1, math.inf)
    highest = max(power for power, loss in ends.items() if not _is_worse(loss, ends, first))
    if _is_worse(above, ends, first) and not _is_worse(below, ends, first):
        best -= 1
    told = tuple(sorted((middle * 2.0**power, loss) for power, loss in ends.items()))
    return Found(middle * 2.0**best, middle * 2.0**highest, told)


def _is_worse(loss: float, ends: dict[int, float], first: float, share: float = CLIFF) -> bool:
    best = min(ends.values())
    return loss > best + share * max(first - best, 0.0)


def _longer(trial: Trial, middle: float, steps: int, alike: Sequence[int]) -> dict[int, float]:
    """Longer trials of the equally good learning rates and their neighbors, from the highest down."""
    ends: dict[int, float] = {}
    for power in range(max(alike) + 1, min(alike) - 1, -1):
        ends[power] = trial(middle * 2.0**power, steps)
        known = [loss for loss in ends.values() if math.isfinite(loss)]
        if len(known) > 2 and ends[power] > min(known) and ends[power + 1] > min(known):
            break
    return ends
