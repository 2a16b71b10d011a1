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
    """A deep model lacks normalization layers, so nothing controls the scale of its activations.

    ## What it is
    Each layer multiplies the scale of its input. In a deep stack, factors slightly off 1 multiply, at the start or as
    weights grow, until activations or gradients are out of range.

    ## How to confirm it
    No BatchNorm, LayerNorm, GroupNorm or RMSNorm among ``model.modules()``, and activations that grow or shrink by
    about the same factor from layer to layer.

    ## What to change
    LayerNorm (sequences) or BatchNorm (images, batches of 16 or more) before or after each block. If attention logits
    grow without bound, RMSNorm and normalized queries and keys.

    ## How to see it cured
    The activations of all layers stay within a factor of ten of each other during the whole run.

    ## When to stop
    If the normalized model still blows up, the cause is the learning rate or the data.
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
        """Normalization layers, depth, and the factor by which a layer scales activations."""
        norms, layers = chart.fact("modules.normalized"), weight_layers(chart)
        if not isinstance(norms, int):
            return
        _, share = muffled(chart)
        if share < MUFFLED:
            yield Evidence(
                CERTAIN, f"outputs of normalization layers had {number_text(share)} of the expected size at step 0"
            )
            return
        if norms:
            yield Evidence(-4.0, f"the model has {norms} normalization layers")
            return
        if layers < 5:
            yield Evidence(-2.0, f"the model has no normalization, but only {layers} weight layers")
            return
        yield Evidence(1.5, f"the model has {layers} weight layers and no normalization")
        gain, low, high = gain_by_layer(chart, latest=True)
        if not math.isnan(gain) and (gain > 1.8 or gain < 0.5):
            sizes = f"from {number_text(low)} to {number_text(high)}"
            yield Evidence(2.0, f"each layer multiplies activations by {number_text(gain)}, {sizes}")
