"""Whether a run has lost what it had learned, judged by training and validation together.

A harder stage, a warm restart or stronger noise raise only the training loss, or only for a while; memorization raises
only the validation loss. If both are far above their earlier levels and stay there, the run has lost what it learned.
"""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import Series, median, scatter
from torchdoctor.symptoms.progress import Progress, acts, is_game, trend_gain

LEAST = 4
"""Evaluations needed before anything is reported."""
LOST = 0.25
"""Share of their descent since the untrained model that training and validation must both have lost."""
MORE = 0.15
"""Share of its best by which the validation loss must be above it."""
RECENT = 32
"""Losses that the current level is taken from."""


def set_back(chart: Chart) -> int | None:
    """The step since which the training loss has been far above its level at the best evaluation; otherwise None.

    The last two evaluations must be far above the best as well.

    >>> levels = [*np.linspace(4, 1, 120), *np.full(80, 3.0)]
    >>> noisy = [level + 0.1 * (-1) ** step for step, level in enumerate(levels)]
    >>> gone, kept = Chart.of(loss=noisy), Chart.of(loss=noisy)
    >>> for step, evaluations in {24: (3.3, 3.3), 49: (2.6, 2.6), 99: (1.1, 1.1), 149: (2.9, 1.0), 199: (3, 1)}.items():
    ...     for chart, value in zip((gone, kept), evaluations):
    ...         chart.put(step, "val_loss", value)
    >>> set_back(gone), set_back(kept)
    (120, None)
    """
    losses, evaluations = chart["loss"], chart["val_loss"]
    values = evaluations.values
    if values.size < LEAST or losses.count < 2 * RECENT or acts(chart) or is_game(chart):
        return None
    earlier, last = values[:-2], values[-2:]
    best = int(np.argmin(earlier))
    lowest = float(earlier[best])
    lost = float(last.min()) - lowest
    wander = scatter(np.diff(earlier)) if earlier.size > 3 else 0.0
    gained = max(float(earlier[0]), _untrained(losses, lowest, int(evaluations.steps[best]))) - lowest
    if not math.inf > lost > max(MORE * abs(lowest), LOST * gained, 4 * wander):
        return None
    if last[1] < 0.98 * last[0] or chart.fact("data.differentiated"):
        return None
    return _left_since(losses, int(evaluations.steps[best]))


def _untrained(losses: Series, lowest: float, step: int) -> float:
    """What the validation loss would have been before the first step, by the ratio of the training losses.

    The first evaluation comes too late to show it: most is learned by then.
    """
    start, level = Progress.of(losses).start, _level_at(losses, step)
    return start * lowest / level if level > 0 and lowest > 0 else start


def _level_at(losses: Series, step: int) -> float:
    """The level of a loss around a step; NaN if unknown."""
    at, _, levels, _ = losses.outline.columns()
    place = int(np.searchsorted(at, step))
    then = levels[max(0, place - 2) : place + 2]
    return median(then) if then.size else math.nan


def _left_since(losses: Series, step: int) -> int | None:
    """The step since which a loss has been far above its level at a given step without coming down; otherwise None."""
    recent, progress = losses.last(RECENT), Progress.of(losses)
    noise, (gain, _) = scatter(recent), trend_gain(recent)
    at, _, levels, _ = losses.outline.columns()
    level = _level_at(losses, step)
    risen = median(recent) - level
    if not progress.is_learning(noise):
        return None
    if not risen > max(LOST * progress.descent, 2 * noise) or not gain < 0.05 * progress.descent:
        return None
    high = level + 0.5 * risen
    low = np.flatnonzero(levels <= high)
    above = losses.steps[(losses.steps >= at[low[-1]]) & (losses.values > high)]  # a level covers several steps
    return int(above[0])
