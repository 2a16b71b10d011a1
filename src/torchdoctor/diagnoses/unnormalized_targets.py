"""unnormalized-targets."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import breaking_step
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.target_anomaly import TargetAnomaly
from torchdoctor.symptoms.target_values import is_faint, is_lost, leap_of_size

GREW = 10.0
"""Factor by which targets must have grown since the start to count as made by the model itself."""


class UnnormalizedTargets(Cause):
    """The scale of the targets is far from that of an untrained model's outputs.

    ## What it is
    An untrained model outputs values near 0. Targets in the thousands give a squared loss of millions: with plain SGD
    the first steps ruin the weights, and with Adam the outputs need thousands of small steps to reach the targets.

    ## How to confirm it
    Compare ``y.mean(), y.std()`` with those of the first outputs. Divide the targets by their standard deviation: loss
    and gradient shrink together, and the problem is gone.

    ## What to change
    Train on ``y = (y - mean) / std`` and invert it for predictions, or train on the logarithm of y if it spans several
    orders of magnitude. At least, initialize the bias of the last layer to ``y.mean()``.

    ## How to see it cured
    The first loss is about 1, and the outputs reach the scale of the targets within a few hundred steps.

    ## When to stop
    If targets have standard deviation 1 and the problem remains, their scale was not the cause.
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
        """Whether targets changed their size when something broke; else their size compared with the first outputs."""
        leap = leap_of_size(chart)
        if leap.last < breaking_step(problem) <= leap.since:
            sizes = f"{number_text(leap.before)} up to step {leap.last}, and {number_text(leap.now)}"
            yield Evidence(CERTAIN, f"targets had a root mean square of {sizes} from step {leap.since} on")
        else:
            yield from _from_the_start(chart, problem)


def _from_the_start(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """The size of the targets compared with that of the first outputs."""
    size, output = target_size(chart), chart["output_rms"].first
    text = f"targets have a root mean square of {number_text(size)}, the first outputs had {number_text(output)}"
    if is_faint(chart):
        high = number_text(chart["target_max"].latest)
        yield Evidence(CERTAIN, f"the targets are 0 or {high}, but a binary loss expects 0 or 1")
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
        text = f"a first {chart.fact('loss.kind')} loss of {first} implies targets of size {number_text(size)}"
    if math.isnan(size):
        return
    if math.hypot(chart["target_mean"].first, chart["target_std"].first) < size / GREW:
        yield Evidence(-3.0, "the targets were small at first and grew during training: the model produces them itself")
    elif problem.has("target-anomaly") and size < TargetAnomaly.tiny and is_lost(chart, size):
        yield Evidence(CERTAIN, f"{text}: the outputs are far too large for such small targets")
    elif size > 30 and not size < 10 * output:
        yield Evidence(CERTAIN if size > 1000 else 6.5, text)
    elif size > 10 and not size < 10 * output:
        yield Evidence(3.5, text)
    else:
        yield Evidence(-4.0, text)


def _implied_size(chart: Chart) -> float:
    """The size of targets that the first loss implies; NaN if it implies none."""
    first = chart["loss"].first
    if chart.fact("loss.reduction") == "mean" and first > 0:
        match chart.fact("loss.kind"):
            case "mse":
                return math.sqrt(first)
            case "l1":
                return first
    return math.nan


def target_size(chart: Chart) -> float:
    """The root mean square of float targets; NaN if unknown."""
    return math.hypot(last_level(chart["target_mean"]), last_level(chart["target_std"]))
