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
"""Steps within which what the architecture does is seen: samples are dense there."""


class MissingSkipConnections(Cause):
    """A deep stack without residual connections: the gradient has to pass every layer.

    ## What it is
    Each layer scales the gradient a little; over many layers a little becomes orders of magnitude.

    ## How to confirm it
    The gradient norm falls by the same factor a layer, in a model of many layers without shortcuts.

    ## What to change
    ``x + layer(x)`` with normalization; or initialization that keeps the scale (He, Xavier, orthogonal).

    ## How to see it cured
    Gradient norms of first and last layers are within two orders of magnitude.
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
        """The factor that each layer costs, and how many there are."""
        layers = weight_layers(chart)
        if 0 < layers < 6:
            yield Evidence(-2.5, f"the model has only {layers} weight layers")
        if not problem.has("gradient-vanishing"):
            if layers >= 10 and not chart.fact("modules.normalized"):
                yield Evidence(1.5, f"{layers} weight layers follow each other without a normalization")
                lost = signal_lost_by_layer(chart)
                if problem.has("collapsed-output") and lost > 1.3:
                    yield Evidence(3.0, f"each divides what depends on the input by {lost:.1f}, from the first step on")
            return
        if has_attention(chart):
            yield Evidence(-2.5, "blocks with attention have shortcuts as a rule")
        if _came_later(chart, problem):
            yield Evidence(-2.0, "depth divides gradients from the first step on, and it did not")
        if saturating_layers(chart) >= 3 and not is_far_from_extremes(chart):
            yield Evidence(-1.0, "the layers are sigmoid or tanh, which cost more than depth does")
        factor = decay_by_layer(chart, problem)
        if factor >= 3.5:
            yield Evidence(2.0, f"each of the layers divides the gradient by about {factor:.1f}")
        elif factor > 1:
            yield Evidence(3.0, f"many layers divide the gradient by about {factor:.1f} each")
        else:
            yield Evidence(-3.0, "the norm fell in the whole model at once, not through depth")


def _came_later(chart: Chart, problem: Problem) -> bool:
    """Whether the first samples, which are dense, showed nothing of it."""
    vanished, rows = problem.get("gradient-vanishing"), chart.tensors("grad_norm").rows
    seen = bool(rows) and rows[0][0] < AT_ONCE / 3
    return vanished is not None and vanished.first_step > AT_ONCE and seen
