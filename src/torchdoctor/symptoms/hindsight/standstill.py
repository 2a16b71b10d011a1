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
from torchdoctor.symptoms.hindsight.curve import Curve, improved, loss_of, shown
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import smoothed
from torchdoctor.symptoms.progress import is_game, working_since
from torchdoctor.symptoms.slow_learning import SlowLearning

FLAT = 0.02
"""Share of itself within which a loss has gained nothing."""
BEGUN = 0.2
"""Share of the last step at which a log begins at most, if it is to tell of a run's start."""
SLOW = 0.08
"""Share of its first value that a loss gains at least in twenty epochs."""
ORDINARY = 0.75
"""Accuracy on the training data above which little may be left to gain."""
GUESSED = 0.08
"""How far above chance an accuracy may be by luck, or by the commoner class."""
SAME = 0.9
"""Share of evaluations with one and the same accuracy, from which on the model says the same to everything."""


def stuck(chart: Chart) -> Iterator[Symptom]:
    """The loss is from its start to its end within two per cent, with so little noise that a gain would show."""
    curve = loss_of(chart)
    least = 10 if chart.context.get("clock") == "epoch" else 20
    if curve.values.size < least or is_game(chart) or working_since(chart) is None:
        return
    if curve.steps[0] > BEGUN * curve.steps[-1]:  # the log begins in the midst of a run, which may have converged
        return
    level, start = median(curve.values[-curve.values.size // 4 :]), median(curve.values[:3])
    spread = float(np.ptp(smoothed(curve.values)))
    if start - level > FLAT * abs(start) or spread > 2 * FLAT * abs(start) or improved(chart, int(curve.steps[0])):
        return
    steps = int(curve.steps[-1] - curve.steps[0])
    unit = "epochs" if chart.context.get("clock") == "epoch" else "steps"
    message = f"{curve.name} has stayed at {number_text(level)} for {steps} {unit}, from the start on"
    yield shown(NotLearning, curve, 0, "warning", message, value=level, limit=(1 - FLAT) * start)


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
    metrics = [chart[name].values for name in ("train_accuracy", "val_accuracy") if chart[name].count >= 10]
    if chart.context.get("clock") != "epoch" or curve.values.size < 10 or not metrics or is_game(chart):
        return
    top = 1.0 if max(float(values.max()) for values in metrics) <= 1 else 100.0
    best, now = max(float(smoothed(values).max()) / top for values in metrics), median(metrics[0][-3:]) / top
    for classes in range(2, 11):
        if abs(curve.level / math.log(classes) - 1) < FLAT and best < 1 / classes + GUESSED:
            message = (
                f"{curve.name} is {number_text(curve.level)} and accuracy {number_text(now)} after "
                f"{curve.values.size} epochs: guessing among {classes} classes"
            )
            yield shown(NotLearning, curve, 0, "warning", message, value=curve.level)
            return


def one_answer(chart: Chart) -> Iterator[Symptom]:
    """One and the same accuracy at nearly every evaluation: every input gets the same answer."""
    series = chart["val_accuracy"]
    if series.count < 8:
        return
    values, counts = np.unique(series.values, return_counts=True)
    usual = float(values[int(np.argmax(counts))])
    share = float(counts.max()) / len(series)
    if share < SAME or not 0 < usual < (0.98 if usual <= 1 else 98.0):
        return
    curve = Curve.of(series, "accuracy")
    message = (
        f"validation accuracy is exactly {number_text(usual)} at {int(counts.max())} of {len(series)} evaluations: "
        "the same answer to everything"
    )
    yield shown(CollapsedOutput, curve, 0, "warning", message, value=usual, confidence=0.9)
