"""memorization."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import has_not_fallen, last_level
from torchdoctor.diagnoses.repeated_batch import are_the_same_batches
from torchdoctor.records import number_text
from torchdoctor.symptoms.early_gap import early_gap
from torchdoctor.symptoms.overfitting import level_at, levels_at
from torchdoctor.symptoms.progress import Progress
from torchdoctor.symptoms.validation_curve import never_followed, step_up, untrained_level
from torchdoctor.symptoms.validation_inputs import comes_unchanged, times_seen

HEART = 0.01
"""Share of the first loss below which the data set counts as memorized: only small data sets get that low."""

OFTEN = 15
"""Epochs after which a model may have memorized the samples and learned nothing else."""


class Memorization(Cause):
    """The model memorizes a small data set.

    ## What it is
    The model has enough parameters to store the samples instead of learning what they have in common.

    ## How to confirm it
    The training loss goes toward zero, far below the best validation loss. It drops at the start of each epoch.

    ## What to change
    Use more data, augmentation, a smaller or more regularized model, or stop at the best step.

    ## How to see it cured
    Training and validation loss fall together for longer.

    ## When to stop
    If no regularization improves the best validation loss any more, only more data helps.
    """

    name = "memorization"
    explains = ("overfitting", "validation-anomaly", "suspiciously-low-loss", "double-descent")
    prior = 0.0
    suggests = ("keep-training", "stop-at-best", "augment-data", "raise-dropout", "more-data", "ensemble")
    references = ("https://arxiv.org/abs/1611.03530",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How far the training loss is below the best validation loss, and how often samples were seen."""
        if not problem.has("overfitting", "validation-anomaly", "double-descent"):
            yield Evidence(-1.5, "the validation loss shows no sign of it")
        if problem.has("nan-or-inf") and not problem.has("overfitting"):
            yield Evidence(-3.0, "memorization does not make values non-finite")
        if chart["val_loss"].nonfinite and not math.isfinite(chart["val_loss"].latest):
            yield Evidence(-3.0, "the validation loss is not finite: that is a numerical problem, not memorization")
        yield from _about_the_curves(chart)
        yield from _about_the_batches(chart, problem)
        base = chart["loss"].baseline(128)
        train = base.recent if base else last_level(chart["loss"])
        if "source" in chart.context:  # the values are far apart: a median of many would be out of date
            train = last_level(chart["loss"], max(1, min(20, chart["loss"].count // 10)))
        best = chart["val_loss"].lowest
        if math.isfinite(best) and best > 0 and chart["loss"]:
            if 0 <= train < HEART * chart["loss"].first:
                yield Evidence(3.0, f"the training loss is {number_text(train)}: hardly anything is left to learn")
            elif 0 <= train < 0.25 * best:
                low = number_text(train)
                yield Evidence(1.8, f"the training loss is {low}, but the best validation loss is {number_text(best)}")
            elif train > 0.75 * best:
                yield Evidence(-1.0, f"the training loss is still {number_text(train)}, near the best validation loss")


def _about_the_batches(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if are_the_same_batches(chart, problem):
        yield Evidence(-2.0, "the same batches come again and again: the model can only memorize them")
        return  # the data set is larger than what the model was given
    size, samples = (chart.context.get("model") or {}).get("trainable"), chart.context.get("dataset_size")
    if isinstance(size, int) and isinstance(samples, int) and size > 10 * samples:
        yield Evidence(0.8, f"{size:,} parameters for {samples:,} samples")


def far_from_the_start(chart: Chart, times: float = 10.0) -> bool:
    """Whether every validation loss was many times the first training loss: then the evaluation itself is wrong."""
    values, train = chart["val_loss"].values, chart["loss"]
    if not values.size or not train or "source" in chart.context:  # a log may begin late
        return False
    return float(values.min()) > times * Progress.of(train).start > 0


def behind_while_new(chart: Chart, looks: int = 4) -> bool:
    """Whether validation was never better than an untrained model, though training learned from samples all new to it.

    Samples that come for the first time are as new to the model as those of validation: nothing is memorized yet.

    >>> chart = Chart.of(loss=[max(0.1, 2.3 - 0.05 * step) for step in range(300)])
    >>> for step in range(0, 300, 12):
    ...     chart.put(step, "input_again", 0.0 if step < 100 else 0.3)
    >>> for step in (90, 180, 270):
    ...     chart.put(step, "val_loss", 2.3)
    >>> behind_while_new(chart)
    True
    """
    again, first = chart["input_again"], chart["val_loss"].steps[:1]
    if not first.size or again.count != again.values.size or not comes_unchanged(chart) or not never_followed(chart):
        return False
    before = again.values[again.steps <= first[0]]
    learned = level_at(chart["loss"], int(first[0])) < 0.5 * Progress.of(chart["loss"]).start
    return before.size >= looks and not before.any() and learned


def _about_the_curves(chart: Chart) -> Iterator[Evidence]:
    """Whether the training loss falls and stays above zero, and whether validation followed it at first."""
    if chart["loss"].latest < 0:
        yield Evidence(-3.0, "the loss is below zero, which memorization does not explain")
    if has_not_fallen(chart):
        yield Evidence(-3.0, "the training loss has not fallen")
    if chart["loss"] and step_up(chart) is not None:
        yield Evidence(-4.0, "validation got much worse between two evaluations: memorization takes longer")
    times = times_seen(chart)
    if early_gap(chart) is not None or behind_while_new(chart):
        yield Evidence(-3.0, "the gap was there before any sample was seen twice: nothing was memorized yet")
    if far_from_the_start(chart):
        yield Evidence(-4.0, "the validation loss was always many times the training loss of the untrained model")
    elif times > OFTEN:
        yield Evidence(1.5, f"training has gone through its samples about {number_text(times)} times")
    elif times < 1:
        yield Evidence(-2.0, "training has not yet gone through its samples once")
    if never_followed(chart) and not times > OFTEN:
        best = f"the best validation loss is {number_text(chart['val_loss'].lowest)}"
        base = number_text(untrained_level(chart, levels_at(chart["loss"], chart["val_loss"].steps)))
        yield Evidence(-1.5, f"{best}, not much better than the {base} of an untrained model")
