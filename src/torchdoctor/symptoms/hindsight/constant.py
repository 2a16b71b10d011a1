"""Losses that are exactly constant, and metrics that never leave their worst value.

>>> chart = Chart.of(loss=[1.9112] + [1.9105] * 5, context={"source": "CSV", "clock": "epoch"})
>>> print(*frozen(chart))
step 1: LO04 not-learning (warning): loss is exactly 1.91 in 5 of 6 records: nothing changes
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.curve import PENALTIES, Curve, improved, loss_of, of_epochs, shown
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.progress import is_game

FEW = 4
"""Equal losses needed for a finding if an accuracy is constant too; one more if no accuracy is logged."""
EQUAL = 2e-4
"""Relative difference below which two numbers count as equal, because logs round."""
FALLEN = 0.1
"""Share of its first value that a constant loss may have lost; a loss that fell further has converged."""
RIGHT = 0.9
"""Accuracy above which there may be nothing left to learn."""
NOTHING = 1e-12
"""A gradient norm below this counts as zero."""
LONG = 10
"""Equal losses of 1 or more that are reported even if the log does not begin at the start of the run."""
PLAYERS = ("d_loss", "g_loss")
WRONG = 0.98
"""An error rate of at least this counts as everything wrong."""
UNMATCHED, NO_TARGET = "so no label may have been matched", "no training sample has a target for it"
"""How messages end if labels are missing; causes match on them."""
LATE = {"epoch": 10, "step": 2000, "row": 2000}
"""Epoch, step or row from which a metric should have left its worst value."""
EVALUATIONS, SOME = 15, 8
"""Evaluations at zero needed for a finding; the second suffices with three metrics or a loss without progress."""


def frozen(chart: Chart) -> Iterator[Symptom]:
    """The loss is constant from its second record on (or from later), and so is the accuracy if logged."""
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
    if not begins and converged:  # the log begins in the middle of a run
        return
    count = round(curve.thinned * int(same.sum()))
    message = f"{curve.name} is exactly {number_text(level)} in {count} of {curve.records} records: nothing changes"
    yield shown(NotLearning, curve, since, "warning", message, value=level)


def _same_since(values: Array) -> int:
    """The record from which the loss equals its last value: 1, or a later one in the first half of a long log.

    >>> _same_since(np.array([9.0, 8.0, 8.0, 8.0])), _same_since(np.array([9.0, 8.5, 9.2, 10.1] + [9.5] * 12))
    (1, 4)
    """
    same = np.abs(values - values[-1]) <= EQUAL * abs(float(values[-1]))
    since = values.size - (int(np.argmin(same[::-1])) if not same.all() else values.size)
    return since if 1 < since <= values.size // 2 and values.size - since >= LONG else 1


def _both(chart: Chart) -> Iterator[Symptom]:
    """Neither training nor validation loss changes in a log of three epochs."""
    curves = [Curve.of(chart[name], "") for name in ("loss", "val_loss")]
    if any(curve.values.size != FEW - 1 or _is_coarse(curve.values) for curve in curves):
        return
    if (
        all(0 <= float(np.ptp(curve.values)) <= EQUAL * 2 * abs(curve.start) for curve in curves)
        and curves[1].start > 0
    ):
        level = curves[0].level
        held_out = number_text(curves[1].level)
        message = f"loss is {number_text(level)} and validation loss {held_out} in each of three epochs"
        yield shown(NotLearning, Curve("loss", *curves[0][1:]), 0, "warning", message, value=level)


def no_gradient(chart: Chart) -> Iterator[Symptom]:
    """Most gradient norms are zero, and the loss does not fall.

    >>> chart = Chart.of(
    ...     loss=[9.7, 9.6, 9.8, 9.7, 9.6] * 3, grad_norm=[1e-5, 1e-18] + [0.0] * 13, context={"source": "CSV"}
    ... )
    >>> print(*no_gradient(chart))
    step 0: LO04 not-learning (warning): gradient norm is 0 in 14 of 15 records, and the loss stays at 9.7
    """
    norms, curve = Curve.of(chart["grad_norm"], "gradient norm"), loss_of(chart)
    none = norms.values < NOTHING
    if norms.values.size < LONG or curve.values.size < LONG or is_game(chart) or float(none.mean()) < 0.5:
        return
    if curve.level > (1 - FALLEN) * median(curve.values[:3]) > 0:
        said = f"gradient norm is 0 in {int(none.sum())} of {none.size} records"
        level = number_text(curve.level)
        yield shown(NotLearning, norms, 0, "warning", f"{said}, and the loss stays at {level}", value=curve.level)


def _every_epoch(chart: Chart) -> Iterator[Symptom]:
    """Batch losses differ, but the mean of every epoch is the same number: the weights do not change.

    >>> chart = Chart.of(loss=[9.0, 1.5, 4.0] * 12, context={"source": "CSV", "steps_per_epoch": 3})
    >>> print(*_every_epoch(chart))
    step 0: LO04 not-learning (warning): mean loss is exactly 4.83 in 12 of 12 epochs: nothing changes
    """
    curve = of_epochs(chart)
    if curve.values.size < LONG or not float(np.abs(curve.values[-1])) > 0:
        return
    same = np.abs(curve.values - curve.values[-1]) <= EQUAL * abs(float(curve.values[-1]))
    if float(same.mean()) >= RIGHT:
        level = number_text(float(curve.values[-1]))
        message = f"mean loss is exactly {level} in {int(same.sum())} of {same.size} epochs: nothing changes"
        yield shown(NotLearning, curve, int(np.argmax(same)), "warning", message, value=float(curve.values[-1]))


def _players(chart: Chart) -> Iterator[Symptom]:
    """The losses of generator and discriminator are both constant."""
    curves = [Curve.of(chart[name], name.replace("_", " ")) for name in PLAYERS]
    if any(curve.values.size < FEW + 1 or float(np.ptp(curve.values)) > 0 for curve in curves):
        return
    said = " and ".join(f"{curve.name} {number_text(curve.start)}" for curve in curves)
    message = f"both players' losses are constant, {said}: neither learns"
    yield shown(NotLearning, curves[0], 0, "warning", message, value=curves[0].start)


def _is_coarse(values: Array) -> bool:
    """Whether the numbers are rounded so coarsely that equal ones mean nothing, such as 0.04 or 0.35."""
    last = float(values[-1])
    return abs(last) < 1 and abs(last * 1000 - round(last * 1000)) < 1e-9


def nothing_right(chart: Chart) -> Iterator[Symptom]:
    """Late in a run, the error rate is still 100 %, or no validation metric has ever left zero.

    >>> chart = Chart.of(loss=[80.0, 79.0, 81.0], val_wer=[100.0, 99.9, 100.0],
    ...     context={"source": "CSV", "clock": "epoch", "better": {"val_wer": "lower"}})
    >>> chart.step = 20
    >>> print(*nothing_right(chart))
    step 0: LO04 not-learning (warning): wer is 100 at all 3 evaluations: no prediction is right
    """
    better = chart.context.get("better") or {}
    judged = {name: way for name, way in better.items() if name.startswith("val_") and chart[name].count >= 3}
    held_out = Curve.of(chart["val_loss"], "")
    train = Curve.of(chart["loss"], "")
    learns = train.values.size > 0 and train.level < (1 - FALLEN) * train.start
    idle = not learns and held_out.values.size >= SOME and held_out.level > 0.98 * held_out.start > 0
    empty = [name for name in chart.vitals if name.endswith("_loss") and _is_nothing(chart[name].values)]
    several = sum(not name.startswith("val_") for name in empty) > 1
    late = idle or bool(empty) or chart.step >= LATE.get(str(chart.context.get("clock")), 2000)
    if not judged or not late or is_game(chart):
        return
    words = [name for name in judged if name.endswith("_wer")]
    errors = words or [name for name in judged if name.endswith(("_cer", "_ter"))]
    if errors:
        stuck = [name for name in errors if _is_at_the_top(chart[name].values)]
        found = stuck[0] if len(stuck) == len(errors) else ""
    else:
        rates = [name for name, way in judged.items() if way == "higher"]
        least = FEW - several if empty else SOME if idle or len(rates) >= 3 else EVALUATIONS
        rates = [name for name in rates if chart[name].count >= least]
        found = rates[0] if rates and not any(chart[name].values.any() for name in rates) else ""
    if found:
        curve = Curve.of(chart[found], found.removeprefix("val_").replace("_", " "))
        level = median(curve.values)
        message = f"{curve.name} is {number_text(level)} at all {curve.values.size} evaluations: no prediction is right"
        if empty:
            message += f"; {empty[0].replace('_', ' ')} is exactly 0 too, {UNMATCHED}"
        yield shown(NotLearning, curve, 0, "warning", message, value=level)


def without_targets(chart: Chart) -> Iterator[Symptom]:
    """A part of the training loss is exactly 0 in every record, but the same part is not in validation.

    >>> chart = Chart.of(loss=[9.0] * 5, box_loss=[0.0] * 5, val_box_loss=[1.9, 1.8, 1.8, 1.9, 1.7])
    >>> print(*without_targets(chart))
    step 0: LO04 not-learning (warning): box loss is exactly 0 in all 5 records of training, but 1.8 in validation: ...
    """
    parts = [name for name in chart.vitals if name.endswith("_loss") and not name.startswith(("val_", *PENALTIES))]
    for name in parts if not is_game(chart) else ():
        curve, held_out = Curve.of(chart[name], name.replace("_", " ")), chart[f"val_{name}"].values
        if min(curve.values.size, held_out.size) > FEW and not curve.values.any() and float(held_out.min()) > 0:
            message = f"{curve.name} is exactly 0 in all {curve.records} records of training, but "
            message += f"{number_text(median(held_out))} in validation: {NO_TARGET}"
            yield shown(NotLearning, curve, 0, "warning", message, value=0.0)
            return


def _is_nothing(values: Array) -> bool:
    """Whether a part of the loss is exactly 0 in every record."""
    return values.size >= FEW - 1 and not values.any()


def _is_at_the_top(values: Array) -> bool:
    lowest, highest = float(values.min()), float(values.max())
    return (lowest >= WRONG and highest < 1.5) or (lowest >= 100 * WRONG and highest < 150)
