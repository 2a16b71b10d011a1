"""Runs that end worse than they began: slowly, in training and validation alike.

>>> loss = [0.040, 0.040, 0.041, 0.040, 0.042, 0.047, 0.049, 0.052, 0.046, 0.045, 0.046]
>>> chart = Chart.of(loss=loss, val_loss=loss, context={"source": "CSV", "clock": "epoch"})
>>> print(*worsened(chart))
step 0: LO02 loss-divergence (warning): loss rose from 0.04 to 0.046 and validation loss from 0.04 to 0.046
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.hindsight.curve import Curve, climbs, improved, shown
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.progress import is_game

FEW, PARTS = 8, 12
"""Epochs and evaluations that are enough to say so; and parts in which noisy batches are looked at."""
ABOVE = 0.1
"""Share of its start by which each of the two ends above it."""
FINE, SETTLED = 24, 4
"""Parts in which a departure is looked for; and those after which it is known how they are wont to be."""
SURELY = 0.95
"""Share of pairs in which what comes late is above what was early, where a level was left."""
CLIMBING = 0.3
"""How surely each of the two rises, over the whole run."""


def worsened(chart: Chart) -> Iterator[Symptom]:
    """The mean of many batches and validation have both climbed, and end above their starts; no metric got better.

    They may have done so late and at once: then what comes last is above what was for two thirds of the run.
    """
    train = Curve.of(chart["loss"], "loss")
    if chart.context.get("clock") != "epoch":
        train = _in_parts(train)
    curves = (train, Curve.of(chart["val_loss"], ""))
    if is_game(chart) or any(curve.values.size < FEW or not float(curve.values.min()) > 0 for curve in curves):
        return
    if any(curve.level < (1 + ABOVE) * curve.start for curve in curves):
        return
    if not all(climbs(curve.values) >= CLIMBING for curve in curves) and not all(map(_left, curves)):
        return
    if improved(chart, int(curves[1].steps[0])):
        return
    message = f"loss rose {_way(train)} and validation loss {_way(curves[1])}"
    yield shown(LossDivergence, train, train.best, "warning", message, value=train.level, limit=train.start)


def _left(curve: Curve) -> bool:
    """Whether a value of the last eighth is above one of the first two thirds, of nearly all pairs (Mann and Whitney).

    >>> held, high = np.tile([0.040, 0.041, 0.039], 8), np.array([0.047, 0.046, 0.049, 0.047, 0.046, 0.047])
    >>> [_left(Curve("loss", np.arange(30), np.concatenate([held, late]))) for late in (high, held[:6])]
    [True, False]
    """
    early, late = curve.values[: 2 * curve.values.size // 3], curve.values[-max(2, curve.values.size // 8) :]
    return float(np.mean(late[:, None] > early[None, :])) > SURELY


def ends_high(curve: Curve) -> bool:
    """Whether noisy batches, looked at in parts, end at twice what they began with, or leapt and are not quite back.

    >>> wave = np.tile([0.5, 1.5, 1.0, 1.2], 60)
    >>> [ends_high(Curve("loss", np.arange(240), wave * level)) for level in (1, np.repeat([5, 6, 20, 5, 15, 16], 40))]
    [False, True]
    """
    if curve.values.size < FINE * FEW or not float(curve.values.min()) > 0:
        return False
    parts = np.array([median(part) for part in np.array_split(curve.values, FINE)])
    begun, held = median(parts[:3]), float(np.percentile(parts, 25))
    if float(parts[-3:].min()) > 1.5 * begun and float(parts[-2:].min()) > 2 * max(held, begun):
        return True
    high = parts > 1.8 * np.concatenate([[np.inf] * SETTLED, np.maximum.accumulate(parts)[SETTLED - 1 : -1]])
    leapt = np.flatnonzero(high)
    if not leapt.size or float(parts[-2:].min()) < 1.3 * float(parts.min()):
        return False
    before = float(parts[: leapt[0]].max())  # for a good while, and never quite back
    return bool((parts[leapt[0] : leapt[0] + 3] > 1.5 * before).all()) and leapt[0] + 3 <= FINE


def _in_parts(curve: Curve) -> Curve:
    """Means of a twelfth of all batches each; nothing where they are too few for that."""
    parts = np.array_split(np.arange(curve.values.size), PARTS)
    if parts[-1].size < FEW:
        return Curve(curve.name, curve.steps[:0], curve.values[:0])
    first = [int(part[0]) for part in parts]
    return Curve(curve.name, curve.steps[first], np.array([float(np.mean(curve.values[part])) for part in parts]))


def _way(curve: Curve) -> str:
    return f"from {number_text(float(curve.values[curve.best]))} to {number_text(curve.level)}"
