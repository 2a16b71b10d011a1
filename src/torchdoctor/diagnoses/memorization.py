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
from torchdoctor.symptoms.progress import Progress
from torchdoctor.symptoms.validation_curve import never_followed, step_up
from torchdoctor.symptoms.validation_inputs import times_seen

HEART = 0.01
"""Share of the first loss under which a data set is known by heart: most that is not small leaves more."""

OFTEN = 15
"""Times through all samples after which a model may know them by heart, and nothing else."""


class Memorization(Cause):
    """The model learns a small data set by heart.

    ## What it is
    Enough parameters to store the samples instead of what they have in common.

    ## How to confirm it
    The training loss goes towards zero, far under the best validation loss; it drops at epoch borders.

    ## What to change
    More data or augmentation; a smaller or more regularized model; stop at the best step.

    ## How to see it cured
    Training and validation loss fall together for longer.

    ## When to stop
    When the best validation loss does not improve any more by any regularization: then only data helps.
    """

    name = "memorization"
    explains = ("overfitting", "validation-anomaly", "suspiciously-low-loss", "double-descent")
    prior = 0.0
    suggests = ("keep-training", "stop-at-best", "augment-data", "raise-dropout", "more-data", "ensemble")
    references = ("https://arxiv.org/abs/1611.03530",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How far the training loss is below the best validation loss, and parameters against samples."""
        if not problem.has("overfitting", "validation-anomaly", "double-descent"):
            yield Evidence(-1.5, "validation does not tell of it")
        if problem.has("nan-or-inf") and not problem.has("overfitting"):
            yield Evidence(-3.0, "what is learnt by heart stays finite")
        if chart["val_loss"].nonfinite and not math.isfinite(chart["val_loss"].latest):
            yield Evidence(-3.0, "the validation loss is not finite: that comes of numbers, not of learning by heart")
        yield from _about_the_curves(chart)
        yield from _about_the_batches(chart, problem)
        base = chart["loss"].baseline(128)
        train = base.recent if base else last_level(chart["loss"])
        if "source" in chart.context:  # points far apart: the level of many of them is that of long ago
            train = last_level(chart["loss"], max(1, min(20, chart["loss"].count // 10)))
        best = chart["val_loss"].lowest
        if math.isfinite(best) and best > 0 and chart["loss"]:
            if 0 <= train < HEART * chart["loss"].first:
                yield Evidence(3.0, f"the training loss is {number_text(train)}: hardly anything is left to learn")
            elif 0 <= train < 0.25 * best:
                low = number_text(train)
                yield Evidence(1.8, f"the training loss is {low}, the best validation loss {number_text(best)}")
            elif train > 0.75 * best:
                yield Evidence(-1.0, f"the training loss is still {number_text(train)}, near the best validation loss")


def _about_the_batches(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if are_the_same_batches(chart, problem):
        yield Evidence(-2.0, "batches come again as they were: by heart is all that can be learnt of them")
    size, samples = (chart.context.get("model") or {}).get("trainable"), chart.context.get("dataset_size")
    if isinstance(size, int) and isinstance(samples, int) and size > 10 * samples:
        yield Evidence(0.8, f"{size:,} parameters for {samples:,} samples")


def far_from_the_start(chart: Chart, times: float = 10.0) -> bool:
    """Whether every evaluation was many times what training began with: no model has to learn to be that wrong."""
    values, train = chart["val_loss"].values, chart["loss"]
    if not values.size or not train or "source" in chart.context:  # a log may begin late
        return False
    return float(values.min()) > times * Progress.of(train).start > 0


def _about_the_curves(chart: Chart) -> Iterator[Evidence]:
    """What a curve of this kind has to do: fall, stay above zero, and take validation along at first."""
    if chart["loss"].latest < 0:
        yield Evidence(-3.0, "a loss below zero is nothing that a model learns by heart")
    if has_not_fallen(chart):
        yield Evidence(-3.0, "the training loss has not fallen")
    if chart["loss"] and step_up(chart) is not None:
        yield Evidence(-4.0, "validation got worse from one evaluation to the next: learning by heart takes longer")
    times = times_seen(chart)
    if early_gap(chart) is not None:
        yield Evidence(-3.0, "the gap was there before any sample had come twice: nothing was known by heart")
    if far_from_the_start(chart):
        yield Evidence(-4.0, "validation was always many times worse than the untrained model was in training")
    elif times > OFTEN:
        yield Evidence(1.5, f"training has gone through its samples about {number_text(times)} times")
    elif times < 1:
        yield Evidence(-2.0, "training has not yet gone through its samples once")
    if never_followed(chart) and not times > OFTEN:
        yield Evidence(-1.5, "validation was never better than the untrained model, from the first evaluation on")
