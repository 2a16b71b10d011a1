"""missing-normalization."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import gain_by_layer, weight_layers
from torchdoctor.records import number_text
from torchdoctor.symptoms.first_pass import MUFFLED, muffled


class MissingNormalization(Cause):
    """A deep model without normalization layers: nothing holds the scale of its activations.

    ## What it is
    Each layer passes its scale on to the next. In a deep stack small deviations multiply, at the start or as weights
    grow, until activations or gradients are out of range.

    ## How to confirm it
    No BatchNorm, LayerNorm, GroupNorm or RMSNorm among ``model.modules()``, and activations that grow or shrink from
    layer to layer by a factor that stays about the same.

    ## What to change
    LayerNorm (sequences) or BatchNorm (images, batches of 16 and more) after or before each block; RMSNorm and
    normalized queries and keys where attention logits run away.

    ## How to see it cured
    Activations of all layers stay within a factor of ten of each other over the run.

    ## When to stop
    When normalized layers still blow up: then it is the learning rate or the data.
    """

    name = "missing-normalization"
    explains = (
        "activation-explosion",
        "saturated-activations",
        "gradient-explosion",
        "gradient-vanishing",
        "gradient-instability",
        "dead-units",
        "collapsed-output",
        "unexpected-initial-loss",
        "loss-divergence",
        "nan-or-inf",
        "not-learning",
        "slow-learning",
    )
    prior = -3.2
    suggests = ("add-normalization", "initialize", "add-residuals")
    references = ("https://arxiv.org/abs/1502.03167", "https://arxiv.org/abs/1607.06450")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Normalization layers, depth, and what a layer does to the scale."""
        norms, layers = chart.fact("modules.normalized"), weight_layers(chart)
        if not isinstance(norms, int):
            return
        _, share = muffled(chart)
        if share < MUFFLED:
            yield Evidence(CERTAIN, f"normalization layers give {number_text(share)} of their weights' size at first")
            return
        if norms:
            yield Evidence(-4.0, f"the model has {norms} normalization layers")
            return
        if layers < 5:
            yield Evidence(-2.0, f"the model has no normalization, but only {layers} weight layers")
            return
        yield Evidence(1.5, f"none of the {layers} weight layers is followed by a normalization")
        gain, low, high = gain_by_layer(chart, latest=True)
        if not math.isnan(gain) and (gain > 1.8 or gain < 0.5):
            sizes = f"from {number_text(low)} to {number_text(high)}"
            yield Evidence(2.0, f"each layer multiplies activations by {number_text(gain)}, {sizes}")
