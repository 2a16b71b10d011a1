"""Losses and accuracies that stay at chance level for some number of classes.

>>> chart = Chart.of(loss=[0.78 - 0.004 * min(step, 21) for step in range(40)], train_accuracy=[0.53] * 40,
...     context={"source": "CSV", "clock": "epoch"})
>>> print(*at_chance(chart))
step 0: LO04 not-learning (warning): loss is 0.696 and accuracy 0.53 after 40 epochs: chance level for 2 classes
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.hindsight.curve import Curve, has_no_trend, loss_of, shown
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import smoothed
from torchdoctor.symptoms.progress import is_game
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

FLAT = 0.02
"""Largest relative distance of a loss from chance level after many evaluations."""
NEAR = 0.005
"""The same after few evaluations."""
NOISY = 0.01
"""The same for the mean of many noisy batch losses."""
GUESSED = 0.08
"""How far an accuracy may exceed chance level by luck or because of a more common class."""
FEW = range(2, 11)
"""Small numbers of classes that are tried."""
MOST = 7.0
"""Logarithm of the largest number of classes considered."""
ODDS = 0.6, 1.5
"""Range of accuracy times number of classes that counts as chance, if there are more than ten classes."""
CLASSES = frozenset({"cls", "class", "classification", "classifier", "ce", "xent"})
"""Words in the names of classification losses."""
TOUCHES = 0.2
"""Share of evaluations at chance level from which it counts as a floor."""
AREAS = frozenset({"auc", "auroc", "rocauc"})
"""Words in the names of areas under the ROC curve."""
RANKED, RANKING = 8, 0.05
"""Fewest evaluations for a finding about them, and how far above 0.5 they are at chance level."""
ALIKE = 0.05
"""Relative difference of the losses up to which training is at chance level too, where validation is."""
BATCHES = 15
"""Fewest batch losses for a meaningful mean."""


def classes_of(level: float, best: float, near: float, above: float, among: Sequence[int] = FEW) -> int:
    """The number of classes for which a loss and an accuracy are at chance level; 0 if there is none.

    For more than ten classes, the number follows from the loss, and the accuracy must be about one over it.

    >>> classes_of(1.79, 0.2, 0.005, 0.08), classes_of(1.79, 0.6, 0.005, 0.08), classes_of(3.177, 0.046, 0.005, 0.08)
    (6, 0, 24)
    """
    fits = (number for number in among if abs(level / math.log(number) - 1) < near and best < 1 / number + above)
    many = round(math.exp(level)) if among is FEW and FEW.stop < math.exp(min(level, MOST)) < math.exp(MOST) else 0
    alike = many and abs(level / math.log(many) - 1) < near and ODDS[0] <= best * many < ODDS[1]
    return next(fits, 0) or (many if alike else 0)


def at_chance(chart: Chart) -> Iterator[Symptom]:
    """Loss and accuracy are at chance level at the end, or in the mean over batches."""
    curve = loss_of(chart)
    if is_game(chart):
        return
    for look in (_of_two, _of_many, _of_batches, _of_evaluations, _held_out_of_two):
        yield from look(chart, curve)
    metrics = [chart[name].values for name in ("train_accuracy", "val_accuracy") if chart[name].count >= 5]
    if curve.values.size < 5 or not metrics:
        return
    if chart.context.get("clock") != "epoch" and curve.values.size > 2 * metrics[0].size:
        return
    top = 1.0 if max(float(values.max()) for values in metrics) <= 1 else 100.0
    best, now = float(smoothed(metrics[0]).max()) / top, median(metrics[0][-3:]) / top
    classes = classes_of(curve.level, best, FLAT if metrics[0].size >= 10 else NEAR, GUESSED)
    if classes:
        unit = "epochs" if chart.context.get("clock") == "epoch" else "evaluations"
        message = (
            f"{curve.name} is {number_text(curve.level)} and accuracy {number_text(now)} after "
            f"{metrics[0].size} {unit}: chance level for {classes} classes"
        )
        yield shown(NotLearning, curve, 0, "warning", message, value=curve.level)


def _of_two(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """The loss is constant, and it or the accuracy is at chance level for two classes."""
    values, rates = curve.values, chart["train_accuracy"].values
    if values.size < 6 or float(np.ptp(smoothed(values))) > 0.01 * abs(curve.level):
        return
    top = 1.0 if not rates.size or float(rates.max()) <= 1 else 100.0
    guessed = rates.size >= 6 and float(np.abs(rates / top - 0.5).max()) < 0.02
    alone = not rates.size and values.size >= 10 and abs(median(values) / math.log(2) - 1) < 0.003
    if alone or guessed:
        said = f" and accuracy {number_text(median(rates))}" if guessed else ""
        message = f"{curve.name} is {number_text(curve.level)}{said}, and does not change: chance level for 2 classes"
        yield shown(NotLearning, curve, 0, "warning", message, value=curve.level)


def _of_many(chart: Chart, _: Curve) -> Iterator[Symptom]:
    """Late in a run, every loss is at chance level for 10, 100 or 1000 classes; three records suffice.

    >>> chart = Chart.of(loss=[6.9063, 6.9073, 6.9073], context={"source": "CSV", "clock": "step"})
    >>> chart.step = 78_000
    >>> print(*at_chance(chart))
    step 0: LO04 not-learning (warning): loss is 6.91 late in the run: chance level for 1000 classes
    """
    series = chart["loss"] if chart["loss"] else chart["val_loss"]
    values = series.values
    late = 3 if chart.context.get("clock") == "epoch" else 500
    if values.size < 3 or chart.step < late or not float(values.min()) > 0:
        return
    rates = [chart[name].values for name in ("train_accuracy", "val_accuracy") if chart[name].count]
    top = 1.0 if all(float(rate.max()) <= 1 for rate in rates) else 100.0
    best = max((float(rate.max()) / top for rate in rates), default=0.0)
    ends = {classes_of(float(end), best, 0.0015, 0.03, (10, 100, 1000)) for end in (values.min(), values.max())}
    if len(ends) == 1 and 0 not in ends:
        message = f"loss is {number_text(median(values))} late in the run: chance level for {ends.pop()} classes"
        yield shown(NotLearning, Curve.of(series, "loss"), 0, "warning", message, value=median(values))


def _of_batches(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """Batch losses have no trend, and their mean and the accuracy are at chance level.

    >>> chart = Chart.of(loss=[0.68, 0.71, 0.69, 0.70] * 6, val_accuracy=[0.5, 0.51], context={"source": "CSV"})
    >>> print(*at_chance(chart))
    step 0: LO04 not-learning (warning): mean loss is 0.695 and accuracy 0.505: chance level for 2 classes
    """
    names = [name for name in ("train_accuracy", "val_accuracy") if chart[name].count >= 2]
    if chart.context.get("clock") == "epoch" or curve.values.size < BATCHES or not names or not has_no_trend(curve):
        return
    rates = max((chart[name].values for name in names), key=len)
    top = 1.0 if float(rates.max()) <= 1 else 100.0
    now, level = float(np.mean(rates)) / top, float(np.mean(curve.values[curve.values.size // 2 :]))
    classes = classes_of(level, now, NOISY, GUESSED / 2)
    if classes and now > 1 / classes - GUESSED / 2:
        message = (
            f"mean {curve.name} is {number_text(level)} and accuracy {number_text(now)}: "
            f"chance level for {classes} classes"
        )
        yield shown(NotLearning, curve, 0, "warning", message, value=level)


def _of_evaluations(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """Three or more evaluations are at chance level to three digits, and the training loss has not fallen.

    >>> chart = Chart.of(loss=[210.0, 237.0, 238.0, 239.0, 239.0, 240.0], val_loss=[0.696, 0.6933, 0.6931],
    ...     val_accuracy=[0.496, 0.504, 0.504], context={"source": "CSV"})
    >>> print(*at_chance(chart))
    step 0: LO04 not-learning (warning): validation loss is 0.693 and accuracy 0.504: chance level for 2 classes
    """
    held_out, rates = Curve.of(chart["val_loss"], "validation loss"), chart["val_accuracy"].values
    if min(held_out.values.size, rates.size) < 3 or not chart["loss"] or curve.level < 0.98 * curve.start:
        return
    top = 1.0 if float(rates.max()) <= 1 else 100.0
    level, now = float(held_out.values[-1]), median(rates) / top
    near = 0.001 if rates.size < 4 else 0.003
    classes = classes_of(level, float(rates.max()) / top, near, GUESSED / 4)
    if classes and classes == classes_of(float(held_out.values[-2]), now, near, GUESSED / 4):
        message = (
            f"validation loss is {number_text(level)} and accuracy {number_text(now)}: "
            f"chance level for {classes} classes"
        )
        yield shown(NotLearning, held_out, 0, "warning", message, value=level)


def _held_out_of_two(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """The validation loss has settled at chance level for two classes, and batch losses stay around it.

    >>> chart = Chart.of(loss=[0.71, 0.66, 0.70, 0.72] * 10, val_loss=[0.70, 0.72] + [0.6931, 0.6940] * 8,
    ...     context={"source": "CSV"})
    >>> print(*at_chance(chart))
    step 2: LO04 not-learning (warning): validation loss is 0.694 and mean loss 0.698: chance level for 2 classes
    """
    held_out = Curve.of(chart["val_loss"], "validation loss")
    half = held_out.values.size // 2
    if 3 <= half < 6 and chart["loss"] and not chart["val_accuracy"].count:
        yield from _few_of_two(curve, held_out)
    if half < 6 or not chart["loss"] or not has_no_trend(curve) or chart["val_accuracy"].count:
        return
    level, train = median(held_out.values[half:]), float(np.mean(curve.values))
    if abs(train / math.log(2) - 1) > 2 * NOISY:
        return
    rests = abs(level / math.log(2) - 1) < 0.003 and float(np.ptp(held_out.values[half:])) < NOISY * level
    if rests or _touches_a_guess(held_out):
        said = f"validation loss is {number_text(level)} and mean loss {number_text(train)}"
        if not rests:
            said = f"validation loss reaches {number_text(float(held_out.values.min()))} and never falls below it"
            said += f", and mean loss is {number_text(train)}"
        yield shown(NotLearning, held_out, 2, "warning", f"{said}: chance level for 2 classes", value=level)


def _few_of_two(curve: Curve, held_out: Curve) -> Iterator[Symptom]:
    """A few evaluations have settled at chance level for two classes to four digits, and training is no better.

    >>> chart = Chart.of(loss=[0.748, 0.729, 0.741, 0.739, 0.730, 0.728],
    ...     val_loss=[0.6948, 0.6934, 0.6934, 0.6932, 0.6931, 0.6931], context={"source": "CSV", "clock": "epoch"})
    >>> print(*at_chance(chart))
    step 2: LO04 not-learning (warning): validation loss is 0.693 and loss 0.73: chance level for 2 classes
    """
    late = held_out.values[-(held_out.values.size // 2) :] / math.log(2)
    if float(np.abs(late - 1).max()) < 0.0005 and curve.level > 0.99 * math.log(2):
        said = f"validation loss is {number_text(held_out.level)} and loss {number_text(curve.level)}"
        yield shown(NotLearning, held_out, 2, "warning", f"{said}: chance level for 2 classes", value=held_out.level)


def cannot_rank(chart: Chart) -> Iterator[Symptom]:
    """The area under the ROC curve stays at chance level, which is 0.5 however common each class is.

    >>> scores = [0.47, 0.52, 0.48, 0.50, 0.48, 0.42, 0.46, 0.51, 0.52, 0.45, 0.56]
    >>> print(*cannot_rank(Chart.of(val_auroc=scores, context={"better": {"val_auroc": "higher"}})))
    step 0: LO04 not-learning (warning): validation auroc is 0.52 after 11 evaluations: chance level
    """
    areas = [name for name in chart.context.get("better") or {} if AREAS.intersection(name.split("_"))]
    curves = [Curve.of(chart[name], name.replace("val_", "validation ").replace("_", " ")) for name in areas]
    curves = [curve for curve in curves if curve.values.size >= RANKED]
    if not curves or any(_ranks(curve) for curve in curves):
        return
    curve, train = curves[-1], Curve.of(chart["loss"], "loss").values
    message = f"{curve.name} is {number_text(curve.level)} after {curve.records} evaluations: chance level"
    learns = train.size > 2 and median(train[-3:]) < 0.8 * float(train[0])
    unlike = learns and all(name.startswith("val_") for name in areas)
    yield shown(ValidationAnomaly if unlike else NotLearning, curve, 0, "warning", message, value=curve.level)


def _ranks(curve: Curve) -> bool:
    """Whether an area under the ROC curve came clearly above 0.5, or does not end near it."""
    late, high = curve.values[curve.values.size // 2 :], float(np.percentile(curve.values, 80))
    return high > 0.5 + RANKING or abs(float(np.mean(late)) - 0.5) > RANKING


def _touches_a_guess(curve: Curve) -> bool:
    """Whether many evaluations are at chance level for two classes, and none is below it.

    >>> swings = np.array([0.9, 0.699, 0.695, 0.6931, 0.703, 0.6933, 0.77, 0.6935, 0.72, 0.6939, 0.75, 0.6932])
    >>> [_touches_a_guess(Curve("loss", np.arange(12), values)) for values in (swings, swings - 0.005)]
    [True, False]
    """
    shares = curve.values / math.log(2)
    return bool(float(shares.min()) > 0.999 and float(np.mean(shares < 1.003)) >= TOUCHES)


def part_at_rest(chart: Chart) -> Iterator[Symptom]:
    """The classification term of a loss has stayed at its start, within one percent.

    >>> chart = Chart.of(loss=[700.0, 900.0] * 20, cls_loss=[5.30, 5.31] * 20, box_loss=[694.7, 894.69] * 20,
    ...     context={"source": "CSV"})
    >>> print(*part_at_rest(chart))
    step 0: LO04 not-learning (warning): cls loss has stayed at 5.3 for 39 steps, since the start
    """
    for name in chart.vitals:
        words = name.split("_")
        if words[-1] != "loss" or words[0] == "val" or not CLASSES.intersection(words) or is_game(chart):
            continue
        curve = Curve.of(chart[name], " ".join(words))
        if curve.values.size < 2 * BATCHES or not float(np.abs(curve.values).min()) > 0 or not has_no_trend(curve):
            continue
        level = median(curve.values)
        if float(np.ptp(smoothed(curve.values))) <= NOISY * abs(level):
            unit = "epochs" if chart.context.get("clock") == "epoch" else "steps"
            span = int(curve.steps[-1] - curve.steps[0])
            message = f"{curve.name} has stayed at {number_text(level)} for {span} {unit}, since the start"
            yield shown(NotLearning, curve, 0, "warning", message, value=level)
            return


def unlearnable(chart: Chart) -> Iterator[Symptom]:
    """Validation loss and accuracy are at chance level although training improves, or after many epochs.

    >>> chart = Chart.of(loss=[2.3 - 0.07 * step for step in range(10)], val_loss=[1.79, 1.80] * 5,
    ...     val_accuracy=[0.2, 0.22] * 5, context={"source": "CSV", "clock": "epoch"})
    >>> print(*unlearnable(chart))
    step 0: VA01 validation-anomaly (warning): validation loss is 1.8 and accuracy 0.22: chance level for 6 classes
    """
    train, curve = Curve.of(chart["loss"], "loss"), Curve.of(chart["val_loss"], "validation loss")
    rates = chart["val_accuracy"].values
    late = (chart.context.get("clock") == "epoch" and chart.step >= 20) or rates.size >= 10
    if min(train.values.size, curve.values.size, rates.size) < (6 if late else 8) or is_game(chart):
        return
    half = smoothed(train.values[train.values.size // 2 :])  # a loss that began above chance level and settled there
    guesses = float(np.abs(half - curve.level).max()) < ALIKE * curve.level
    learns = train.level < 0.9 * median(train.values[:3]) and not guesses
    if not (learns or late) or curve.level < 0.97 * curve.start or float(rates.max()) > 1:
        return
    best, now = min(float(smoothed(rates).max()), float(np.percentile(rates, 90))), median(rates[-3:])
    classes = classes_of(curve.level, best, *((FLAT, GUESSED) if learns else (NOISY, 0.5 * GUESSED)))
    if classes:
        message = (
            f"validation loss is {number_text(curve.level)} and accuracy {number_text(now)}: "
            f"chance level for {classes} classes"
        )
        detector: type[Detector] = ValidationAnomaly if learns else NotLearning
        yield shown(detector, curve, 0, "warning", message, value=curve.level)
