"""Losses that were far above their best for a part of the run: after one jump, or after many steps up.

>>> values = [100.0 * 0.97**step for step in range(100)] + [60.0 * 0.97**step for step in range(100)]
>>> print(*set_back(Chart.of(loss=values, context={"source": "CSV"})))
step 100: LO01 loss-spike (warning): loss jumped from 5.05 to 58.2 at step 100 and recovered at step 173
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.curve import FEW, Curve, loss_of, shown
from torchdoctor.symptoms.hindsight.departures import MANY, YOUNG
from torchdoctor.symptoms.loss_spike import LossSpike
from torchdoctor.symptoms.overfitting import smoothed
from torchdoctor.symptoms.progress import is_game

SET_BACK = 0.15
"""Share of the run that a jump must last for a warning."""
LOST = 0.3
"""Share of the progress on a log scale that such a setback must have cost."""
SUNK = 1.3
"""Multiple of the best before that losses exceed during a setback that came step by step."""
HEALED = 3
"""High evaluations, and at least 5 % of all, that a jump of both losses must last if the run has improved since."""
COST = 0.05
"""Share of the descent so far that a jump must have cost: less is a ripple of a steep start."""


def spiked(chart: Chart) -> Iterator[Symptom]:
    """Training and validation loss jumped together, above their level after the first descent, and stayed up."""
    train, held_out = Curve.of(chart["loss"], "loss"), Curve.of(chart["val_loss"], "validation loss")
    if min(train.values.size, held_out.values.size) < 20 or is_game(chart) or not chart["loss"].lowest > 0:
        return
    high = _leaps(held_out, 1.5)
    if not high.any() or float(high.mean()) > 0.2:  # frequent jumps are noise
        return
    apart = 0.01 * float(train.steps[-1])
    leapt = train.steps[_leaps(train, 1.7)]
    for place in np.flatnonzero(high):
        step, level = held_out.steps[place], median(held_out.values[place - 5 : place])
        back = held_out.values[place:] < 1.3 * level
        gained = float(held_out.values[place:].min()) < 0.9 * level
        least = max(HEALED, 0.05 * held_out.values.size) if gained else 2  # one high evaluation is not reported
        lasted = back.any() and int(np.argmax(back)) >= least
        value = float(held_out.values[place])
        dear = value - level > COST * (held_out.start - level)
        together = np.any((leapt >= step - apart) & (leapt <= step + apart))
        if value > 1.5 * level and dear and lasted and together:
            until = place + int(np.argmax(back))
            message = (
                f"validation loss jumped from {number_text(level)} to {number_text(value)} at step {int(step)}, "
                f"together with the training loss, and recovered at step {int(held_out.steps[until])}"
            )
            part = Curve(held_out.name, held_out.steps[:until], held_out.values[:until])
            yield shown(LossSpike, part, int(place), "warning", message, value=value, limit=1.5 * level)
            return


def set_back(chart: Chart) -> Iterator[Symptom]:
    """The loss jumped, lost much of its progress, and needed a good part of the run to recover.

    >>> values = [100.0 * 0.97**step for step in range(100)] + [60.0 * 0.97**step for step in range(100)]
    >>> print(*set_back(Chart.of(loss=values, context={"source": "CSV"})))
    step 100: LO01 loss-spike (warning): loss jumped from 5.05 to 58.2 at step 100 and recovered at step 173
    """
    curve = loss_of(chart)
    if curve.values.size < 2 * MANY or is_game(chart) or not float(curve.values.min()) > 0:
        return
    smooth = smoothed(curve.values)
    lowest = np.minimum.accumulate(smooth)
    up = (smooth > 1.3 * lowest) & (np.arange(smooth.size) > 2 * YOUNG * smooth.size)
    borders = np.flatnonzero(np.diff(np.concatenate([[False], up, [False]]).astype(int)))
    for first, end in zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True):
        held, top = float(lowest[first]), float(smooth[first : first + 3].max())
        cost = top - held
        if end - first < SET_BACK * smooth.size or end >= smooth.size or top < 1.6 * held:
            continue
        if cost > 0.35 * (float(smooth[0]) - held) and cost > 6 * curve.noise:
            message = (
                f"{curve.name} jumped from {number_text(held)} to {number_text(top)} at step "
                f"{int(curve.steps[first])} and recovered at step {int(curve.steps[end])}"
            )
            part = Curve(curve.name, curve.steps[:end], curve.values[:end])
            yield shown(LossSpike, part, first, "warning", message, value=top, limit=1.6 * held)
            return


def sank_for_long(chart: Chart) -> Iterator[Symptom]:
    """Training and validation loss rose together, step by step, and spent a good part of the run far above their best.

    >>> losses = [*np.geomspace(1000, 88, 40), *np.geomspace(100, 240, 8), *np.geomspace(220, 106, 9)]
    >>> chart = Chart.of(loss=losses, context={"source": "CSV"})
    >>> for step, value in zip(range(4, 57, 5), [220, 200, 170, 95, 78, 70, 62, 60, 104, 85, 66], strict=True):
    ...     chart.put(step, "val_loss", value)
    >>> print(*sank_for_long(chart))
    step 42: LO01 loss-spike (warning): from step 42 on, loss rose from 93.7 to 240, and validation loss from 60 to 104
    """
    curve, held_out = Curve.of(chart["loss"], "loss"), Curve.of(chart["val_loss"], "validation loss")
    if curve.values.size < MANY or held_out.values.size < FEW or is_game(chart):
        return
    smooth, lowest = smoothed(curve.values), np.minimum.accumulate(smoothed(curve.values))
    top = int(np.argmax(smooth / lowest)) if float(lowest.min()) > 0 else 0
    held, high = float(lowest[top]), float(smooth[top])
    up = (smooth > SUNK * held) & (lowest == held)
    if not high > 2 * held > 0 or float(up.mean()) < SET_BACK:
        return
    if math.log(high / held) < LOST * math.log(smooth[0] / held):
        return
    since, last = int(np.argmax(up)), up.size - 1 - int(np.argmax(up[::-1]))
    if float(up[since : last + 1].mean()) < 0.9 or not median(curve.values[max(0, since - 8) : since]) < SUNK * held:
        return  # the best was a single low value of a noisy loss
    begin, end = curve.steps[since], curve.steps[last]
    inside = (held_out.steps >= begin) & (held_out.steps <= end)
    before = held_out.values[held_out.steps < begin]
    if before.size < 3 or not float(before.min()) > 0:
        return
    level, worse = float(before.min()), held_out.values[inside]
    if int((worse > SUNK * level).sum()) >= 2 and float(worse.max()) > 1.5 * level:
        message = (
            f"from step {int(begin)} on, loss rose from {number_text(held)} to "
            f"{number_text(float(curve.values[up].max()))}, and validation loss from {number_text(level)} to "
            f"{number_text(float(worse.max()))}"
        )
        part = Curve(curve.name, curve.steps[curve.steps <= end], curve.values[curve.steps <= end])
        yield shown(LossSpike, part, since, "warning", message, value=high, limit=2 * held)


def _leaps(curve: Curve, times: float) -> Array:
    """Mask of values that exceed a multiple of the best so far and the early level, right after being near the best."""
    values = curve.values
    lowest = np.minimum.accumulate(values)
    young = float(values[max(1, round(YOUNG * values.size))])
    held = np.array([median(values[max(0, place - 5) : place]) if place else np.inf for place in range(values.size)])
    settled = np.arange(values.size) > YOUNG * values.size + 5
    return np.asarray(settled & (values > times * lowest) & (values > young) & (held < 1.3 * lowest) & (lowest > 0))
