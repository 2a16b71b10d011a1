"""What was learned and lost: an accuracy that fell at once, or a validation loss that never returned to its best.

>>> rates = [0.6 + 0.01 * min(step, 25) for step in range(30)] + [0.67, 0.68, 0.70, 0.71, 0.74, 0.73, 0.75, 0.76]
>>> chart = Chart.of(val_accuracy=rates, context={"source": "CSV", "better": {"val_accuracy": "higher"}})
>>> print(*forgotten(chart))
step 30: LO02 loss-divergence (warning): accuracy fell from 0.85 to 0.69 at step 30 and has not recovered
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.curve import Curve, improved, shown
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.overfitting import level_at
from torchdoctor.symptoms.progress import is_game
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

HELD, THEN = 8, 4
"""Values before a drop that the level is taken from, and values after it."""
FAR, NOISES = 0.1, 6
"""Least drop of an accuracy, as a share of a perfect one and as a multiple of its noise."""
BACK = 0.25
"""Share of the drop by which all later values stay below the earlier level."""
CALM = 1.1
"""If the training loss stays below this multiple of its earlier level, only validation got worse."""
LATER, WORSE, NEAR = 4, 1.3, 1.15
"""Evaluations needed after the best, the multiple of the best that all of them exceed, and the multiple below which
another evaluation counts as equally good."""
WORDS = 1e6
"""More tokens than any vocabulary has."""


def forgotten(chart: Chart) -> Iterator[Symptom]:
    """An accuracy fell far at once and stays low up to the end, for a good part of the run."""
    if is_game(chart):
        return
    for name, way in (chart.context.get("better") or {}).items():
        said = name.partition("_")[2]
        if way != "higher" or not any(word.startswith(("acc", "f1")) for word in said.split("_")):
            continue
        evaluated = name.startswith("val_")
        curve = Curve.of(chart[name], said.replace("_", " "))
        place = _lost_at(curve.values)
        if place > 0:
            held, now = (median(part) for part in (curve.values[place - HELD : place], curve.values[place:][:THEN]))
            message = (
                f"{curve.name} fell from {number_text(held)} to {number_text(now)} at step {int(curve.steps[place])} "
                "and has not recovered"
            )
            if evaluated and _training_is_calm(chart, float(curve.steps[place])):
                message = f"validation {message}; the training loss did not rise"
                yield shown(ValidationAnomaly, curve, place, "warning", message, value=now, limit=held)
            else:
                yield shown(LossDivergence, curve, place, "warning", message, value=now, limit=held)
            return


def _training_is_calm(chart: Chart, step: float) -> bool:
    """Whether the training loss is hardly higher after a step than before it.

    >>> rates = [0.6 + 0.01 * min(step, 25) for step in range(30)] + [0.67, 0.68, 0.70, 0.71, 0.74, 0.73, 0.75, 0.76]
    >>> chart = Chart.of(loss=[0.3] * 38, val_accuracy=rates, context={"better": {"val_accuracy": "higher"}})
    >>> print(*forgotten(chart))
    step 30: VA01 validation-anomaly (warning): validation accuracy fell from 0.85 to 0.69 at step 30 and has not ...
    """
    train = Curve.of(chart["loss"], "loss")
    before, after = train.values[train.steps < step][-2 * HELD :], train.values[train.steps >= step]
    return min(before.size, after.size) >= THEN and median(after) < CALM * median(before)


def _lost_at(values: Array) -> int:
    """The index at which an accuracy was lost; -1 if it was not."""
    count = values.size
    if count < 2 * HELD or not 0 <= float(values.min()) < float(values.max()) <= 100:
        return -1
    top = 1.0 if float(values.max()) <= 1 else 100.0
    highest = np.maximum.accumulate(values[::-1])[::-1]  # of all later values
    for place in range(max(HELD, count // 5), count - max(THEN, count // 8) + 1):
        if not float(highest[place]) < float(values[place - HELD : place].max()):
            continue
        held, now = median(values[place - HELD : place]), median(values[place : place + THEN])
        noise = float(np.median(np.abs(np.diff(values[max(0, place - 2 * HELD) : place]))))
        if held - now > max(FAR * top, NOISES * noise) and float(highest[place]) < held - BACK * (held - now):
            return place
    return -1


def worsened(chart: Chart) -> Iterator[Symptom]:
    """Validation stays far above its best, beyond its scatter, and the training loss has not fallen since.

    A single good evaluation may have been luck, unless it was the first.

    >>> losses, evaluations = [0.15, 0.30, 0.31, 0.29, 0.27, 0.18], [0.22, 0.42, 0.42, 0.41, 0.44, 0.40]
    >>> print(*worsened(Chart.of(loss=losses, val_loss=evaluations, context={"source": "CSV"})))
    step 0: LO02 loss-divergence (warning): validation loss rose from 0.22 to 0.41; training loss went from 0.15 to 0.27
    """
    curve, train = Curve.of(chart["val_loss"], "validation loss"), chart["loss"]
    values, best = curve.values, curve.best if curve else 0
    later = values[best + 1 :]
    if later.size < LATER or not train or not float(values.min()) > 0 or is_game(chart):
        return
    lowest, alone = float(values[best]), best > 0 and int(np.sum(values < NEAR * float(values[best]))) < 2
    gap = float(later.min()) - lowest
    if alone or not float(later.min()) > WORSE * lowest or gap < 2 * float(np.std(later)):
        return
    step = int(curve.steps[best])
    then, now = level_at(train, step), level_at(train, int(curve.steps[-1]))
    if now >= then > 0 and not improved(chart, step):
        message = (
            f"validation loss rose from {number_text(lowest)} to {number_text(curve.level)}; "
            f"training loss went from {number_text(then)} to {number_text(now)}"
        )
        yield shown(LossDivergence, curve, best, "warning", message, value=curve.level, limit=WORSE * lowest)


def worse_than_guessing(chart: Chart) -> Iterator[Symptom]:
    """The perplexity at the end is higher than any vocabulary is large.

    >>> chart = Chart.of(loss=[18.2, 20.3, 20.7] * 4, train_ppl=[8e7, 6e8, 1e9] * 4, context={"source": "CSV"})
    >>> print(*worse_than_guessing(chart))
    step 0: LO02 loss-divergence (warning): perplexity is 6e+08 at the end: worse than a uniform guess over all words
    """
    curve = Curve.of(chart["train_ppl" if "train_ppl" in chart else "val_ppl"], "perplexity")
    late = curve.values[-max(3, curve.values.size // 4) :]
    if curve.values.size >= HELD and float(late.min()) > WORDS:
        message = f"perplexity is {number_text(median(late))} at the end: worse than a uniform guess over all words"
        yield shown(LossDivergence, curve, 0, "warning", message, value=median(late), limit=WORDS)
