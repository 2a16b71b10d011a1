"""missing-skip-connections."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import decay_by_layer


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
    explains = ("gradient-vanishing",)
    prior = -1.5
    suggests = ("add-residuals",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The factor that each layer costs."""
        factor = decay_by_layer(chart, problem)
        if factor >= 3.5:
            yield Evidence(2.0, f"each of the layers divides the gradient by about {factor:.1f}")
        elif factor > 1:
            yield Evidence(3.0, f"many layers divide the gradient by about {factor:.1f} each")
        else:
            yield Evidence(-3.0, "the norm fell in the whole model at once, not through depth")
