"""Losses and accuracies that are what guessing among some classes gives.

>>> chart = Chart.of(loss=[0.78 - 0.004 * min(step, 21) for step in range(40)], train_accuracy=[0.53] * 40,
...     context={"source": "CSV", "clock": "epoch"})
>>> print(*at_chance(chart))
step 0: LO04 not-learning (warning): loss is 0.696 and accuracy 0.53 after 40 epochs: guessing among 2 classes
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
"""Share of itself by which a loss may miss what guessing gives, after many epochs."""
NEAR = 0.005
"""The same after few."""
NOISY = 0.01
"""The same for the mean of many noisy batches."""
GUESSED = 0.08
"""How far above chance an accuracy may be by luck, or by the commoner class."""
FEW = range(2, 11)
"""Numbers of classes that people have."""
MOST = 7.0
"""Logarithm of the most classes that people have."""
ODDS = 0.6, 1.5
"""How many times as often as a guess among many classes an accuracy is right that is one."""
CLASSES = frozenset({"cls", "class", "classification", "classifier", "ce", "xent"})
"""Words in the names of losses that are about classes."""
TOUCHES = 0.2
"""Share of evaluations that are what guessing gives, from which on that is a floor."""
BATCHES = 15
"""Noisy losses of batches whose mean tells something."""


def classes_of(level: float, best: float, near: float, above: float, among: Sequence[int] = FEW) -> int:
    """Among how many classes a loss and an accuracy are a guess; 0 where they are none.

    Of more classes than ten, as many as the loss says, the accuracy must be what one in so many is right.

    >>> classes_of(1.79, 0.2, 0.005, 0.08), classes_of(1.79, 0.6, 0.005, 0.08), classes_of(3.177, 0.046, 0.005, 0.08)
    (6, 0, 24)
    """
    fits = (number for number in among if abs(level / math.log(number) - 1) < near and best < 1 / number + above)
    many = round(math.exp(level)) if among is FEW and FEW.stop < math.exp(min(level, MOST)) < math.exp(MOST) else 0
    alike = many and abs(level / math.log(many) - 1) < near and ODDS[0] <= best * many < ODDS[1]
    return next(fits, 0) or (many if alike else 0)


def at_chance(chart: Chart) -> Iterator[Symptom]:
    """Loss and accuracy are what guessing among a few classes gives: after many epochs, or in the mean of batches."""
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
            f"{metrics[0].size} {unit}: guessing among {classes} classes"
        )
        yield shown(NotLearning, curve, 0, "warning", message, value=curve.level)


def _of_two(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """The loss is that of guessing between two, to three digits, or the accuracy is, and neither moves."""
    values, rates = curve.values, chart["train_accuracy"].values
    if values.size < 6 or float(np.ptp(smoothed(values))) > 0.01 * abs(curve.level):
        return
    top = 1.0 if not rates.size or float(rates.max()) <= 1 else 100.0
    guessed = rates.size >= 6 and float(np.abs(rates / top - 0.5).max()) < 0.02
    alone = not rates.size and values.size >= 10 and abs(median(values) / math.log(2) - 1) < 0.003
    if alone or guessed:
        said = f" and accuracy {number_text(median(rates))}" if guessed else ""
        message = f"{curve.name} is {number_text(curve.level)}{said}, and does not move: guessing between two"
        yield shown(NotLearning, curve, 0, "warning", message, value=curve.level)


def _of_many(chart: Chart, _: Curve) -> Iterator[Symptom]:
    """Late in a run, and be it for three records, every loss is that of guessing among ten, a hundred or a thousand.

    >>> chart = Chart.of(loss=[6.9063, 6.9073, 6.9073], context={"source": "CSV", "clock": "step"})
    >>> chart.step = 78_000
    >>> print(*at_chance(chart))
    step 0: LO04 not-learning (warning): loss is 6.91, late in the run: guessing among 1000 classes
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
        message = f"loss is {number_text(median(values))}, late in the run: guessing among {ends.pop()} classes"
        yield shown(NotLearning, Curve.of(series, "loss"), 0, "warning", message, value=median(values))


def _of_batches(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """Losses of batches go neither up nor down, and their mean and the accuracy are what guessing gives.

    >>> chart = Chart.of(loss=[0.68, 0.71, 0.69, 0.70] * 6, val_accuracy=[0.5, 0.51], context={"source": "CSV"})
    >>> print(*at_chance(chart))
    step 0: LO04 not-learning (warning): loss is 0.695 in the mean, accuracy 0.505: guessing among 2 classes
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
            f"{curve.name} is {number_text(level)} in the mean, accuracy {number_text(now)}: "
            f"guessing among {classes} classes"
        )
        yield shown(NotLearning, curve, 0, "warning", message, value=level)


def _of_evaluations(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """Three evaluations or more are a guess to three digits, and the loss, whatever it measures, has gained nothing.

    >>> chart = Chart.of(loss=[210.0, 237.0, 238.0, 239.0, 239.0, 240.0], val_loss=[0.696, 0.6933, 0.6931],
    ...     val_accuracy=[0.496, 0.504, 0.504], context={"source": "CSV"})
    >>> print(*at_chance(chart))
    step 0: LO04 not-learning (warning): validation loss is 0.693 and accuracy 0.504: guessing among 2 classes
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
            f"validation loss is {number_text(level)} and accuracy {number_text(now)}: guessing among {classes} classes"
        )
        yield shown(NotLearning, held_out, 0, "warning", message, value=level)


def _held_out_of_two(chart: Chart, curve: Curve) -> Iterator[Symptom]:
    """Validation has come to rest at what guessing between two gives, and the noisy batches stay around it.

    >>> chart = Chart.of(loss=[0.71, 0.66, 0.70, 0.72] * 10, val_loss=[0.70, 0.72] + [0.6931, 0.6940] * 8,
    ...     context={"source": "CSV"})
    >>> print(*at_chance(chart))
    step 2: LO04 not-learning (warning): validation loss is 0.694 and the loss 0.698 in the mean: guessing between two
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
        said = f"validation loss is {number_text(level)} and the loss {number_text(train)} in the mean"
        if not rests:
            said = f"validation loss comes to {number_text(float(held_out.values.min()))} and never under it"
            said += f", and the loss is {number_text(train)} in the mean"
        yield shown(NotLearning, held_out, 2, "warning", f"{said}: guessing between two", value=level)


def _few_of_two(curve: Curve, held_out: Curve) -> Iterator[Symptom]:
    """A few evaluations that have come to rest at what guessing between two gives, to four digits; training is above.

    >>> chart = Chart.of(loss=[0.748, 0.729, 0.741, 0.739, 0.730, 0.728],
    ...     val_loss=[0.6948, 0.6934, 0.6934, 0.6932, 0.6931, 0.6931], context={"source": "CSV", "clock": "epoch"})
    >>> print(*at_chance(chart))
    step 2: LO04 not-learning (warning): validation loss is 0.693 and the loss 0.73: guessing between two
    """
    late = held_out.values[-(held_out.values.size // 2) :] / math.log(2)
    if float(np.abs(late - 1).max()) < 0.0005 and curve.level > 0.99 * math.log(2):
        said = f"validation loss is {number_text(held_out.level)} and the loss {number_text(curve.level)}"
        yield shown(NotLearning, held_out, 2, "warning", f"{said}: guessing between two", value=held_out.level)


def _touches_a_guess(curve: Curve) -> bool:
    """Whether many evaluations are at what guessing between two gives, and none is under it: better is not known.

    >>> swings = np.array([0.9, 0.699, 0.695, 0.6931, 0.703, 0.6933, 0.77, 0.6935, 0.72, 0.6939, 0.75, 0.6932])
    >>> [_touches_a_guess(Curve("loss", np.arange(12), values)) for values in (swings, swings - 0.005)]
    [True, False]
    """
    shares = curve.values / math.log(2)
    return bool(float(shares.min()) > 0.999 and float(np.mean(shares < 1.003)) >= TOUCHES)


def part_at_rest(chart: Chart) -> Iterator[Symptom]:
    """Of a loss in parts, that of the classes has stayed where it began, within one per cent.

    >>> chart = Chart.of(loss=[700.0, 900.0] * 20, cls_loss=[5.30, 5.31] * 20, box_loss=[694.7, 894.69] * 20,
    ...     context={"source": "CSV"})
    >>> print(*part_at_rest(chart))
    step 0: LO04 not-learning (warning): cls loss has stayed at 5.3 for 39 steps, from the start on
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
            message = f"{curve.name} has stayed at {number_text(level)} for {span} {unit}, from the start on"
            yield shown(NotLearning, curve, 0, "warning", message, value=level)
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
    late = (chart.context.get("clock") == "epoch" and chart.step >= 20) or rates.size >= 10
    if min(train.values.size, curve.values.size, rates.size) < (6 if late else 8) or is_game(chart):
        return
    learns = train.level < 0.9 * median(train.values[:3])
    if not (learns or late) or curve.level < 0.97 * curve.start or float(rates.max()) > 1:
        return
    best, now = min(float(smoothed(rates).max()), float(np.percentile(rates, 90))), median(rates[-3:])
    classes = classes_of(curve.level, best, *((FLAT, GUESSED) if learns else (NOISY, 0.5 * GUESSED)))
    if classes:
        message = (
            f"validation loss is {number_text(curve.level)} and its accuracy {number_text(now)}: "
            f"guessing among {classes} classes"
        )
        detector: type[Detector] = ValidationAnomaly if learns else NotLearning
        yield shown(detector, curve, 0, "warning", message, value=curve.level)
