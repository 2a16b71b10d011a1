"""Runs that never got better than they were at first: all losses above their first values, or R² never above 0.

>>> chart = Chart.of(loss=[1.67, *[1.8] * 19], val_loss=[3.9, *[4.6] * 19], context={"source": "CSV"})
>>> print(*never_better(chart))
step 1: LO02 loss-divergence (warning): nothing got better after the first of 20 evaluations: the loss went from ...
"""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.symptoms.hindsight.curve import Curve, metrics_of_validation, shown
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.progress import is_game

MANY = 12
"""Fewest evaluations."""
WORSE, FAR = 1.02, 1.05
"""Multiples of the first training and validation loss above which a run must end."""
EXPLAINED, RISES = 0.01, 0.1
"""Highest R² of a model that explains nothing, and by how much it must have risen to be on its way."""


def never_better(chart: Chart) -> Iterator[Symptom]:
    """Training loss, validation loss and every validation metric were best at the very first evaluation."""
    train, held_out = Curve.of(chart["loss"], "loss"), Curve.of(chart["val_loss"], "validation loss")
    if is_game(chart) or min(train.values.size, held_out.values.size) < MANY:
        return
    if any(not 0 < curve.values[0] < curve.values[1:].min() for curve in (train, held_out)):
        return
    if train.level < WORSE * train.values[0] or held_out.level < FAR * held_out.values[0]:
        return
    for name, way in metrics_of_validation(chart).items():
        values = chart[name].values * (1 if way == "higher" else -1)
        if values.size and float(values[-3:].max()) > float(values[0]):
            return
    message = f"nothing got better after the first of {held_out.records} evaluations: the loss went from "
    message += f"{number_text(float(train.values[0]))} to {number_text(train.level)}, the validation loss from "
    message += f"{number_text(float(held_out.values[0]))} to {number_text(held_out.level)}"
    yield shown(LossDivergence, held_out, 1, "warning", message, value=held_out.level, limit=float(held_out.values[0]))


def explains_nothing(chart: Chart) -> Iterator[Symptom]:
    """R² on validation was never above 0, and is not on its way there: the mean of the targets is as good a guess.

    >>> chart = Chart.of(val_r2=[-0.03 + 0.0005 * step for step in range(20)], context={"source": "CSV"})
    >>> print(*explains_nothing(chart))
    step 0: LO04 not-learning (warning): validation R2 was never above -0.0205 in 20 evaluations: the mean of the ...
    """
    for name in (name for name in metrics_of_validation(chart) or ("val_r2",) if "r2" in name.split("_")):
        curve = Curve.of(chart[name], "validation R2")
        values = curve.values
        if values.size < MANY or not float(values.max()) < EXPLAINED or curve.level - float(values[0]) > RISES:
            continue
        message = f"validation R2 was never above {number_text(float(values.max()))} in {curve.records} evaluations: "
        message += "the mean of the targets would be as good a guess"
        yield shown(NotLearning, curve, 0, "warning", message, value=curve.level, limit=0.0)
        return
