"""Where two runs separate: the first step at which their difference exceeds the noise for good."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.comparing.design import Ints
from torchdoctor.comparing.summary import Curve, Floats, Summary

BINS = 60
FEWEST = 12
"""Common points that are needed for a comparison."""
BEYOND = 3.0
"""Deviations of the noise at which the difference leaves the band; after that it must stay above `STAYS` of them."""
STAYS = 2.0
EVIDENCE = 8.0
"""Lower bound for the difference in deviations times the square root of its bins: short differences must be larger."""
LAGS = (1, 2, 4)
"""Distances in bins at which the difference's own drift is measured: a smoothed log drifts slowly."""
BEFORE, AFTER = 0.1, 0.05
"""Shares of the run before and after the separation within which findings are listed with it."""
SETTINGS = ("lr", "grad_norm")


@dataclass(frozen=True)
class Parting:
    """How two runs differ over time."""

    first: str
    second: str
    curve: str
    identical_until: int | None
    """The last step up to which the curves are exactly equal; None if they differ from the start."""
    step: int | None
    """The step at which they separate; None if they do not."""
    reason: str
    """"difference", "non-finite" (one of them is never finite again) or "" (they do not separate)."""
    levels: tuple[float, float]
    """The two curves just after that step; at the end if they do not separate."""
    band: float
    """The difference that noise can explain, in the curve's unit; for positive curves, as a log ratio."""
    readings: dict[str, tuple[float, float]]
    """Learning rate and gradient norm of both runs at that step, if both had logged them."""
    findings: tuple[str, ...]
    """Findings that begin in either run around that step."""


def part(first: Summary, second: Summary, curve: str = "loss", spread: float = 0.0) -> Parting | None:
    """Compare two runs step by step; None if they have too few steps in common.

    `spread` is the variation between seeds at the end of a run, in the unit of the band; less than that does not count.

    >>> steps = np.arange(600)
    >>> noise = np.random.default_rng(0).normal(0, 0.02, (2, 600))
    >>> slower = np.exp(noise[1] - 0.002 * np.minimum(steps, 300))
    >>> faster = np.exp(noise[0] - 0.002 * steps)
    >>> found = part(Summary("a", "a", 600, {}, {"loss": Curve(steps, faster)}),
    ...              Summary("b", "b", 600, {}, {"loss": Curve(steps, slower)}))
    >>> 300 <= found.step <= 340
    True
    """
    mine, other = first.curve(curve), second.curve(curve)
    if mine is None or other is None:
        return None
    steps, here, there = _aligned(mine, other)
    if len(steps) < FEWEST:
        return None
    finite = np.isfinite(here) & np.isfinite(there)
    broken = _breaks(here, there)
    end = len(steps) if broken is None else broken
    usable = finite[:end]
    step, band = None, 0.0
    if usable.sum() >= FEWEST:
        step, band = _leaves(steps[:end][usable], here[:end][usable], there[:end][usable], spread)
    reason = "difference" if step is not None else ""
    if step is None and broken is not None:
        step, reason = int(steps[broken]), "non-finite"
    return Parting(
        first=first.run,
        second=second.run,
        curve=curve,
        identical_until=_identical(steps, here, there),
        step=step,
        reason=reason,
        levels=_levels(steps, here, there, step),
        band=band,
        readings=_readings(first, second, int(steps[-1]) if step is None else step),
        findings=() if step is None else _findings(first, second, step, int(steps[-1] - steps[0]) + 1),
    )


def _aligned(mine: Curve, other: Curve) -> tuple[Ints, Floats, Floats]:
    """The two curves at their common steps, or at the steps of the sparser one if few are common."""
    mine, other = _single(mine), _single(other)
    common: Ints
    common, here, there = np.intersect1d(mine.steps, other.steps, assume_unique=True, return_indices=True)
    sparse, dense = sorted((mine, other), key=lambda curve: len(curve.steps))
    if len(common) >= max(FEWEST, len(sparse.steps) // 2):
        return common, mine.values[here], other.values[there]
    inside = sparse.steps[(sparse.steps >= dense.steps[0]) & (sparse.steps <= dense.steps[-1])]
    return inside, np.interp(inside, mine.steps, mine.values), np.interp(inside, other.steps, other.values)


def _single(curve: Curve) -> Curve:
    """Each step once, with its last value."""
    last = np.append(np.diff(curve.steps) > 0, True)
    return Curve(curve.steps[last], curve.values[last])


def _breaks(here: Floats, there: Floats) -> int | None:
    """The first place from which exactly one of them is never finite again."""
    lasts = [int(np.flatnonzero(np.isfinite(values)).max(initial=-1)) for values in (here, there)]
    if lasts[0] == lasts[1]:
        return None
    place = min(lasts) + 1
    return place if place < len(here) else None


def _identical(steps: Ints, here: Floats, there: Floats) -> int | None:
    differ = np.flatnonzero(~((here == there) | (np.isnan(here) & np.isnan(there))))
    if not len(differ):
        return int(steps[-1])
    return int(steps[differ[0] - 1]) if differ[0] > 0 else None


def _leaves(steps: Ints, here: Floats, there: Floats, spread: float) -> tuple[int | None, float]:
    """The step at which the binned difference leaves the band for good, and half the width of the band."""
    if (here > 0).all() and (there > 0).all():
        here, there = np.log(here), np.log(there)
    difference = here - there
    bins = min(BINS, max(FEWEST, len(steps) // 4), len(steps))
    starts = np.linspace(0, len(steps), bins, endpoint=False).astype(int)
    counts = np.diff(np.append(starts, len(steps)))
    means = np.add.reduceat(difference, starts) / counts
    wander = max(_jitter(means, lag) for lag in LAGS if lag == 1 or lag * FEWEST <= bins)
    noise = max(_jitter(difference) / math.sqrt(float(np.median(counts))), wander, spread / BEYOND)
    if noise == 0:  # exactly equal most of the time: then any difference counts
        noise = 1e-12 + 1e-9 * float(np.abs(here).max())
    sign = math.copysign(1.0, float(means[-max(1, bins // 10) :].mean()))
    out = means * sign > STAYS * noise
    inside = np.flatnonzero(~out)
    tail = int(inside[-1]) + 1 if len(inside) else 0
    while tail < bins and means[tail] * sign <= BEYOND * noise:
        tail += 1
    if tail >= bins or float(np.median(means[tail:]) * sign) * math.sqrt(bins - tail) < EVIDENCE * noise:
        return None, BEYOND * noise
    # They do separate; find the onset with a band that the separation itself has not widened.
    close = max(_jitter(means[:tail]), _jitter(difference) / math.sqrt(float(np.median(counts))), spread / BEYOND)
    while tail > 0 and means[tail - 1] * sign > BEYOND * min(close, noise):
        tail -= 1
    return int(steps[starts[tail]]), BEYOND * noise


def _jitter(values: Floats, lag: int = 1) -> float:
    """The robust spread between values that many bins apart; single jumps do not affect it."""
    if len(values) < lag + 2:
        return 0.0
    return float(1.4826 * np.median(np.abs(values[lag:] - values[:-lag])) / math.sqrt(2))


def _levels(steps: Ints, here: Floats, there: Floats, step: int | None) -> tuple[float, float]:
    width = max(1, len(steps) // BINS)
    start = len(steps) - width if step is None else int(np.searchsorted(steps, step))
    window = slice(start, start + width)
    return float(np.mean(here[window])), float(np.mean(there[window]))


def _readings(first: Summary, second: Summary, step: int) -> dict[str, tuple[float, float]]:
    """The values of both runs, where both had logged one by then."""
    return {
        name: (first.value_at(name, step), second.value_at(name, step))
        for name in SETTINGS
        if all((curve := item.curve(name)) is not None and curve.steps[0] <= step for item in (first, second))
    }


def _findings(first: Summary, second: Summary, step: int, length: int) -> tuple[str, ...]:
    low, high = step - max(10, BEFORE * length), step + max(10, AFTER * length)
    return tuple(
        f"{summary.run}: {finding.name} at {summary.clock} {finding.first_step} ({finding.severity})"
        for summary in (first, second)
        for finding in summary.findings
        if low <= finding.first_step <= high
    )
