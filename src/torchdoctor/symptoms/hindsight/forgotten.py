"""What was learned and lost: a metric that fell at once, or a validation loss that never returned to its best.

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
from torchdoctor.symptoms.hindsight.curve import Curve, another_gained, improved, metrics_of_validation, shown
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
MOST, TWICE, SWINGS = 0.6, (0.5, 1.0), 2
"""Least loss of any other metric, by its best later value: as a share of what it had gained, as a share of its level
(half of it, or its double if lower is better), and as a multiple of its largest earlier loss."""
GENERATED = frozenset({"fid", "fid50", "fid50k", "kid", "kid50", "kid50k"})
"""Words in the names of the metrics by which the images of a generator are judged."""
CALM = 1.1
"""If the training loss stays below this multiple of its earlier level, only validation got worse."""
LATER, WORSE, NEAR = 4, 1.3, 1.15
"""Evaluations needed after the best, the multiple of the best that all of them exceed, and the multiple below which
another evaluation counts as equally good."""
WORDS = 1e6
"""More tokens than any vocabulary has."""


def forgotten(chart: Chart) -> Iterator[Symptom]:
    """An accuracy fell far at once and stays low up to the end, for a good part of the run; so may another metric.

    >>> errors = [100 - 2.5 * min(step, 30) for step in range(36)] + [150.0] * 8
    >>> print(*forgotten(Chart.of(val_wer=errors, context={"better": {"val_wer": "lower"}})))
    step 36: LO02 loss-divergence (warning): wer rose from 25 to 150 at step 36 and has not recovered
    """
    game, judged = is_game(chart), metrics_of_validation(chart)
    for name, way in (chart.context.get("better") or {}).items():
        said = name.partition("_")[2]
        words = said.split("_")
        if game and GENERATED.isdisjoint(words):
            continue
        evaluated = name.startswith("val_")
        curve = Curve.of(chart[name], said.replace("_", " "))
        if way == "higher" and any(word.startswith(("acc", "f1")) for word in words):
            place = _lost_at(curve.values)
        else:
            place = _crashed_at(curve.values, lower=way == "lower") if name in judged else -1
            place = -1 if place > 0 and another_gained(chart, name, int(curve.steps[place - 1])) else place
        if place > 0:
            held, now = (median(part) for part in (curve.values[place - HELD : place], curve.values[place:][:THEN]))
            message = (
                f"{curve.name} {'rose' if way == 'lower' else 'fell'} from {number_text(held)} to {number_text(now)} "
                f"at step {int(curve.steps[place])} and has not recovered"
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


def _crashed_at(values: Array, *, lower: bool) -> int:
    """The index at which a metric of any range lost most of what it had gained, for good; -1 if there is none.

    Metrics of small validation sets swing, so even the best of all later values must be far beyond earlier swings.

    >>> rising = np.array([*np.linspace(0.0, 0.7, 20), *[0.05] * 8])
    >>> swinging = np.array([0.1, 0.6, 0.7, 0.4] * 5 + [0.05] * 8)
    >>> _crashed_at(rising, lower=False), _crashed_at(rising[::-1], lower=False), _crashed_at(swinging, lower=False)
    (20, -1, -1)
    """
    count = values.size
    if count < 2 * HELD:
        return -1
    turned = -values if lower else values  # so that higher is better
    later = np.maximum.accumulate(turned[::-1])[::-1]
    swings = np.maximum.accumulate(np.maximum.accumulate(turned) - turned)
    for place in range(max(HELD, count // 5), count - max(THEN, count // 8) + 1):
        held = median(turned[place - HELD : place])
        noise = float(np.median(np.abs(np.diff(turned[max(0, place - 2 * HELD) : place]))))
        least = max(MOST * (held - median(turned[:3])), TWICE[lower] * abs(held), NOISES * noise)
        if held - float(later[place]) > max(least, SWINGS * float(swings[place - 2])):
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
