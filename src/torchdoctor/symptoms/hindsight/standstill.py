"""Runs that stand still: a loss that never moved, one that hardly did, one answer to everything.

>>> chart = Chart.of(loss=[0.693 + 0.001 * (step % 3) for step in range(40)], context={"source": "CSV"})
>>> print(*stuck(chart))
step 0: LO04 not-learning (warning): loss has stayed at 0.694 for 39 steps, from the start on
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.hindsight.curve import Curve, climbs, improved, loss_of, shown
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import smoothed
from torchdoctor.symptoms.progress import is_game, working_since
from torchdoctor.symptoms.slow_learning import SlowLearning
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

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
NEAR = 0.005
"""The same of a loss that is to be what guessing gives, after few epochs."""
GUESSED = 0.08
"""How far above chance an accuracy may be by luck, or by the commoner class."""
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
    steps = int(curve.steps[-1] - curve.steps[0])
    unit = "epochs" if chart.context.get("clock") == "epoch" else "steps"
    message = f"{curve.name} has stayed at {number_text(level)} for {steps} {unit}, from the start on"
    yield shown(NotLearning, curve, 0, "warning", message, value=level, limit=(1 - FLAT) * start)


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
    if not 0 <= gained < SLOW or now > ORDINARY or (now - begun) > 0.2 * (1 - begun):
        return
    message = (
        f"{curve.name} fell by {100 * gained:.0f} % in {curve.values.size} epochs, and accuracy on the training data "
        f"is {number_text(now)}, after {number_text(begun)} in the first of them"
    )
    yield shown(SlowLearning, curve, 0, "warning", message, value=curve.level, confidence=0.7)


def at_chance(chart: Chart) -> Iterator[Symptom]:
    """After many epochs loss and accuracy are what guessing among a few classes gives.

    >>> chart = Chart.of(loss=[0.78 - 0.004 * min(step, 21) for step in range(40)], train_accuracy=[0.53] * 40,
    ...     context={"source": "CSV", "clock": "epoch"})
    >>> print(*at_chance(chart))
    step 0: LO04 not-learning (warning): loss is 0.696 and accuracy 0.53 after 40 epochs: guessing among 2 classes
    """
    curve = loss_of(chart)
    yield from _of_two(chart, curve)
    metrics = [chart[name].values for name in ("train_accuracy", "val_accuracy") if chart[name].count >= 5]
    if curve.values.size < 5 or not metrics or is_game(chart):
        return
    if chart.context.get("clock") != "epoch" and curve.values.size > 2 * metrics[0].size:
        return
    top = 1.0 if max(float(values.max()) for values in metrics) <= 1 else 100.0
    best, now = float(smoothed(metrics[0]).max()) / top, median(metrics[0][-3:]) / top
    unit = "epochs" if chart.context.get("clock") == "epoch" else "evaluations"
    near = FLAT if metrics[0].size >= 10 else NEAR
    for classes in range(2, 11):
        if abs(curve.level / math.log(classes) - 1) < near and best < 1 / classes + GUESSED:
            message = (
                f"{curve.name} is {number_text(curve.level)} and accuracy {number_text(now)} after "
                f"{metrics[0].size} {unit}: guessing among {classes} classes"
            )
            yield shown(NotLearning, curve, 0, "warning", message, value=curve.level)
            return


def _of_two(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """The loss is that of guessing between two, to three digits, or the accuracy is, and neither moves."""
    values, rates = curve.values, chart["train_accuracy"].values
    yield from _of_many(chart, curve)
    if is_game(chart) or values.size < 6 or float(np.ptp(smoothed(values))) > 0.01 * abs(curve.level):
        return
    top = 1.0 if not rates.size or float(rates.max()) <= 1 else 100.0
    guessed = rates.size >= 6 and float(np.abs(rates / top - 0.5).max()) < 0.02
    alone = not rates.size and values.size >= 10 and abs(median(values) / math.log(2) - 1) < 0.003
    if alone or guessed:
        said = f" and accuracy {number_text(median(rates))}" if guessed else ""
        message = f"{curve.name} is {number_text(curve.level)}{said}, and does not move: guessing between two"
        yield shown(NotLearning, curve, 0, "warning", message, value=curve.level)


def _of_many(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """Late in a run, and be it for three records, every loss is that of guessing among ten, a hundred or a thousand.

    >>> chart = Chart.of(loss=[6.9063, 6.9073, 6.9073], context={"source": "CSV", "clock": "step"})
    >>> chart.step = 78_000
    >>> print(*_of_many(chart, loss_of(chart)))
    step 0: LO04 not-learning (warning): loss is 6.91, late in the run: guessing among 1000 classes
    """
    series = chart["loss"] if chart["loss"] else chart["val_loss"]
    values = series.values
    late = 3 if chart.context.get("clock") == "epoch" else 500
    if values.size < 3 or chart.step < late or is_game(chart) or not float(values.min()) > 0:
        return
    rates = [chart[name].values for name in ("train_accuracy", "val_accuracy") if chart[name].count]
    top = 1.0 if all(float(rate.max()) <= 1 for rate in rates) else 100.0
    for classes in (10, 100, 1000):
        near = float(np.abs(values / math.log(classes) - 1).max()) < 0.0015
        if near and all(float(rate.max()) < top * (1 / classes + 0.03) for rate in rates):
            whole = Curve.of(series, "loss")
            message = f"loss is {number_text(median(values))}, late in the run: guessing among {classes} classes"
            yield shown(NotLearning, whole, 0, "warning", message, value=median(values))
            return


def unlearnable(chart: Chart) -> Iterator[Symptom]:
    """Training goes on, or many epochs are over, and the validation's loss and accuracy are what guessing gives.

    >>> chart = Chart.of(loss=[2.3 - 0.07 * step for step in range(10)], val_loss=[1.79, 1.80] * 5,
    ...     val_accuracy=[0.2, 0.22] * 5, context={"source": "CSV", "clock": "epoch"})
    >>> print(*unlearnable(chart))
    step 0: VA01 validation-anomaly (warning): validation loss is 1.8 and its accuracy 0.22: guessing among 6 classes
    """
    train, curve = Curve.of(chart["loss"], "loss"), Curve.of(chart["val_loss"], "validation loss")
    rates = chart["val_accuracy"].values
    late = chart.context.get("clock") == "epoch" and chart.step >= 20
    if min(train.values.size, curve.values.size, rates.size) < (6 if late else 8) or is_game(chart):
        return
    learns = train.level < 0.9 * train.start
    if not (learns or late) or curve.level < 0.97 * curve.start or float(rates.max()) > 1:
        return
    best, now = float(smoothed(rates).max()), median(rates[-3:])
    near, above = (FLAT, GUESSED) if learns else (NEAR, 0.5 * GUESSED)
    for classes in range(2, 11):
        if abs(curve.level / math.log(classes) - 1) < near and best < 1 / classes + above:
            message = (
                f"validation loss is {number_text(curve.level)} and its accuracy {number_text(now)}: "
                f"guessing among {classes} classes"
            )
            yield shown(ValidationAnomaly, curve, 0, "warning", message, value=curve.level)
            return


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
