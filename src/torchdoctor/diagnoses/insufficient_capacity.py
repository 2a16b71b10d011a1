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
"""Parameters under which a model can tell hardly anything apart."""


class InsufficientCapacity(Cause):
    """The model is too small, or of the wrong kind, for what it should learn.

    ## What it is
    It has fitted what it can fit. Learning rate, gradients and data are fine, and the training loss does not go lower.

    ## How to confirm it
    Switch all regularization off and overfit 32 samples. If the loss does not go to zero there, capacity or the
    architecture is the limit. A model of twice the width then reaches a lower training loss.

    ## What to change
    Twice the width first, then depth; features or an architecture that fit the data (a linear model cannot learn XOR).

    ## How to see it cured
    The training loss falls under the old level; a gap to validation opens.

    ## When to stop
    When a model four times as large reaches the same loss: then it is the data's own noise.
    """

    name = "insufficient-capacity"
    explains = ("underfitting", "loss-plateau", "slow-learning", "not-learning")
    prior = -1.7
    suggests = ("resize-model", "transfer-learning")
    references = ("https://arxiv.org/abs/2001.08361",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The gap, the movement of the weights, the size of the model, and what else would explain it."""
        if ONLY_LINEAR in (chart.fact("loss.lint") or ()):
            yield Evidence(6.0, "no activation stands between the layers: together they are one linear layer")
        if problem.has("underfitting"):
            yield Evidence(1.2, "training and validation are equally high: it is not the amount of data")
            if 0 < (width := narrowest(chart)) <= Underfitting.narrow:
                yield Evidence(3.0, f"all that is known of a sample goes through {width} units")
        if problem.has("not-learning"):
            yield Evidence(-1.8, "even a small model learns something at first")
        if problem.has("dead-units", "collapsed-output", "loss-divergence"):
            yield Evidence(-2.5, "the model as it is now is broken, whatever its size")
        ratio = working_update(chart)
        if ratio > 1e-4:
            yield Evidence(0.5, f"weights do move, by {number_text(ratio)} of themselves a step")
        elif ratio < 1e-5:
            yield Evidence(-2.0, f"weights hardly move: {number_text(ratio)} of themselves a step")
        if dropout(chart) >= 0.6:
            yield Evidence(-2.0, f"dropout of {number_text(dropout(chart))} would explain it alone")
        yield from _about_the_size(chart)


def _about_the_size(chart: Chart) -> Iterator[Evidence]:
    size, samples = (chart.context.get("model") or {}).get("trainable"), chart.context.get("dataset_size")
    if isinstance(size, int) and isinstance(samples, int) and samples > 0:
        if size < 0.1 * samples:
            yield Evidence(1.5, f"{size:,} parameters for {samples:,} samples")
        elif size > 10 * samples:
            yield Evidence(-1.5, f"{size:,} parameters for {samples:,} samples")
    elif isinstance(size, int) and 0 < size < 1000:
        yield Evidence(3.0 if size < TINY else 1.0, f"the model has {size:,} parameters")
