"""Which run converged faster: steps and time to a common level, and the mean height of the curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.comparing.outcome import Metric, Outcome
from torchdoctor.comparing.summary import Curve, Summary, thinned

BUCKETS = 200
"""Buckets for smoothing a curve before its level is read."""
FEWEST = 8
"""Points that a validation curve needs to measure speed; with fewer, the training loss is used."""
SHORT = 0.02
"""A level counts as reached when at most this share of the descent is left."""


@dataclass(frozen=True)
class Speed:
    """How fast one run was."""

    steps: int | None
    """Steps until the common level is reached; None if never."""
    seconds: float
    """The same in seconds; NaN if time was not recorded."""
    area: float
    """The mean of the curve over the steps that all runs have; lower is faster."""


@dataclass(frozen=True)
class Race:
    """How fast all runs were."""

    curve: str
    level: float
    shared: bool
    """Whether every run that did not diverge reaches the level; if not, half of them do."""
    speeds: tuple[Speed, ...]


def race(summaries: Sequence[Summary], outcomes: Sequence[Outcome], metric: Metric | None) -> Race | None:
    """Compare speeds by the first curve that falls: the metric's, else the loss; None if no two runs share one."""
    found = (_raced(name, summaries, outcomes) for name in _curve_names(summaries, metric))
    return next((item for item in found if item is not None), None)


def _raced(name: str, summaries: Sequence[Summary], outcomes: Sequence[Outcome]) -> Race | None:
    smooth = [_smoothed(summary.curve(name)) for summary in summaries]
    well = [
        place for place, curve in enumerate(smooth) if curve is not None and not outcomes[place].diverged
    ]  # diverged runs have no level
    if len(well) < 2:
        return None
    ends = {place: _ends(smooth[place]) for place in well}
    shared = len(well) == 2
    finals = sorted(ends[place][1] for place in well)
    final = finals[-1] if shared else finals[len(finals) // 2]
    start = float(np.median([ends[place][0] for place in well]))
    if not final < start:
        return None
    level = final + SHORT * (start - final)
    span = _span([curve for place in well if (curve := smooth[place]) is not None])
    speeds = tuple(_speed(summary, curve, level, span) for summary, curve in zip(summaries, smooth, strict=True))
    return Race(name, level, shared, speeds)


def _curve_names(summaries: Sequence[Summary], metric: Metric | None) -> Iterator[str]:
    """The metric's curve if it is dense enough in every run and lower is better, then the loss."""
    if metric is not None and metric.lower:
        lengths = [len(curve.steps) for item in summaries if (curve := item.curve(metric.name)) is not None]
        if lengths and min(lengths) >= FEWEST:
            yield metric.name
    yield "loss"


def _smoothed(curve: Curve | None) -> Curve | None:
    if curve is None:
        return None
    finite = np.isfinite(curve.values)
    if finite.sum() < 2:
        return None
    return thinned(Curve(curve.steps[finite], curve.values[finite]), BUCKETS)


def _ends(curve: Curve | None) -> tuple[float, float]:
    """The first level, and the median of the last tenth."""
    if curve is None:
        return math.nan, math.nan
    last = max(1, len(curve.values) // 10)
    return float(curve.values[0]), float(np.median(curve.values[-last:]))


def _span(curves: Sequence[Curve]) -> tuple[int, int]:
    return max(int(curve.steps[0]) for curve in curves), min(int(curve.steps[-1]) for curve in curves)


def _speed(summary: Summary, curve: Curve | None, level: float, span: tuple[int, int]) -> Speed:
    if curve is None:
        return Speed(None, math.nan, math.nan)
    under = np.flatnonzero(curve.values <= level)
    step = int(curve.steps[under[0]]) if len(under) else None
    area = math.nan
    if span[1] > span[0] and curve.steps[-1] >= span[1]:
        inside = np.linspace(*span, BUCKETS)
        area = float(np.interp(inside, curve.steps, curve.values).mean())
    return Speed(step, math.nan if step is None else elapsed(summary, step), area)


def elapsed(summary: Summary, step: int) -> float:
    """Seconds from the start of a run to a step, from the durations of steps; NaN if not known.

    >>> steps = np.arange(10)
    >>> elapsed(Summary("a", "a", 10, {}, {"seconds": Curve(steps, np.full(10, 0.5))}), 4)
    2.5
    """
    curve = summary.curve("seconds")
    if curve is None:
        return math.nan
    finite = np.isfinite(curve.values) & (curve.values >= 0)
    steps, values = curve.steps[finite], curve.values[finite]
    if len(steps) < 2 or steps[-1] < step:
        return math.nan
    upto = steps <= step
    gaps = np.diff(steps, prepend=steps[0] - 1)
    gaps[0] = max(1, steps[0] + 1 if steps[0] < gaps[1:].max(initial=1) * 2 else 1)
    return float((values[upto] * gaps[upto]).sum())
