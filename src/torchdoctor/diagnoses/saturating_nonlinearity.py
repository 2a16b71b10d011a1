"""saturating-nonlinearity."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import decay_by_layer


class SaturatingNonlinearity(Cause):
    """Sigmoid or tanh units on their flat ends pass no gradient on.

    ## What it is
    A sigmoid's derivative is at most 1/4, and near 0 when saturated: each layer divides the gradient again.

    ## How to confirm it
    The gradient norm falls by a factor of four or more a layer, on the way from the last to the first.

    ## What to change
    Activations of the ReLU family between layers; normalization in front of those that must stay.

    ## How to see it cured
    Gradient norms of first and last layers are within two orders of magnitude.
    """

    name = "saturating-nonlinearity"
    explains = ("gradient-vanishing",)
    prior = -1.5
    suggests = ("use-relu-family",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The factor that each layer costs."""
        factor = decay_by_layer(chart, problem)
        if factor >= 3.5:
            yield Evidence(3.5, f"each layer divides the gradient by about {factor:.1f}; a sigmoid by 4 or more")
        elif factor > 1:
            yield Evidence(1.5, f"each layer divides the gradient by about {factor:.1f}")
        else:
            yield Evidence(-3.0, "the norm fell in the whole model at once, not through depth")
