"""Runs that stand still: a loss that never moved, one that hardly did, one answer to everything.

>>> chart = Chart.of(loss=[0.693 + 0.001 * (step % 3) for step in range(40)], context={"source": "CSV"})
>>> print(*stuck(chart))
step 0: LO04 not-learning (warning): loss has stayed at 0.694 for 39 steps, from the start on
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.hindsight.curve import (
    Curve,
    certainty,
    climbs,
    has_no_trend,
    improved,
    is_mostly_one_part,
    loss_of,
    part_that_fell,
    shown,
)
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import smoothed
from torchdoctor.symptoms.progress import is_game, working_since
from torchdoctor.symptoms.slow_learning import SlowLearning

FLAT = 0.02
"""Share of itself within which a loss has gained nothing."""
NOISY = 0.15
"""The same for the noise of means over an epoch, where many of them show that there is no trend."""
BEGUN = 0.2
"""Share of the last step at which a log begins at most, if it is to tell of a run's start."""
SLOW = 0.08
"""Share of its first value that a loss gains at least in twenty epochs."""
ORDINARY = 0.75
"""Accuracy on the training data above which little may be left to gain."""
GROWN = 0.5
"""Share of itself by which an accuracy may have grown at most: one in six that became one in four is learning."""
STILL = 0.01
"""The same as `FLAT` for validation where nothing else is known to stand still but noisy batches."""
TEN = 10
"""Epochs that are enough to see that there is no trend, where validation has none either."""
PARTS = 4
"""Records of training for each evaluation, from which on their median says more than each."""
EVALUATIONS, MANY = 6, 30
"""Evaluations that are enough to say so; and from which on two per cent are as little as one."""
OFTEN, NEAR = 15, 0.1
"""Evaluations that are enough where none is better than the first; and the share of it that they may be above it."""
GAINED, CALM = 0.03, 0.03
"""Shares of itself that a loss has gained in all, and by which it swings, at most, if it has come to nothing."""
LEARNT = 0.8
"""Share of what it was that another loss beside it has become, where a part of the task is learnt."""
FALLEN = 0.1
"""Share of its very first value that it has lost at most."""
CHANCE = 2.5
"""Deviations of mere chance by which it has fallen then, at most."""
DOUBTS, MOST = 1.5, 0.05
"""Deviations of mere chance by which the mean of its second half may be lower, and shares of itself at most."""
TREND = 0.35
"""How surely values rise or fall from which on they have a trend."""
RIGHT = 0.85
"""Accuracy above which there may be nothing left to learn."""
SAME = 0.9
"""Share of evaluations with one and the same accuracy, from which on the model says the same to everything."""


def stuck(chart: Chart) -> Iterator[Symptom]:
    """The loss is from its start to its end within two per cent, with so little noise that a gain would show."""
    curve = loss_of(chart)
    least = 10 if chart.context.get("clock") == "epoch" or _is_hardly_ever_right(chart) else 20
    if curve.values.size < least or is_game(chart) or working_since(chart) is None:
        return
    if curve.steps[0] > BEGUN * curve.steps[-1]:  # the log begins in the midst of a run, which may have converged
        return
    level, start = median(curve.values[-curve.values.size // 4 :]), median(curve.values[:3])
    spread = float(np.ptp(smoothed(curve.values)))
    wide = NOISY if _is_level(chart, curve) else 2 * FLAT
    gained = 0.03 if _is_hardly_ever_right(chart) else FLAT  # such losses have few digits
    if start - level > gained * abs(start) or spread > wide * abs(start) or improved(chart, int(curve.steps[0])):
        return
    if curve.name == "loss" and _part_learns(chart):
        return
    steps = int(curve.steps[-1] - curve.steps[0])
    unit = "epochs" if chart.context.get("clock") == "epoch" else "steps"
    message = f"{curve.name} has stayed at {number_text(level)} for {steps} {unit}, from the start on"
    yield shown(NotLearning, curve, 0, "warning", message, value=level, limit=(1 - FLAT) * start)


def both_still(chart: Chart) -> Iterator[Symptom]:
    """Validation is within one per cent at every evaluation, and the noisy losses of batches have no trend either.

    >>> chart = Chart.of(loss=[1.1, 1.2, 1.0, 1.15] * 8, val_loss=[1.11] * 32, context={"source": "CSV"})
    >>> print(*both_still(chart))
    step 0: LO04 not-learning (warning): validation loss is 1.11 at all 32 evaluations, and the loss has no trend
    """
    train, held_out = Curve.of(chart["loss"], "loss"), Curve.of(chart["val_loss"], "validation loss")
    if held_out.values.size < EVALUATIONS or is_game(chart) or held_out.steps[0] > BEGUN * held_out.steps[-1]:
        return
    level = median(held_out.values)
    least = (STILL if held_out.values.size < MANY else FLAT) * abs(level)
    idle = bool(train) and certainty(train.values) > -CHANCE
    share = GAINED if _no_more_right(chart) else STILL
    still = float(np.ptp(held_out.values)) <= least or (idle and _never_better(held_out, share))
    if not still or not has_no_trend(train) or level == 0:
        return
    better = chart.context.get("better") or {}
    rates = [chart[name].values for name, way in better.items() if way == "higher" and chart[name].count]
    if any(median(rate[-3:]) > RIGHT * (1.0 if float(rate.max()) <= 1 else 100.0) for rate in rates):
        return  # there may be nothing left to learn
    if improved(chart, int(held_out.steps[0])):
        return
    count = held_out.values.size
    message = f"validation loss is {number_text(level)} at all {count} evaluations, and the loss has no trend"
    if float(np.ptp(held_out.values)) > least:
        start = number_text(held_out.start)
        message = f"none of {count} validations is better than the first, {start}, and the loss has no trend"
        if share == GAINED:
            said = f"validation loss is {number_text(held_out.level)} after {start} in {count} evaluations"
            message = f"{said}, none has a better accuracy than the first, and training has no trend"
    yield shown(NotLearning, held_out, 0, "warning", message, value=level)


def _no_more_right(chart: Chart) -> bool:
    """Whether the accuracy was best at the first of many evaluations, and that of training has no trend either.

    >>> rates = [0.55] + [0.49, 0.50, 0.48] * 6
    >>> _no_more_right(Chart.of(train_accuracy=[0.5, 0.4, 0.6] * 8, val_accuracy=rates))
    True
    >>> _no_more_right(Chart.of(train_accuracy=[0.5, 0.4, 0.6] * 8, val_accuracy=rates[::-1]))
    False
    """
    train, held_out = (Curve.of(chart[name], "accuracy") for name in ("train_accuracy", "val_accuracy"))
    if held_out.values.size < OFTEN or not has_no_trend(train):
        return False
    return bool(float(held_out.values[1:].max()) < held_out.start)


def _never_better(curve: Curve, share: float = STILL) -> bool:
    """Whether many evaluations are all about the first, and none is better than it to speak of.

    >>> level = np.array([5.00, 5.02, 5.19, 5.12, 5.10, 5.11] + [5.11] * 9)
    >>> [_never_better(Curve("loss", np.arange(15), values)) for values in (level, level - np.linspace(0, 0.4, 15))]
    [True, False]
    """
    start, values = curve.start, curve.values
    if values.size < OFTEN or not start > 0:
        return False
    return bool(float(values.min()) > (1 - share) * start and float(smoothed(values).max()) < (1 + NEAR) * start)


def only_noise(chart: Chart) -> Iterator[Symptom]:
    """Ten evaluations or more, and neither training nor validation is better in its second half than in its first.

    Records of training that are more than the evaluations are taken as the medians of as many parts.

    >>> wave = [1.01, 1.06, 0.92, 0.98, 1.01, 0.97, 1.07, 0.93, 1.03, 1.02]
    >>> chart = Chart.of(loss=wave, val_loss=wave[::-1], context={"source": "CSV", "clock": "epoch"})
    >>> print(*only_noise(chart))
    step 0: LO04 not-learning (warning): neither loss has a trend in 10 epochs: 1 and, of validation, 1
    """
    train, held_out = (Curve.of(chart[name], "loss") for name in ("loss", "val_loss"))
    if any(curve.values.size < TEN or not float(curve.values.min()) > 0 for curve in (train, held_out)):
        return
    if is_game(chart) or train.steps[0] > max(1, BEGUN * train.steps[-1]):
        return
    count, records = held_out.values.size, train.values.size
    if records > count:
        at_once = train.start > (1 + FALLEN) * median(train.values)  # it may have converged
        if records < PARTS * count or at_once:
            return
        parts = np.array_split(np.arange(records), count)
        medians = np.array([median(train.values[part]) for part in parts])
        train = Curve("loss", np.array([train.steps[part[0]] for part in parts]), medians)
    elif records < count:
        return
    levels = [float(np.mean(curve.values)) for curve in (train, held_out)]
    if levels[0] < 0.3 * levels[1] or not (_is_noise(train) and _is_noise(held_out)):
        return
    if improved(chart, int(held_out.steps[0])):
        return
    rates = [chart[name].values for name in ("train_accuracy", "val_accuracy") if chart[name].count]
    if any(median(rate[-3:]) > RIGHT * (1.0 if float(rate.max()) <= 1 else 100.0) for rate in rates):
        return
    unit = "epochs" if records == count else "evaluations"
    trained, validated = map(number_text, levels)
    said = "falls" if climbs(held_out.values) > TREND else "has a trend"
    message = f"neither loss {said} in {count} {unit}: {trained} and, of validation, {validated}"
    yield shown(NotLearning, train, 0, "warning", message, value=levels[0], confidence=0.7)


def no_gain(chart: Chart) -> Iterator[Symptom]:
    """Every loss that is known has gained less than three per cent in all, and its order shows no fall.

    >>> wave = [10.0, 9.67, 9.65, 9.59, 9.74, 9.63, 9.62, 9.65, 9.73, 9.69, 9.62, 9.60, 9.79, 9.72, 9.63, 9.87]
    >>> print(*no_gain(Chart.of(loss=wave, context={"source": "CSV"})))
    step 0: LO04 not-learning (warning): loss is 9.72 after 9.67 in the first records, and does not fall
    """
    curves = [Curve.of(chart[name], name.replace("val_", "validation ")) for name in ("loss", "val_loss")]
    curves = [curve for curve in curves if curve.values.size]
    if not curves or is_game(chart) or any(not _came_to_nothing(curve) for curve in curves):
        return
    if curves[0].steps[0] > max(1, BEGUN * curves[0].steps[-1]) or improved(chart, int(curves[0].steps[0])):
        return
    better = chart.context.get("better") or {}
    rates = [chart[name].values for name, way in better.items() if way == "higher" and chart[name].count]
    if any(median(rate[-3:]) > RIGHT * (1.0 if float(rate.max()) <= 1 else 100.0) for rate in rates):
        return
    if _part_learns(chart):
        return
    level, first = curves[0].level, median(curves[0].values[:3])
    message = f"{curves[0].name} is {number_text(level)} after {number_text(first)} in the first records, "
    yield shown(NotLearning, curves[0], 0, "warning", f"{message}and does not fall", value=level, confidence=0.7)


def _part_learns(chart: Chart) -> bool:
    """Whether another loss that is logged beside it has fallen, and the rest of it is not one that stands still."""
    return part_that_fell(chart, LEARNT) is not None and not is_mostly_one_part(chart)


def _came_to_nothing(curve: Curve) -> bool:
    values, first = curve.values, median(curve.values[:3])
    if values.size < TEN or not float(values.min()) > 0 or abs(1 - curve.level / first) > GAINED:
        return False
    if curve.level < (1 - FALLEN) * curve.start:  # what fell in one epoch may have converged
        return False
    swing = float(np.median(np.abs(np.diff(values)))) / first
    return swing < CALM and abs(certainty(values)) < CHANCE


def _is_noise(curve: Curve) -> bool:
    """Whether a curve does not go down, in its order and in the means of its halves, and hardly up."""
    values, halves = curve.values, np.array_split(curve.values, 2)
    first, second = (float(np.mean(part)) for part in halves)
    doubt = float(np.hypot(np.std(halves[0]), np.std(halves[1]))) / (first * halves[0].size ** 0.5)
    fallen = min(max(FLAT, DOUBTS * doubt), MOST)
    return climbs(values) > -TREND and second > (1 - fallen) * first and float(np.ptp(values)) < 0.3 * first


def _is_hardly_ever_right(chart: Chart) -> bool:
    """Whether the accuracy is logged with every loss, and was never above one in a hundred."""
    rates = chart["train_accuracy"].values
    return rates.size >= 10 and float(rates.max()) < 0.01


def _is_level(chart: Chart, curve: Curve) -> bool:
    """Whether the means of many epochs go neither up nor down, and validation has gained nothing to speak of."""
    if chart.context.get("clock") != "epoch" or curve.values.size < 20 or abs(climbs(curve.values)) > 0.25:
        return False
    held_out = Curve.of(chart["val_loss"], "validation loss")
    return bool(held_out) and held_out.level > 0.8 * held_out.start > 0


def hardly(chart: Chart) -> Iterator[Symptom]:
    """After many epochs the loss has hardly gained, and neither has the accuracy on the training data itself."""
    curve, accuracy = loss_of(chart), Curve.of(chart["train_accuracy"], "accuracy")
    if chart.context.get("clock") != "epoch" or min(curve.values.size, accuracy.values.size) < 20 or is_game(chart):
        return
    top = 1.0 if float(accuracy.values.max()) <= 1 else 100.0
    begun, now = (median(part) / top for part in (accuracy.values[:5], accuracy.values[-5:]))
    first = median(curve.values[:3])
    gained = 1 - curve.level / first if first > 0 else -1.0
    if not 0 <= gained < SLOW or now > ORDINARY or (now - begun) > min(0.2 * (1 - begun), GROWN * begun):
        return
    message = (
        f"{curve.name} fell by {100 * gained:.0f} % in {curve.values.size} epochs, and accuracy on the training data "
        f"is {number_text(now)}, after {number_text(begun)} in the first of them"
    )
    yield shown(SlowLearning, curve, 0, "warning", message, value=curve.level, confidence=0.7)


def one_answer(chart: Chart) -> Iterator[Symptom]:
    """One and the same accuracy at nearly every evaluation: every input gets the same answer."""
    series = chart["val_accuracy"]
    if series.count < 5:
        return
    few = series.count < 8
    values, counts = np.unique(series.values[1:] if few else series.values, return_counts=True)
    usual = float(values[int(np.argmax(counts))])
    share = float(counts.max()) / (len(series) - few)
    sure = 0.6 if few else 0.98
    if share < SAME or not 0 < usual < (sure if usual <= 1 else 100 * sure):
        return
    curve = Curve.of(series, "accuracy")
    message = (
        f"validation accuracy is exactly {number_text(usual)} at {int(counts.max())} of {len(series)} evaluations: "
        "the same answer to everything"
    )
    yield shown(CollapsedOutput, curve, 0, "warning", message, value=usual, confidence=0.9)
