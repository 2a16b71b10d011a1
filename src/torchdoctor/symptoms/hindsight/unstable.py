"""Validation that swings from one evaluation to the next, until the end, while training is stable.

>>> chart = Chart.of(loss=[2.0 * 0.9**step for step in range(20)], val_loss=[0.4, 2.4] * 10, context={"source": "CSV"})
>>> print(*unstable(chart))
step 10: VA01 validation-anomaly (warning): validation loss swings between 0.4 and 2.4 until the end; training is stable
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.curve import Curve, shown
from torchdoctor.symptoms.progress import is_game
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

FEW, FEWER = 12, 8
"""Fewest evaluations for a finding; the second if they swing widely and an accuracy is logged as well."""
SWING = 0.4
"""Median change between evaluations in log space for a finding: a factor of 1.5."""
MANY, OFTEN = 60, 0.3
"""Number of evaluations from which a smaller swing suffices, and that swing."""
ALONE = 0.8
"""The same if no accuracy is logged: regression errors swing in healthy runs too."""
CALM = 0.25
"""Largest swing of the training loss, as a share of that of validation."""
SETTLED = 1.1
"""Multiple of the best below which the last three evaluations count as settled."""
WILD, GOOD = 0.6, 0.85
"""Swing from which the accuracy need not swing as well, and the accuracy below which that holds."""
RIGHT = 0.2
"""Least range of the accuracy, if logged, as a share of a perfect one."""


BEYOND = 5.0
"""Multiple of the highest loss of the run, training or validation, that the last evaluation must exceed."""
SOME = 24
"""Fewest evaluations for a finding that does not depend on the training loss."""
BAD, WELL = 0.8, 0.45
"""Shares of its start that validation must repeatedly exceed, and fall below, in its second half."""
TAILS = 15, 85
"""Percentiles that stand for the usual lowest and highest values."""
OVER = 0.25
"""Share of evaluations at which validation must cross its median: for pure noise it is one half."""


def unstable(chart: Chart) -> Iterator[Symptom]:
    """Validation swings widely in its second half too, so the final value is chance."""
    train, curve = Curve.of(chart["loss"], "loss"), Curve.of(chart["val_loss"], "validation loss")
    number = min(train.values.size, curve.values.size)
    if is_game(chart) or "reward" in chart:
        return
    if _gives_all_back(curve.values) and _rates_swing(chart):
        half = curve.values.size // 2
        low, high = (number_text(float(value)) for value in np.percentile(curve.values[half:], TAILS))
        message = f"validation loss swings between {low} and {high} until the end, losing nearly all its progress"
        yield shown(ValidationAnomaly, curve, half, "warning", message, value=float(curve.values[half:].max()))
        return
    if number < FEWER:
        return
    late, level = curve.values[curve.values.size // 2 :], train.values[train.values.size // 2 :]
    if not min(float(late.min()), float(level.min())) > 0:
        return
    swing, rates = _swing(late), chart["val_accuracy"].values[-late.size :]
    sure = chart["val_accuracy"].count >= number
    if number < FEW and (swing < ALONE or not sure):
        return
    least = (SWING if number < MANY else OFTEN) if sure else ALONE
    if swing < least or _swing(level) > CALM * swing or float(late.max()) < 3 * float(late.min()):
        return
    top = 1.0 if not sure or float(rates.max()) <= 1 else 100.0
    wild = swing > WILD and float(late.max()) > 5 * float(late.min())
    if sure and float(np.ptp(rates)) < RIGHT * top and not (wild and median(rates) < GOOD * top):
        return
    if float(curve.values[-3:].max()) < SETTLED * float(curve.values.min()):  # it has settled at its best
        return
    low, high = number_text(float(late.min())), number_text(float(late.max()))
    message = f"validation loss swings between {low} and {high} until the end; training is stable"
    yield shown(ValidationAnomaly, curve, curve.values.size - late.size, "warning", message, value=float(late.max()))


def ends_beyond(chart: Chart) -> Iterator[Symptom]:
    """The last evaluation is far above all earlier losses.

    >>> chart = Chart.of(loss=[78, 36, 23, 14, 8, 4], val_loss=[9.8, 8.9, 6.3, 4.2, 19, 489], context={"source": "CSV"})
    >>> print(*ends_beyond(chart))
    step 5: VA01 validation-anomaly (warning): validation loss ends at 489, far above all earlier losses (78 at most)
    """
    curve, train = Curve.of(chart["val_loss"], "validation loss"), chart["loss"]
    if not curve or not train or is_game(chart):
        return
    now, high = float(chart["val_loss"].latest), max(float(curve.values[:-1].max()), train.outline.highest)
    if now > BEYOND * high > 0:
        message = f"{curve.name} ends at {number_text(now)}, far above all earlier losses ({number_text(high)} at most)"
        yield shown(ValidationAnomaly, curve, curve.values.size - 1, "warning", message, value=now, limit=high)


def _swing(values: Array) -> float:
    return median(np.abs(np.diff(np.log(values))))


def _rates_swing(chart: Chart) -> bool:
    """Whether the validation accuracy swings as well; True if there are too few values."""
    rates = chart["val_accuracy"].values
    late = rates[rates.size // 2 :]
    if late.size < FEW:
        return True
    return float(np.ptp(np.percentile(late, TAILS))) >= RIGHT * (1.0 if float(rates.max()) <= 1 else 100.0)


def _gives_all_back(values: Array) -> bool:
    """Whether validation, late in a run, repeatedly returns nearly to its start, with good values in between.

    >>> fallen = np.concatenate([[9.0, 8.0, 7.0], np.tile([1.5, 7.5, 2.0, 6.9], 8)])
    >>> _gives_all_back(fallen), _gives_all_back(np.minimum(fallen, 3.0)), _gives_all_back(np.sort(fallen))
    (True, False, False)
    """
    if values.size < SOME or not float(values.min()) > 0:
        return False
    begun, late = median(values[: max(3, values.size // 10)]), values[values.size // 2 :]
    low, high = (float(value) for value in np.percentile(late, TAILS))
    crossings = float(np.mean(np.diff(late > median(late))))
    lately = float(late[-max(3, late.size // 5) :].max())
    return min(high, lately) > BAD * begun and low < WELL * begun and crossings > OVER
