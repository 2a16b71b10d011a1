"""bad-initialization."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import (
    gain_by_layer,
    is_far_from_extremes,
    saturating_layers,
    signal_lost_by_layer,
    silent_at_first,
    zeros_at_first,
)
from torchdoctor.diagnoses.findings import update_level
from torchdoctor.diagnoses.unnormalized_inputs import inputs_are_fine
from torchdoctor.records import names_text, number_text

AT_FIRST = ("activation-explosion", "saturated-activations", "unexpected-initial-loss")
SOON = 2
"""Steps within which a finding may be that of the beginning,"""
THROWN = 0.5
"""unless steps of this share of the weights came before it: then little is left of what they began with."""


class BadInitialization(Cause):
    """The weights began at values from which learning cannot start well.

    ## What it is
    All equal (units that begin alike stay alike), too large (activations grow from layer to layer, and the first
    answers are sure and wrong), too small (the signal dies on its way), or biases that switch units off.

    ## How to confirm it
    Look at step 0, before anything was learnt: the root mean square of each layer's output on one batch should stay
    within 0.1 and 10, and the first loss should be ln C or the variance of y.

    ## What to change
    ``torch.nn.init.kaiming_normal_(w, nonlinearity="relu")`` before ReLU, ``xavier_uniform_`` before tanh and sigmoid,
    orthogonal for recurrent weights, biases at zero, the last layer small. Remove the own initialization first:
    torch's defaults are sound.

    ## How to see it cured
    At step 0 activations are of one scale through the model and the first loss is that of a guess.

    ## When to stop
    When activations at step 0 are of one scale: what comes later has another cause.
    """

    name = "bad-initialization"
    explains = (
        "identical-units",
        "activation-explosion",
        "saturated-activations",
        "dead-units",
        "unexpected-initial-loss",
        "collapsed-output",
        "gradient-explosion",
        "gradient-vanishing",
        "no-gradient",
        "not-learning",
        "slow-learning",
        "nan-or-inf",
        "gradient-instability",
        "loss-divergence",
        "loss-plateau",
        "underfitting",
    )
    prior = -1.8
    suggests = ("initialize", "add-normalization")
    references = ("https://proceedings.mlr.press/v9/glorot10a.html", "https://arxiv.org/abs/1502.01852")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Equal rows, the signal at the first sample, and whether the trouble was there at once."""
        if problem.has("identical-units"):
            yield Evidence(CERTAIN, "all units of a layer began with the same weights")
        if zeros := all_zero(chart, problem):
            yield Evidence(CERTAIN, f"{names_text(zeros)}: all zeros, with a gradient of exactly zero: they stay so")
        yield from _about_the_scale(chart, problem)
        yield from _about_the_signal(chart, problem)
        found = [symptom for name in AT_FIRST if (symptom := problem.get(name)) is not None]
        first = min((symptom.first_step for symptom in found), default=SOON + 1)
        moved = update_level(chart, first)
        if first <= SOON and moved > THROWN:
            yield Evidence(-2.0, f"weights had moved by {number_text(moved)} of themselves before it was seen")
        elif first <= SOON:
            if inputs_are_fine(chart):
                yield Evidence(4.0, f"{found[0].name} was there at the start, with inputs of a usual size")
            else:
                yield Evidence(-1.0, f"{found[0].name} was there at the start, but the inputs are not of a usual size")
        elif problem.first_step > 50:
            yield Evidence(-3.0, f"it began at step {problem.first_step}, long after the start")


def all_zero(chart: Chart, problem: Problem) -> list[str]:
    """Weights that are all zero, of those whose gradient is exactly zero at every sample."""
    found, norms = problem.get("no-gradient"), chart.tensors("weight_norm").latest
    if found is None or norms.size != len(chart.names):
        return []
    return [name for name, norm in zip(chart.names, norms.tolist(), strict=True) if norm == 0 and name in found.where]


def _about_the_scale(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    gain, low, high = gain_by_layer(chart)
    text = f"at the first sample each layer multiplied activations by {number_text(gain)}"
    sizes = f"from {number_text(low)} to {number_text(high)}"
    if gain > 3 and high > 100:
        yield Evidence(3.0, f"{text}, {sizes}")
    elif 0 < gain < 0.2:
        yield Evidence(2.5, f"{text}, {sizes}")
    elif not math.isnan(gain) and not problem.has(*AT_FIRST) and not silent_at_first(chart):
        yield Evidence(-1.2, text)
    entry = chart["entry_rms"].first
    if low < 0.01 * entry and inputs_are_fine(chart):
        yield Evidence(3.0, f"the first layer made {number_text(low)} of inputs of size {number_text(entry)}")


def _about_the_signal(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    vanishing = problem.get("gradient-vanishing")
    if vanishing is not None and vanishing.message.startswith("before the first step each layer"):
        yield Evidence(4.5, vanishing.message)
    lost = signal_lost_by_layer(chart)
    if lost > 5 and (not saturating_layers(chart) or is_far_from_extremes(chart)):
        yield Evidence(4.0, f"at the first sample each layer divided what depends on the input by {number_text(lost)}")
    dead = problem.get("dead-units")
    where = dead.where[0] if dead is not None and dead.where else ""
    zeros = zeros_at_first(chart, where)
    if zeros > 0.9:
        yield Evidence(
            6.0, f"{100 * zeros:.0f} % of the values of {chart.called(where)} were zero before the first step"
        )
    elif dead is None and (silent := silent_at_first(chart)) and inputs_are_fine(chart):
        yield Evidence(6.0, f"{chart.called(silent)} gave nothing but zeros before the first step, whatever came in")
    elif zeros < 0.8:
        yield Evidence(-1.5, f"only {100 * zeros:.0f} % of the values of {chart.called(where)} were zero at first")
