"""Runs with the same settings as one configuration: their scores, the best one, and which others are tied with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchdoctor.comparing.design import Design
from torchdoctor.comparing.learning_rate import median
from torchdoctor.comparing.outcome import Outcome
from torchdoctor.comparing.shift import margin
from torchdoctor.comparing.summary import Floats


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their seed."""

    settings: dict[str, str]
    """The settings that differ between configurations, in words."""
    runs: tuple[int, ...]
    diverged: int
    median: float
    low: float
    high: float
    """Median and range of the scores of runs that did not diverge."""
    cost: float
    """The median cost, infinite if most runs diverged; configurations are ranked by it."""
    tied: bool | None = None
    """Whether seeds alone could explain its difference from the best one; None if not known."""


def configurations(
    design: Design, outcomes: Sequence[Outcome], costs: Floats, settings: Sequence[Mapping[str, str]], spread: float
) -> list[Configuration]:
    """The configurations, best first; `settings` are each run's, as text, `spread` is the variation between seeds."""
    found = []
    for group in range(design.configurations):
        own = np.flatnonzero(design.groups == group).tolist()
        scores = np.array([outcomes[run].score for run in own if math.isfinite(costs[run])])
        cost = median(costs[own])
        found.append(
            Configuration(
                settings=dict(settings[own[0]]),
                runs=tuple(own),
                diverged=int(np.isposinf(costs[own]).sum()),
                median=float(np.median(scores)) if len(scores) else math.nan,
                low=float(scores.min()) if len(scores) else math.nan,
                high=float(scores.max()) if len(scores) else math.nan,
                cost=math.inf if math.isnan(cost) else cost,
            )
        )
    found.sort(key=lambda item: (item.cost, item.runs))
    if math.isnan(spread) or not found:
        return found
    spare = sum(len(item.runs) - item.diverged - 1 for item in found if len(item.runs) - item.diverged > 1)
    return [replace(item, tied=_tied(item, found[0], spread, spare, len(found) - 1)) for item in found]


def _tied(item: Configuration, best: Configuration, spread: float, spare: int, others: int) -> bool:
    """Whether seeds alone could explain the difference of two medians, corrected for the number of comparisons."""
    if item is best:
        return True
    if not math.isfinite(item.cost):
        return False
    return item.cost - best.cost <= margin(spread, spare, len(best.runs), len(item.runs), others)
