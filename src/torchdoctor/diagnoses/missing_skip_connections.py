"""missing-skip-connections."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import (
    decay_by_layer,
    is_far_from_extremes,
    saturating_layers,
    signal_lost_by_layer,
    weight_layers,
)
from torchdoctor.diagnoses.findings import has_attention

AT_ONCE = 60
"""Steps within which effects of the architecture show up: samples are dense there."""


class MissingSkipConnections(Cause):
    """A deep stack lacks residual connections, so the gradient must pass through every layer.

    ## What it is
    Each layer shrinks the gradient slightly; over many layers this adds up to orders of magnitude.

    ## How to confirm it
    The model has many layers and no shortcuts, and each layer reduces the gradient norm by the same factor.

    ## What to change
    ``x + layer(x)`` with normalization, or an initialization that preserves the scale (He, Xavier, orthogonal).

    ## How to see it cured
    The gradient norms of the first and last layers are within two orders of magnitude.
    """

    name = "missing-skip-connections"
    explains = (
        "gradient-vanishing",
        "collapsed-output",
        "not-learning",
        "slow-learning",
        "loss-plateau",
        "underfitting",
    )
    prior = -1.8
    suggests = ("add-residuals", "add-normalization")
    references = ("https://arxiv.org/abs/1512.03385",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The factor by which each layer reduces gradient or signal, and the number of layers."""
        layers = weight_layers(chart)
        if 0 < layers < 6:
            yield Evidence(-2.5, f"the model has only {layers} weight layers")
        if not problem.has("gradient-vanishing"):
            if layers >= 10 and not chart.fact("modules.normalized"):
                yield Evidence(1.5, f"the model has {layers} weight layers and no normalization")
                lost = signal_lost_by_layer(chart)
                if problem.has("collapsed-output") and lost > 1.3:
                    yield Evidence(
                        3.0, f"each layer divides the differences between inputs by {lost:.1f} from step 0 on"
                    )
            return
        if has_attention(chart):
            yield Evidence(-2.5, "the model has attention, and such blocks usually have shortcuts")
        if _came_later(chart, problem):
            yield Evidence(-2.0, "gradients were fine at first, but depth shrinks them from the first step on")
        if saturating_layers(chart) >= 3 and not is_far_from_extremes(chart):
            yield Evidence(-1.0, "the layers are sigmoid or tanh, which shrink gradients more than depth does")
        factor = decay_by_layer(chart, problem)
        if factor >= 3.5:
            yield Evidence(2.0, f"each layer divides the gradient by about {factor:.1f}")
        elif factor > 1:
            yield Evidence(3.0, f"each of many layers divides the gradient by about {factor:.1f}")
        else:
            yield Evidence(-3.0, "the gradient norm fell in the whole model at once, not layer by layer")


def _came_later(chart: Chart, problem: Problem) -> bool:
    """Whether the gradient vanished only later, although the first samples, which are dense, would have shown it."""
    vanished, rows = problem.get("gradient-vanishing"), chart.tensors("grad_norm").rows
    seen = bool(rows) and rows[0][0] < AT_ONCE / 3
    return vanished is not None and vanished.first_step > AT_ONCE and seen
