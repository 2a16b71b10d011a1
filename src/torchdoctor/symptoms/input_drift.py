"""Changes in the scale or mean of inputs during a run, sudden or gradual, and whether the loss gets worse."""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import TINY, median
from torchdoctor.symptoms.not_learning import chance_level
from torchdoctor.symptoms.progress import SETTLED, Progress, acts

LEAP, DRIFT = 10.0, 2.5
"""Factors by which the scale of inputs must have changed in the middle of the run: suddenly, and gradually."""


def leap_of_scale(chart: Chart, samples: int = 2, before: int = 6, steady: float = 2.0) -> tuple[float, int]:
    """The factor by which inputs are larger or smaller than before, and since which step; 1 if they are not.

    >>> leap_of_scale(Chart.of(entry_rms=[0.5, 0.48, 0.51, 0.5, 0.49, 0.5, 0.002, 0.002]))
    (240.0, 6)
    """
    sizes, steps = chart["entry_rms"].values, chart["entry_rms"].steps
    for border in range(before, sizes.size - samples + 1):
        early, late = sizes[:border], sizes[border:]
        if not float(early.min()) > 0 or not float(early.max()) < steady * float(early.min()):
            break
        if not float(late.min()) > 0:
            continue
        times = max(float(late.min() / early.max()), float(early.min() / late.max()))
        if times > LEAP:
            return round(times, 3), int(steps[border])
    far, since = _drift_of_scale(chart, samples, LEAP)
    if far > 1:
        return far, since
    less, since = _drift_of_scale(chart, 2 * samples, DRIFT)
    return (1.0, 0) if less > 1 and _drifts_as_planned(chart, since) else (less, since)


def _drifts_as_planned(chart: Chart, since: int) -> bool:
    """Whether validation inputs have the new size too, or validation is as good as before: training is just harder.

    Growing noise is a curriculum; noise that is written into the samples accumulates in training only. Near its floor a
    validation loss may soon be many times its best without having lost much.
    """
    return _lost_in_validation(chart, since, worse=0.05) < 1 or _is_fed_alike(chart) is True


def costs_validation(chart: Chart, since: int) -> bool:
    """Whether inputs changed in training only, and validation got worse, whatever the training loss does."""
    return _is_fed_alike(chart) is False and _lost_in_validation(chart, since, worse=0.1) > 1


def spares_validation(chart: Chart, since: int) -> bool:
    """Whether the run validates, and no evaluation since then is clearly worse than the best one before."""
    return bool(chart["val_loss"]) and not _lost_in_validation(chart, since, worse=0.1) > 1


def swinging_scale(chart: Chart, samples: int = 10, times: float = 30.0) -> tuple[float, float, int]:
    """The size of ordinary inputs and of those far larger that come again and again; and how many of the last are.

    >>> swinging_scale(Chart.of(entry_rms=[0.4, 0.4, 380.0, 0.4, 0.4, 370.0, 0.4, 390.0, 0.4, 0.4]))
    (0.4, 380.0, 3)
    """
    sizes = chart["entry_rms"].last(samples)
    large = sizes > times * median(sizes) if sizes.size == samples else np.zeros(0, dtype=bool)
    count = int(large.sum())
    if count < 2 or acts(chart) or bool(large[-count:].all()):  # if no ordinary one came since, inputs have changed
        return math.nan, math.nan, 0
    return median(sizes[~large]), median(sizes[large]), count


def _lost_in_validation(chart: Chart, since: int, worse: float, share: float = 0.05) -> float:
    """How far the latest evaluations are above the best one before a step; above 1 it matters; NaN if unknown."""
    evaluations = chart["val_loss"]
    before, after = evaluations.values[evaluations.steps < since], evaluations.values[evaluations.steps >= since]
    if not before.size or not after.size or not chart["loss"]:
        return math.nan
    best = float(before.min())
    least = max(worse * abs(best), share * Progress.of(chart["loss"]).descent)
    return (float(after[-2:].min()) - best) / (least + TINY)


def _is_fed_alike(chart: Chart, near: float = 1.5) -> bool | None:
    """Whether validation inputs are as large as training inputs are now; None if unknown."""
    idle, now = (
        math.hypot(chart[f"{kind}_mean"].latest, chart[f"{kind}_std"].latest) for kind in ("idle_input", "input")
    )
    return 1 / near < idle / now < near if now > 0 and idle > 0 else None


def _drift_of_scale(
    chart: Chart, samples: int, least: float, before: int = 6, steady: float = 2.0
) -> tuple[float, int]:
    """The same for a gradual change: the factor between the first and the last sizes, and since which step.

    Not in reinforcement learning, because what a policy sees may grow as it gets further.

    >>> leap_of_scale(Chart.of(entry_rms=[0.5] * 8 + [0.5 * 1.6**step for step in range(8)]))
    (16.777, 10)
    >>> leap_of_scale(Chart.of(entry_rms=[0.5] * 8 + [1.0, 1.2, 1.4, 1.6, 1.8, 2.0]))
    (2.8, 8)
    """
    sizes, steps = chart["entry_rms"].values, chart["entry_rms"].steps
    if sizes.size < before + samples or not float(sizes.min()) > 0 or acts(chart):
        return 1.0, 0
    early, late = sizes[:before], sizes[-samples:]
    times = max(float(late.min() / early.max()), float(early.min() / late.max()))
    if not float(early.max()) < steady * float(early.min()) or not times > least:
        return 1.0, 0
    near = (sizes < steady * float(early.max())) & (sizes > float(early.min()) / steady)
    return round(times, 3), int(steps[int(np.flatnonzero(near)[-1]) + 1])


def shift_of_mean(chart: Chart, samples: int = 2, before: int = 6, steady: float = 0.5) -> tuple[float, int]:
    """By how many standard deviations the mean of inputs has moved, and since which step; 0 if it has not.

    Not in reinforcement learning, because a policy changes what it sees, nor for tokens, which have no scale.

    >>> chart = Chart.of(input_mean=[0.1, 0.0] * 4 + [0.8, 2.0, 3.1, 3.9], input_std=[1.0] * 12, entry_rms=[1.0] * 12)
    >>> shift_of_mean(chart)
    (3.05, 8)
    """
    means, steps, deviations = chart["input_mean"].values, chart["input_mean"].steps, chart["input_std"].values
    if means.size < before + samples or deviations.size != means.size or acts(chart) or not chart["entry_rms"]:
        return 0.0, 0
    early, late = means[:before], means[-samples:]
    scale, usual = median(deviations[:before]), median(early)
    if not scale > 0 or not float(np.ptp(early)) < steady * scale:
        return 0.0, 0
    moved = (late - usual) / scale
    shift = max(float(moved.min()), -float(moved.max()), 0.0)
    near = np.abs(means - usual) < steady * scale
    return round(shift, 3), int(steps[min(int(np.flatnonzero(near)[-1]) + 1, steps.size - 1)])


def has_suffered(chart: Chart, since: int, steps: int = 8, doubts: float = 2.0) -> bool:
    """Whether the loss is, or was at a sample, higher than before it by more than its noise, or is near chance level.

    The change may have come at any step since the previous sample, so the level before is taken from there. Models
    adapt to most changes, so a few steps later little of the rise may be left.
    """
    loss, looks = chart["loss"], chart["entry_rms"].steps
    before = looks[looks < since][-1:]
    earlier = loss.values[loss.steps <= (int(before[0]) if before.size else since)][-max(32, steps) :]
    then, later = loss.values[loss.steps <= since][-steps:], loss.last(steps)
    if earlier.size < steps or not loss.step >= since + steps:
        return False
    level, doubt = median(earlier), float(np.std(earlier)) / steps**0.5
    risen = median(later) > level + doubts * doubt or median(then) > level + (doubts + 1) * doubt
    return risen or hardly_learns(chart)


def hardly_learns(chart: Chart) -> bool:
    """Whether the loss is still near chance level or its start, or outputs are nearly independent of the input."""
    loss, chance, spread = chart["loss"], chance_level(chart), chart["output_spread"]
    if loss.count < SETTLED:
        return False
    stuck = median(loss.last(32)) > 0.9 * (chance if chance > 0 else Progress.of(loss).start)
    return stuck or (spread.count >= 4 and float(spread.last(4).max()) < 0.01)
