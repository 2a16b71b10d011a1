"""Overfitting seen in metrics: accuracies move apart, validation falls, or only training is nearly perfect."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.curve import Curve, another_gained, climbs, metrics_of_validation, shown
from torchdoctor.symptoms.overfitting import Overfitting, level_at, smoothed
from torchdoctor.symptoms.progress import is_game

FEW = 10
"""Evaluations needed to see that a metric falls, if a validation loss is logged as well."""
METRICS = ("val_acc", "val_map", "val_f1", "val_iou", "val_miou", "val_dice", "val_auc", "val_bleu")
"""Metrics by which models are commonly selected."""
OTHER, NOISES, SWINGS = 0.25, 4, 2
"""Least share of its best that any other metric must have lost, and least multiples of its noise and of its largest
loss before."""
APART = 0.15
"""Least difference between training and validation accuracy at the end, if nothing else is known."""
SHORT = 8
"""Number of epochs below which only accuracies that move apart are looked for."""


def unlearns(chart: Chart) -> Iterator[Symptom]:
    """The validation accuracy lost a third of its gain while the training loss fell.

    If a validation loss is logged, it must be above its best, and the metric must have lost a quarter of its value; so
    must a metric other than accuracy have, since those of small validation sets swing.

    >>> scores = [0.5 + 0.02 * min(step, 13) - 0.006 * max(step - 15, 0) for step in range(40)]
    >>> chart = Chart.of(loss=[0.7 - 0.01 * step for step in range(40)], val_accuracy=scores,
    ...     context={"source": "CSV", "better": {"val_accuracy": "higher"}})
    >>> print(*unlearns(chart))
    step 13: GE01 overfitting (warning): validation accuracy fell from 0.76 at step 13 to 0.625 while the training ...
    """
    held_out = chart["val_loss"].values
    beside = bool(chart["val_loss"].count)
    if is_game(chart) or (beside and (held_out.size < FEW or median(held_out[-3:]) < 1.03 * float(held_out.min()))):
        return
    judged = metrics_of_validation(chart)
    for name, way in (chart.context.get("better") or {}).items():
        series = chart[name]
        plain = way == "higher" and name.startswith(METRICS if beside else "val_acc")
        if not (plain or name in judged) or series.count < (FEW if beside and plain else 16):
            continue
        curve = Curve.of(series, name.removeprefix("val_").replace("_", " "))
        sign = -1 if way == "lower" else 1
        smooth = smoothed(sign * curve.values)
        best = int(np.argmax(smooth))
        highest, now, step = sign * float(smooth[best]), curve.level, int(curve.steps[best])
        lost, gained = sign * (highest - now), sign * (highest - median(curve.values[:3]))
        enough = OTHER * abs(highest) if beside else max(0.33 * gained, (0.05 if plain else OTHER) * abs(highest))
        swing = float((np.maximum.accumulate(smooth) - smooth)[: best + 1].max())
        surely = (2 * curve.noise,) if plain else (NOISES * curve.noise, 0.33 * gained, SWINGS * swing)
        enough = max(enough, *surely)
        falling = 0.6 if not plain else 0.2 if beside else 0.4
        if not lost > enough or sign * climbs(curve.values[best:]) > -falling:
            continue
        trained = _training_gained(chart, name, way, step, int(curve.steps[-1]))
        if not trained or (not plain and another_gained(chart, name, step, loss=True)):
            continue
        message = (
            f"validation {curve.name} {'rose' if way == 'lower' else 'fell'} from {number_text(highest)} at step "
            f"{step} to {number_text(now)} while {trained}"
        )
        yield shown(Overfitting, curve, best, "warning", message, value=now, limit=highest)
        return


def _training_gained(chart: Chart, name: str, way: str, since: int, until: int) -> str:
    """That the training loss fell between two steps, or, if there is none, the training metric improved; "" if not.

    >>> chart = Chart.of(train_dice=[0.5 + 0.02 * step for step in range(20)])
    >>> _training_gained(chart, "val_dice", "higher", 5, 19), _training_gained(chart, "val_dice", "lower", 5, 19)
    ('training dice rose to 0.84', '')
    """
    if chart["loss"]:
        fell = level_at(chart["loss"], until) < 0.95 * level_at(chart["loss"], since)
        return "the training loss fell" if fell else ""
    twin = chart[name.replace("val_", "train_", 1)]
    then, now = level_at(twin, since), level_at(twin, until)
    moved = now < 0.95 * then if way == "lower" else now > 1.05 * then
    said = name.removeprefix("val_").replace("_", " ")
    return f"training {said} {'fell' if way == 'lower' else 'rose'} to {number_text(now)}" if moved else ""


def learnt_by_heart(chart: Chart) -> Iterator[Symptom]:
    """Training accuracy is nearly perfect, validation accuracy low, and its loss far above the training loss.

    >>> chart = Chart.of(loss=[0.41, 0.03, 0.017, 0.015, 0.012], val_loss=[6.8, 8.6, 5.1, 6.7, 6.2],
    ...     train_accuracy=[0.88, 0.99, 0.99, 0.99, 0.99], val_accuracy=[0.26, 0.24, 0.36, 0.35, 0.35])
    >>> print(*learnt_by_heart(chart))
    step 1: GE01 overfitting (warning): training accuracy is 0.99, but validation accuracy is 0.35 with a loss of 6.2
    """
    right, held_out = chart["train_accuracy"].values, Curve.of(chart["val_accuracy"], "accuracy")
    curve, train = Curve.of(chart["val_loss"], "validation loss"), chart["loss"].values
    if min(right.size, held_out.values.size) < 5:
        return
    top = 1.0 if max(float(right.max()), float(held_out.values.max())) <= 1 else 100.0
    known, now = median(right[-3:]) / top, median(held_out.values[-3:]) / top
    message = f"training accuracy is {number_text(known)}, but validation accuracy is {number_text(now)}"
    low = False
    if min(curve.values.size, train.size) >= 5:
        level, best = median(curve.values[-3:]), float(curve.values.min())
        low = now < 0.5 and best > max(1.0, 10 * median(train[-3:])) and level > 0.7 * curve.start
        message += f" with a loss of {number_text(level)}"
    if known > 0.95 and (low or _gains_nothing(right / top, held_out.values / top)):
        yield shown(Overfitting, curve if low else held_out, 1, "warning", message, value=now)


def _gains_nothing(right: Array, held_out: Array, few: int = 12, apart: float = 0.3, gain: float = 0.03) -> bool:
    """Whether validation accuracy has gained nothing since a third of the run, and training is far above it.

    >>> right, held_out = np.linspace(0.5, 0.97, 24), np.array([0.5, 0.53, 0.56, 0.58, *[0.6, 0.59] * 10])
    >>> _gains_nothing(right, held_out), _gains_nothing(right, held_out + 0.2)
    (True, False)
    """
    third = held_out.size // 3
    if held_out.size < few or right.size < few or median(right[-3:]) - median(held_out[-3:]) < apart:
        return False
    then, now = float(held_out[third // 2 : third + 2].max()), median(held_out[-third:])
    return now < then + gain and median(right[-3:]) > median(right[third // 2 : third + 2]) + gain


def parts_ways(chart: Chart) -> Iterator[Symptom]:
    """In a short log, validation accuracy falls while training accuracy rises, and they end far apart.

    >>> chart = Chart.of(train_accuracy=[0.55, 0.58, 0.60], val_accuracy=[0.41, 0.40, 0.38], context={"source": "CSV"})
    >>> print(*parts_ways(chart))
    step 0: GE01 overfitting (warning): validation accuracy fell from 0.41 to 0.38 while training accuracy rose to 0.6
    """
    held_out, train = (Curve.of(chart[name], "accuracy") for name in ("val_accuracy", "train_accuracy"))
    if min(held_out.values.size, train.values.size) < 3 or held_out.values.size >= SHORT:
        return
    top = 1.0 if max(float(held_out.values.max()), float(train.values.max())) <= 1 else 100.0
    first, now, learnt = (float(value) for value in (held_out.values[0], held_out.values[-1], train.values[-1]))
    if climbs(held_out.values) > -0.9 or climbs(train.values) < 0.9 or learnt - now < APART * top:
        return
    if first - now > 0.05 * first:
        message = (
            f"validation accuracy fell from {number_text(first)} to {number_text(now)} "
            f"while training accuracy rose to {number_text(learnt)}"
        )
        yield shown(Overfitting, held_out, 0, "warning", message, value=now, limit=first)
