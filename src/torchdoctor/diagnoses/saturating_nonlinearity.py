"""saturating-nonlinearity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import SHARP, breaking_step
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import (
    decay_by_layer,
    is_far_from_extremes,
    saturating_layers,
    signal_lost_by_layer,
)
from torchdoctor.records import Symptom, number_text
from torchdoctor.symptoms.saturated_activations import SaturatedActivations
from torchdoctor.symptoms.target_values import asks_for_class_numbers, is_beyond, output_range


class SaturatingNonlinearity(Cause):
    """Saturated sigmoid or tanh units, or a ReLU at the end of the model, block the gradient.

    ## What it is
    A sigmoid's derivative is at most 1/4, and near 0 when saturated, so each layer shrinks the gradient further. A ReLU
    after the last layer passes no gradient at all if all its inputs are negative, and then nothing ever changes.

    ## How to confirm it
    One of these holds:

    - The gradient norm falls by a factor of four or more per layer, from the last layer to the first.
    - Most values of a layer are beyond ±0.97 (tanh) or outside 0.03 to 0.97 (sigmoid).
    - All outputs and all gradients are exactly zero.

    ## What to change
    Use activations of the ReLU family between layers, and normalization before any sigmoid or tanh that must stay. Use
    no activation after the last layer, or softplus if outputs must be positive.

    ## How to see it cured
    The gradient norms of the first and last layers are within two orders of magnitude.
    """

    name = "saturating-nonlinearity"
    explains = (
        "no-gradient",
        "gradient-vanishing",
        "saturated-activations",
        "collapsed-output",
        "target-anomaly",
        "not-learning",
        "slow-learning",
        "loss-plateau",
        "underfitting",
    )
    prior = -1.9
    suggests = ("use-relu-family", "add-normalization", "initialize")
    references = ("https://proceedings.mlr.press/v9/glorot10a.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The output range, the model's activations, and the factor by which each layer reduces the gradient."""
        if _is_shut(chart):
            yield Evidence(
                CERTAIN, "all outputs and all gradients are exactly zero, as with a ReLU at the end of the model"
            )
            return
        if problem.has("no-gradient"):
            yield Evidence(-4.0, "saturated units leave a small gradient, not none")
        if problem.has("target-anomaly"):
            kind, low, high = output_range(chart)
            least, most = chart["target_min"].latest, chart["target_max"].latest
            if kind and (least < low or most > high):
                given = f"targets range from {number_text(least)} to {number_text(most)}"
                strength = CERTAIN - 5 if asks_for_class_numbers(chart) else CERTAIN
                yield Evidence(strength, f"{given}, but the model ends with {kind}, which cannot output all of them")
                return
            if kind and not chart["target_std"] and is_beyond(chart, high - low):
                yield Evidence(CERTAIN, f"the model ends with {kind}, and the mean error exceeds its output range")
                return
            yield Evidence(-3.0, "the last layer can output all target values")
        yield from _about_the_layers(chart)
        if (pinned := problem.get("saturated-activations")) is not None:
            yield _about_the_extremes(chart, problem, pinned)
        if not problem.has("gradient-vanishing"):
            return
        factor = decay_by_layer(chart, problem)
        if factor >= 3.5:
            yield Evidence(
                3.5, f"each layer divides the gradient by about {factor:.1f}; a sigmoid divides it by 4 or more"
            )
        elif factor > 1:
            yield Evidence(1.5, f"each layer divides the gradient by about {factor:.1f}")
        else:
            yield Evidence(-3.0, "the gradient norm fell in the whole model at once, not layer by layer")


def _about_the_extremes(chart: Chart, problem: Problem, pinned: Symptom) -> Evidence:
    broke = _broken_before(chart, problem, pinned)
    if broke is None:
        return Evidence(1.5, "most values of a hidden layer are saturated")
    text = f"units are saturated since step {pinned.first_step}"
    return Evidence(-2.5, f"{text}, but were not when something broke at step {broke}: saturation is a consequence")


def _broken_before(chart: Chart, problem: Problem, pinned: Symptom) -> int | None:
    """The step at which something broke while units were still far from saturation; else None."""
    broke = breaking_step(problem)
    if not problem.grave(*SHARP) or not broke < pinned.first_step:
        return None
    rows = chart.modules("act_saturated").rows
    before = [row[np.isfinite(row)] for step, row in rows if step < broke][-1:]
    return broke if before and before[0].size and float(before[0].max()) < 0.5 * SaturatedActivations.share else None


def _is_shut(chart: Chart, samples: int = 3) -> bool:
    """Whether outputs and gradients are all zero although the loss is not: the last activation outputs zero.

    A last layer with zero weights outputs zero as well, but its own gradient is not zero.
    """
    outputs, norms = chart["output_rms"].last(samples), chart["grad_norm"].last(samples)
    known = outputs.size == norms.size == samples
    return known and not outputs.any() and not norms.any() and abs(chart["loss"].latest) > 0


def _about_the_layers(chart: Chart) -> Iterator[Evidence]:
    layers = saturating_layers(chart)
    if layers < 3 and "RNN" in (chart.fact("modules.kinds") or ()):
        yield Evidence(1.8, "in a plain RNN, the gradient passes a tanh at each position of the sequence")
    elif layers == 0 and not chart.fact("activations.hidden"):
        yield Evidence(-3.0, "the model uses no sigmoid or tanh module")
    elif is_far_from_extremes(chart):
        yield Evidence(-3.0, "at first, values of tanh were far from saturation, where it is almost linear")
    elif layers >= 3:
        yield Evidence(1.5, f"the model has {layers} sigmoid or tanh layers")
        lost = signal_lost_by_layer(chart)
        if lost > 2:
            yield Evidence(2.5, f"each layer divides the differences between inputs by {lost:.1f}")
