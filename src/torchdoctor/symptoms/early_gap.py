"""The gap between training and validation before any sample has come twice, so that nothing can be memorized yet."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import Array
from torchdoctor.symptoms.overfitting import levels_at
from torchdoctor.symptoms.progress import Progress, acts
from torchdoctor.symptoms.validation_inputs import is_like_training

LACKS = 0.5
"""Share of training's gain that validation must lack: data from other people or another day lacks less."""
LEARNT = 0.3
"""Share of its first value that the training loss must have fallen by."""
ENOUGH = 6
"""Batches that must have been sampled."""
UNITS = 1.5
"""Multiple of the first training loss above which validation may be in other units."""


class EarlyGap(NamedTuple):
    """An evaluation in the first pass through the data."""

    step: int
    validation: float
    training: float
    share: float
    """Share of training's gain that validation lacked: the lowest of this and the latest two evaluations."""


def early_gap(chart: Chart) -> EarlyGap | None:
    """A gap that is there in the first pass through the data and stays; samples must come without augmentation.

    A sample that comes for the first time is as new to the model as a validation sample, and its loss is as high.

    >>> chart = Chart.of(loss=[max(0.4, 1 - 0.01 * step) for step in range(320)])
    >>> for step in (79, 159, 239, 319):
    ...     chart.put(step, "val_loss", 0.95)
    >>> for step in range(0, 320, 20):
    ...     chart.put(step, "input_again", 0.0 if step < 100 else 0.3)
    >>> for kind in ("input", "idle_input"):
    ...     for step in (0, 80, 160, 240):
    ...         chart.put(step, f"{kind}_mean", 0.0)
    ...         chart.put(step, f"{kind}_std", 1.0)
    >>> found = early_gap(chart)
    >>> found.step, found.validation, round(found.training, 3), round(found.share, 3)
    (79, 0.95, 0.4, 0.917)
    """
    series, train = chart["val_loss"], chart["loss"]
    if series.values.size < 3 or not train or acts(chart) or not series.steps[0] < _first_again(chart):
        return None
    values, levels = series.values, levels_at(train, series.steps)
    if not np.isfinite([*values, *levels]).all():
        return None
    start, noise = Progress.of(train).start, train.baseline(128).noise
    gained = start - levels
    if not gained.min() > max(LEARNT * abs(start), noise) or not levels[0] + noise < values[0] < UNITS * abs(start):
        return None
    shares = (values - levels) / gained
    share = float(min(1.0, shares[0], *shares[-2:]))
    if not share > LACKS or not is_like_training(chart) or _falls_along(values, levels):
        return None
    return EarlyGap(int(series.steps[0]), float(values[0]), float(levels[0]), share)


def _first_again(chart: Chart) -> float:
    """The first sampled step with a sample that had come before; NaN if none comes again unchanged."""
    again = chart["input_again"]
    places = np.flatnonzero(again.values > 0)
    if again.count != again.values.size or again.count < ENOUGH or places.size < 2:
        return math.nan
    return float(again.steps[places[0]])


def _falls_along(values: Array, levels: Array) -> bool:
    """Whether validation falls by as large a share of itself as training: it then has a scale of its own."""
    own, trained = (1 - float(line[-1] / line[0]) for line in (values, levels))
    return own > 0.7 * trained > 0.2
