"""insufficient-capacity."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import dropout, working_update
from torchdoctor.records import number_text
from torchdoctor.symptoms.suspicious_loss import ONLY_LINEAR
from torchdoctor.symptoms.underfitting import Underfitting, narrowest

TINY = 100
"""Number of parameters below which a model can hardly distinguish anything."""


class InsufficientCapacity(Cause):
    """The model is too small for the task, or has the wrong architecture.

    ## What it is
    The model has learned all that it can represent. Learning rate, gradients and data are fine, but the training loss
    does not fall further.

    ## How to confirm it
    Switch all regularization off and overfit 32 samples. If the loss does not go to zero, capacity or architecture is
    the limit. A model of twice the width then reaches a lower training loss.

    ## What to change
    Double the width first, then increase the depth. Use features or an architecture that fit the data (a linear model
    cannot learn XOR).

    ## How to see it cured
    The training loss falls below its old level, and a gap to the validation loss opens.

    ## When to stop
    If a model four times as large reaches the same loss, noise in the data is the limit.
    """

    name = "insufficient-capacity"
    explains = ("underfitting", "loss-plateau", "slow-learning", "not-learning")
    prior = -1.7
    suggests = ("resize-model", "transfer-learning")
    references = ("https://arxiv.org/abs/2001.08361",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The gap to validation, the size of updates and of the model, and other explanations."""
        if ONLY_LINEAR in (chart.fact("loss.lint") or ()):
            yield Evidence(
                6.0, "there is no activation function between the layers: together they are one linear layer"
            )
        if problem.has("underfitting"):
            yield Evidence(1.2, "training and validation loss are equally high: more data would not help")
            if 0 < (width := narrowest(chart)) <= Underfitting.narrow:
                yield Evidence(3.0, f"all information about a sample passes through a layer of width {width}")
        if problem.has("not-learning"):
            yield Evidence(-1.8, "even a small model learns something at first")
        if problem.has("dead-units", "collapsed-output", "loss-divergence"):
            yield Evidence(-2.5, "the model is in a broken state, whatever its size")
        ratio = working_update(chart)
        if ratio > 1e-4:
            yield Evidence(0.5, f"each step changes the weights by {number_text(ratio)} of their norm")
        elif ratio < 1e-5:
            yield Evidence(-2.0, f"each step changes the weights by only {number_text(ratio)} of their norm")
        if dropout(chart) >= 0.6:
            yield Evidence(-2.0, f"dropout of {number_text(dropout(chart))} alone would explain it")
        yield from _about_the_size(chart)


def _about_the_size(chart: Chart) -> Iterator[Evidence]:
    size, samples = (chart.context.get("model") or {}).get("trainable"), chart.context.get("dataset_size")
    if isinstance(size, int) and isinstance(samples, int) and samples > 0:
        if size < 0.1 * samples:
            yield Evidence(1.5, f"{size:,} parameters for {samples:,} samples")
        elif size > 10 * samples:
            yield Evidence(-1.5, f"{size:,} parameters for {samples:,} samples")
    elif isinstance(size, int) and 0 < size < 1000:
        every = (chart.context.get("model") or {}).get("parameters", size)
        counted = f"{size:,} parameters" if every == size else f"{every:,} parameters, and {size:,} of them are trained"
        yield Evidence(3.0 if size < TINY else 1.0, f"the model has {counted}")
