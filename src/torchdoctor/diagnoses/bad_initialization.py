"""bad-initialization."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import update_level
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import (
    gain_by_layer,
    is_far_from_extremes,
    saturating_layers,
    signal_lost_by_layer,
    silent_at_first,
    zeros_at_first,
)
from torchdoctor.diagnoses.frozen_by_mistake import METHOD
from torchdoctor.diagnoses.unnormalized_inputs import inputs_are_fine
from torchdoctor.records import Symptom, names_text, number_text, share_text
from torchdoctor.symptoms.frozen_weights import FRESH
from torchdoctor.symptoms.nan_or_inf import broken_at_the_start

AT_FIRST = ("activation-explosion", "saturated-activations", "unexpected-initial-loss")
SOON = 2
"""A finding of one of these first steps comes from the initial weights,"""
THROWN = 0.5
"""unless a step before it changed the weights by more than this share of their norm."""


class BadInitialization(Cause):
    """The weights start at values from which the model cannot learn well.

    ## What it is
    - Equal weights: units that start equal stay equal.
    - Weights that are too large: activations grow from layer to layer, and the first outputs are confident and wrong.
    - Weights that are too small: the signal fades from layer to layer.
    - Biases that switch units off.
    - Weights that are not finite, perhaps from a broken checkpoint.

    ## How to confirm it
    At step 0, before any update, the root mean square of each layer's output on one batch should be between 0.1 and
    10, and the first loss should be ln C or the variance of y.

    ## What to change
    ``torch.nn.init.kaiming_normal_(w, nonlinearity="relu")`` before ReLU, ``xavier_uniform_`` before tanh and sigmoid,
    orthogonal for recurrent weights, biases at zero, the last layer small. First remove your own initialization:
    PyTorch's defaults are good.

    ## How to see it cured
    At step 0 all layers' activations have the same scale, and the first loss is at chance level.

    ## When to stop
    If all layers' activations have the same scale at step 0, the initialization is not the cause.
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
        """Equal units, the signal at the first sample, and whether the problem was there from the start."""
        if problem.has("identical-units"):
            yield Evidence(CERTAIN, "all units of a layer started with the same weights")
        if zeros := all_zero(chart, problem):
            yield Evidence(CERTAIN, f"{names_text(zeros)}: weights and gradients are exactly zero, so they stay zero")
        if problem.has("nan-or-inf") and (started := broken_at_the_start(chart)):
            verb = "were" if len(started) > 1 else "was"
            yield Evidence(CERTAIN, f"{names_text(started)} {verb} not finite before the first watched step")
        yield from _about_the_scale(chart, problem)
        yield from _about_the_signal(chart, problem)
        found = [symptom for name in AT_FIRST if (symptom := problem.get(name)) is not None]
        earliest = min(found, key=lambda symptom: symptom.first_step, default=None)
        if earliest is not None and earliest.first_step <= SOON:
            yield _about_the_first_steps(chart, earliest)
        elif problem.first_step > 50:
            yield Evidence(-3.0, f"the problem began at step {problem.first_step}, long after the start")


def _about_the_first_steps(chart: Chart, symptom: Symptom) -> Evidence:
    moved = update_level(chart, symptom.first_step)
    if moved > THROWN:
        text = f"a step changed the weights by {number_text(moved)} of their norm before the problem was seen"
        return Evidence(-2.0, text)
    text, frozen = f"{symptom.name} was there from the start", chart.fact("graph.frozen_share", 0.0)
    if frozen >= METHOD and not chart["frozen_fresh"].latest > FRESH:  # adapters, or a head on a trained trunk
        return Evidence(-2.0, f"{text}, but {share_text(frozen)} of the parameters are frozen, as after a training")
    if inputs_are_fine(chart):
        return Evidence(4.0, f"{text}, and the inputs have a normal scale")
    return Evidence(-1.0, f"{text}, but the inputs may not have a normal scale")


def all_zero(chart: Chart, problem: Problem) -> list[str]:
    """Tensors that are all zero, of those whose gradient is exactly zero: one that has none is cut off, not stuck."""
    found, norms = problem.get("no-gradient"), chart.tensors("weight_norm").latest
    gradients = chart.tensors("grad_norm").latest
    if found is None or not norms.size == gradients.size == len(chart.names):
        return []
    stuck = (norms == 0) & (gradients == 0)
    return [name for name, still in zip(chart.names, stuck.tolist(), strict=True) if still and name in found.where]


def _about_the_scale(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    gain, low, high = gain_by_layer(chart)
    text = f"at the first sample, a typical layer multiplied activations by {number_text(gain)}"
    sizes = f"from {number_text(low)} to {number_text(high)}"
    if gain > 3 and high > 100:
        yield Evidence(3.0, f"{text}, {sizes}")
    elif 0 < gain < 0.2:
        yield Evidence(2.5, f"{text}, {sizes}")
    elif not math.isnan(gain) and not problem.has(*AT_FIRST) and not silent_at_first(chart):
        yield Evidence(-1.2, text)
    entry = chart["entry_rms"].first
    if low < 0.01 * entry and inputs_are_fine(chart):
        yield Evidence(3.0, f"the first layer reduced inputs of size {number_text(entry)} to {number_text(low)}")


def _about_the_signal(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    vanishing = problem.get("gradient-vanishing")
    if vanishing is not None and vanishing.message.startswith("before the first step each layer"):
        yield Evidence(4.5, vanishing.message)
    lost = signal_lost_by_layer(chart)
    if lost > 5 and (not saturating_layers(chart) or is_far_from_extremes(chart)):
        yield Evidence(
            4.0,
            f"at the first sample, a typical layer divided the share that depends on the input by {number_text(lost)}",
        )
    dead = problem.get("dead-units")
    where = dead.where[0] if dead is not None and dead.where else ""
    zeros = zeros_at_first(chart, where)
    if zeros > 0.9:
        yield Evidence(
            6.0, f"{100 * zeros:.0f} % of the outputs of {chart.called(where)} were zero before the first step"
        )
    elif dead is None and (silent := silent_at_first(chart)) and inputs_are_fine(chart):
        yield Evidence(6.0, f"{chart.called(silent)} output only zeros before the first step, whatever the input")
    elif zeros < 0.8:
        yield Evidence(
            -1.5, f"only {100 * zeros:.0f} % of the outputs of {chart.called(where)} were zero before the first step"
        )
