"""unnormalized-targets."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.target_anomaly import TargetAnomaly
from torchdoctor.symptoms.target_values import is_faint, is_lost

GREW = 10.0
"""Times by which targets grow that are no data, but what the model foretold before."""


class UnnormalizedTargets(Cause):
    """The targets are on a scale far from what a fresh model puts out.

    ## What it is
    A fresh model answers with values about 0. Targets in thousands make a squared loss of millions: with plain SGD the
    first steps throw the weights away, with Adam the outputs need thousands of small steps to get there.

    ## How to confirm it
    ``y.mean(), y.std()`` against those of the first outputs. Divide the targets by their deviation: loss and gradient
    shrink together, and the trouble is gone.

    ## What to change
    ``y = (y - mean) / std`` for training, and back for predictions; or the logarithm of y where it spans decades; or at
    least the bias of the last layer at ``y.mean()``.

    ## How to see it cured
    The first loss is about 1, and the outputs reach the targets' scale within some hundred steps.

    ## When to stop
    When targets have deviation 1 and the trouble stays: it was not the scale.
    """

    name = "unnormalized-targets"
    explains = (
        "target-anomaly",
        "unexpected-initial-loss",
        "gradient-explosion",
        "gradient-instability",
        "activation-explosion",
        "loss-divergence",
        "nan-or-inf",
        "not-learning",
        "slow-learning",
        "update-ratio-abnormal",
        "weight-growth",
        "saturated-activations",
        "collapsed-output",
        "loss-spike",
        "loss-plateau",
        "underfitting",
    )
    prior = -2.7
    suggests = ("normalize-targets", "scale-lr", "set-clip-norm")
    references = ("https://arxiv.org/abs/1602.07714",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The size of the targets against that of the first outputs."""
        size, output = target_size(chart), chart["output_rms"].first
        text = f"targets have a root mean square of {number_text(size)}, the first outputs had {number_text(output)}"
        if is_faint(chart):
            high = number_text(chart["target_max"].latest)
            yield Evidence(CERTAIN, f"the targets are 0 or {high}, where a binary loss has 0 or 1")
            return
        if math.isnan(size) and chart["part_target_size"]:
            size = last_level(chart["part_target_size"])
            text = f"targets of one part of the loss have a root mean square of {number_text(size)}"
            output = math.nan
        elif math.isnan(size):
            if chart["target_classes"] or chart.fact("loss.classes") is not None:
                yield Evidence(-5.0, "the targets are labels")
                return
            size, first = _implied_size(chart), number_text(chart["loss"].first)
            text = f"a first {chart.fact('loss.kind')} of {first} means targets of size {number_text(size)}"
        if math.isnan(size):
            return
        if math.hypot(chart["target_mean"].first, chart["target_std"].first) < size / GREW:
            yield Evidence(-3.0, "the targets were small at first, and grew as the model did: it makes them itself")
        elif problem.has("target-anomaly") and size < TargetAnomaly.tiny and is_lost(chart, size):
            yield Evidence(CERTAIN, f"{text}: what is asked for is lost in them")
        elif size > 30 and not size < 10 * output:
            yield Evidence(CERTAIN if size > 1000 else 6.5, text)
        elif size > 10 and not size < 10 * output:
            yield Evidence(3.5, text)
        else:
            yield Evidence(-4.0, text)


def _implied_size(chart: Chart) -> float:
    """The size that targets must have for the first loss to be what it was; NaN where that cannot be said."""
    first = chart["loss"].first
    if chart.fact("loss.reduction") == "mean" and first > 0:
        match chart.fact("loss.kind"):
            case "mse":
                return math.sqrt(first)
            case "l1":
                return first
    return math.nan


def target_size(chart: Chart) -> float:
    """The root mean square of float targets; NaN where they are not known."""
    return math.hypot(last_level(chart["target_mean"]), last_level(chart["target_std"]))
