"""Losses that are one and the same number to the last digit, and metrics that never leave their worst.

>>> chart = Chart.of(loss=[1.9112] + [1.9105] * 5, context={"source": "CSV", "clock": "epoch"})
>>> print(*frozen(chart))
step 1: LO04 not-learning (warning): loss is exactly 1.91 at 5 of 6 records: nothing moves
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.curve import Curve, improved, loss_of, of_epochs, shown
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.progress import is_game

FEW = 4
"""Equal numbers that are no accident, where an accuracy is equal too; one more where there is none."""
EQUAL = 2e-4
"""Share of itself within which a number is the same: it was rounded."""
FALLEN = 0.1
"""Share of its first value that a loss may have lost before it stood still; what fell further has converged."""
RIGHT = 0.9
"""Accuracy above which there may be nothing left to learn."""
NOTHING = 1e-12
"""Gradient norm that moves no weight."""
LONG = 10
"""Equal numbers, each far from zero, that are no end of a run either."""
PLAYERS = ("d_loss", "g_loss")
WRONG = 0.98
"""Share of all words, or more, that are wrong."""
LATE = {"epoch": 10, "step": 2000, "row": 2000}
"""From which count on a metric should have moved."""
EVALUATIONS, SOME = 15, 8
"""Evaluations after which something should be right once; and after which three metrics are proof, or an idle loss."""


def frozen(chart: Chart) -> Iterator[Symptom]:
    """The loss is the same number from its second record on, and so is the accuracy where there is one."""
    if is_game(chart):
        yield from _players(chart)
        return
    curve = loss_of(chart)
    values = curve.values
    yield from _both(chart)
    yield from _every_epoch(chart)
    if values.size < FEW or not float(np.abs(values).min()) > 0 or _is_coarse(values):
        return
    level = float(values[-1])
    since = _same_since(values)
    same = np.abs(values[since:] - level) <= EQUAL * abs(level)
    rates = [chart[name].values for name in ("train_accuracy", "val_accuracy") if chart[name].count >= FEW - 1]
    late = [rate[-max(FEW - 1, rate.size - since) :] if since > 1 else rate[1:] for rate in rates]
    still = [rate for rate in late if float(np.ptp(rate)) <= 2 * EQUAL * max(float(rate[-1]), 1e-9)]
    if not same.all() or len(still) < len(rates) or values.size < FEW + (not rates):
        return
    if abs(float(values[0]) - level) > FALLEN * abs(float(values[0])) or improved(chart, int(curve.steps[0])):
        return
    top = 1.0 if all(float(rate.max()) <= 1 for rate in rates) else 100.0
    begins = curve.steps[0] <= (1 if chart.context.get("clock") == "epoch" else 0.2 * curve.steps[-1])
    converged = float(rates[0][-1]) > RIGHT * top if rates else values.size < LONG or level < 1
    if not begins and converged:  # it is told from the midst on
        return
    count = round(curve.thinned * int(same.sum()))
    message = f"{curve.name} is exactly {number_text(level)} at {count} of {curve.records} records: nothing moves"
    yield shown(NotLearning, curve, since, "warning", message, value=level)


def _same_since(values: Array) -> int:
    """From which record on a loss is what it is at the end: the second, or one of the first half of a longer log.

    >>> _same_since(np.array([9.0, 8.0, 8.0, 8.0])), _same_since(np.array([9.0, 8.5, 9.2, 10.1] + [9.5] * 12))
    (1, 4)
    """
    same = np.abs(values - values[-1]) <= EQUAL * abs(float(values[-1]))
    since = values.size - (int(np.argmin(same[::-1])) if not same.all() else values.size)
    return since if 1 < since <= values.size // 2 and values.size - since >= LONG else 1


def _both(chart: Chart) -> Iterator[Symptom]:
    """Three epochs, in which neither the loss nor that of validation has moved."""
    curves = [Curve.of(chart[name], "") for name in ("loss", "val_loss")]
    if any(curve.values.size != FEW - 1 or _is_coarse(curve.values) for curve in curves):
        return
    if (
        all(0 <= float(np.ptp(curve.values)) <= EQUAL * 2 * abs(curve.start) for curve in curves)
        and curves[1].start > 0
    ):
        level = curves[0].level
        message = f"loss is {number_text(level)} and validation {number_text(curves[1].level)} in each of three epochs"
        yield shown(NotLearning, Curve("loss", *curves[0][1:]), 0, "warning", message, value=level)


def no_gradient(chart: Chart) -> Iterator[Symptom]:
    """Most gradients are exactly nothing, and the loss is where it was.

    >>> chart = Chart.of(
    ...     loss=[9.7, 9.6, 9.8, 9.7, 9.6] * 3, grad_norm=[1e-5, 1e-18] + [0.0] * 13, context={"source": "CSV"}
    ... )
    >>> print(*no_gradient(chart))
    step 0: LO04 not-learning (warning): the gradient norm is 0 at 14 of 15 records, and the loss stays at 9.7
    """
    norms, curve = Curve.of(chart["grad_norm"], "gradient norm"), loss_of(chart)
    none = norms.values < NOTHING
    if norms.values.size < LONG or curve.values.size < LONG or is_game(chart) or float(none.mean()) < 0.5:
        return
    if curve.level > (1 - FALLEN) * median(curve.values[:3]) > 0:
        said = f"the gradient norm is 0 at {int(none.sum())} of {none.size} records"
        level = number_text(curve.level)
        yield shown(NotLearning, norms, 0, "warning", f"{said}, and the loss stays at {level}", value=curve.level)


def _every_epoch(chart: Chart) -> Iterator[Symptom]:
    """Batches differ, but the mean of every epoch is the same number: the weights do not move.

    >>> chart = Chart.of(loss=[9.0, 1.5, 4.0] * 12, context={"source": "CSV", "steps_per_epoch": 3})
    >>> print(*_every_epoch(chart))
    step 0: LO04 not-learning (warning): the mean loss is exactly 4.83 in 12 of 12 epochs: nothing moves
    """
    curve = of_epochs(chart)
    if curve.values.size < LONG or not float(np.abs(curve.values[-1])) > 0:
        return
    same = np.abs(curve.values - curve.values[-1]) <= EQUAL * abs(float(curve.values[-1]))
    if float(same.mean()) >= RIGHT:
        level = number_text(float(curve.values[-1]))
        message = f"the mean loss is exactly {level} in {int(same.sum())} of {same.size} epochs: nothing moves"
        yield shown(NotLearning, curve, int(np.argmax(same)), "warning", message, value=float(curve.values[-1]))


def _players(chart: Chart) -> Iterator[Symptom]:
    """Both players' losses are the same numbers at every record."""
    curves = [Curve.of(chart[name], name.replace("_", " ")) for name in PLAYERS]
    if any(curve.values.size < FEW + 1 or float(np.ptp(curve.values)) > 0 for curve in curves):
        return
    said = " and ".join(f"{curve.name} {number_text(curve.start)}" for curve in curves)
    message = f"both players' losses are the same at every record, {said}: neither learns"
    yield shown(NotLearning, curves[0], 0, "warning", message, value=curves[0].start)


def _is_coarse(values: Array) -> bool:
    """Whether the numbers were rounded so far that equal ones say nothing: 0.04, 0.35."""
    last = float(values[-1])
    return abs(last) < 1 and abs(last * 1000 - round(last * 1000)) < 1e-9


def nothing_right(chart: Chart) -> Iterator[Symptom]:
    """Late in a run every word is wrong still, or no metric of validation has ever left zero.

    >>> chart = Chart.of(loss=[80.0, 79.0, 81.0], val_wer=[100.0, 99.9, 100.0],
    ...     context={"source": "CSV", "clock": "epoch", "better": {"val_wer": "lower"}})
    >>> chart.step = 20
    >>> print(*nothing_right(chart))
    step 0: LO04 not-learning (warning): wer is 100 at all 3 evaluations: nothing is right
    """
    better = chart.context.get("better") or {}
    judged = {name: way for name, way in better.items() if name.startswith("val_") and chart[name].count >= 3}
    held_out = Curve.of(chart["val_loss"], "")
    train = Curve.of(chart["loss"], "")
    learns = train.values.size > 0 and train.level < (1 - FALLEN) * train.start
    idle = not learns and held_out.values.size >= SOME and held_out.level > 0.98 * held_out.start > 0
    late = idle or chart.step >= LATE.get(str(chart.context.get("clock")), 2000)
    if not judged or not late or is_game(chart):
        return
    words = [name for name in judged if name.endswith("_wer")]
    errors = words or [name for name in judged if name.endswith(("_cer", "_ter"))]
    if errors:
        stuck = [name for name in errors if _is_at_the_top(chart[name].values)]
        found = stuck[0] if len(stuck) == len(errors) else ""
    else:
        rates = [name for name, way in judged.items() if way == "higher"]
        rates = [name for name in rates if chart[name].count >= (SOME if idle or len(rates) >= 3 else EVALUATIONS)]
        found = rates[0] if rates and not any(chart[name].values.any() for name in rates) else ""
    if found:
        curve = Curve.of(chart[found], found.removeprefix("val_").replace("_", " "))
        level = median(curve.values)
        message = f"{curve.name} is {number_text(level)} at all {curve.values.size} evaluations: nothing is right"
        yield shown(NotLearning, curve, 0, "warning", message, value=level)


def _is_at_the_top(values: Array) -> bool:
    lowest, highest = float(values.min()), float(values.max())
    return (lowest >= WRONG and highest < 1.5) or (lowest >= 100 * WRONG and highest < 150)
