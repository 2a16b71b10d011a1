"""Runs that learn almost nothing: the loss hardly fell, or the model gives the same answer to every input.

>>> chart = Chart.of(val_accuracy=[0.31] * 9, context={"source": "CSV"})
>>> print(*one_answer(chart))
step 0: OU01 collapsed-output (warning): validation accuracy is exactly 0.31 at 9 of 9 evaluations: the model gives ...
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.hindsight.curve import Curve, loss_of, shown
from torchdoctor.symptoms.progress import is_game
from torchdoctor.symptoms.slow_learning import SlowLearning

SLOW = 0.08
"""Relative fall in twenty epochs or more below which a loss has hardly fallen."""
ORDINARY = 0.75
"""Training accuracy above which little may be left to learn."""
GROWN = 0.5
"""Largest relative growth of the training accuracy: from 1 in 6 to 1 in 4 is learning."""
SAME = 0.9
"""Share of evaluations with exactly the same accuracy from which the model gives one answer to every input."""


def hardly(chart: Chart) -> Iterator[Symptom]:
    """After many epochs the loss has hardly fallen, and the training accuracy has hardly risen."""
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
        f"{curve.name} fell by {100 * gained:.0f} % in {curve.values.size} epochs, and training accuracy went from "
        f"{number_text(begun)} to {number_text(now)}"
    )
    yield shown(SlowLearning, curve, 0, "warning", message, value=curve.level, confidence=0.7)


def one_answer(chart: Chart) -> Iterator[Symptom]:
    """The accuracy is the same at nearly every evaluation, or one of two values: every input gets one answer."""
    series = chart["val_accuracy"]
    if series.count < 5:
        return
    yield from _now_one_now_the_other(chart)
    few = series.count < 8
    values, counts = np.unique(series.values[1:] if few else series.values, return_counts=True)
    usual = float(values[int(np.argmax(counts))])
    share = float(counts.max()) / (len(series) - few)
    sure = 0.6 if few else 0.999 if _stays(chart["train_accuracy"].values) else 0.98
    if share < SAME or not 0 < usual < (sure if usual <= 1 else 100 * sure):
        return
    curve = Curve.of(series, "accuracy")
    message = (
        f"validation accuracy is exactly {number_text(usual)} at {int(counts.max())} of {len(series)} evaluations: "
        "the model gives the same answer to every input"
    )
    yield shown(CollapsedOutput, curve, 0, "warning", message, value=usual, confidence=0.9)


def _stays(rates: Array) -> bool:
    """Whether a training accuracy is constant after the first epoch: no mistake was ever mended."""
    later = rates[1:]
    return later.size >= 7 and float(np.ptp(later)) <= 1e-3 * float(later.max())


def _now_one_now_the_other(chart: Chart) -> Iterator[Symptom]:
    """The accuracy is the share of one of two classes: the model predicts a single class for all inputs.

    >>> chart = Chart.of(val_accuracy=[0.274, 0.726, 0.726, 0.274, 0.726, 0.726, 0.726, 0.274],
    ...     context={"source": "CSV"})
    >>> print(*one_answer(chart))
    step 0: OU01 collapsed-output (warning): validation accuracy is 0.274 or 0.726 at all 8 evaluations: the model ...
    """
    series = chart["val_accuracy"]
    values, counts = np.unique(np.round(series.values, 6), return_counts=True)
    if values.size != 2 or len(series) < 8 or int(counts.min()) < 2:
        return
    low, high = (float(value) for value in values)
    whole = 1.0 if high <= 1 else 100.0
    if abs(low + high - whole) > 2e-3 * whole or low < 0.02 * whole:
        return
    message = (
        f"validation accuracy is {number_text(low)} or {number_text(high)} at all {len(series)} evaluations: "
        "the model predicts the same class for every input, but not always the same one"
    )
    yield shown(CollapsedOutput, Curve.of(series, "accuracy"), 0, "warning", message, value=high, confidence=0.9)
