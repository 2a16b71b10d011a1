"""batchnorm-misuse."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import number_text, share_text
from torchdoctor.symptoms.small_normalization_batch import worst_layer
from torchdoctor.symptoms.validation_inputs import first_statistics

FEW, ENOUGH = 4, 16
"""Values per channel up to which they are too few, and from which they are enough."""
PAIR = 2
"""Samples up to which they are too few, however many positions each sample has."""


class BatchnormMisuse(Cause):
    """BatchNorm is used with batches that are too small or mixed, or with an unsuitable momentum.

    ## What it is
    BatchNorm takes mean and variance from the batch. With few values they are noise. With batches that mix domains
    (real and generated, several tasks) they fit no domain. Eval mode uses running averages instead, which differ: with
    a `momentum` near 1 they are those of the last batch, with a `momentum` near 0 they never change.

    ## How to confirm it
    Compute the loss of one batch in train mode and in eval mode: if they differ much, BatchNorm is the cause. With
    GroupNorm instead, the gap closes.

    ## What to change
    Use a batch size of 16 or more, `nn.GroupNorm(32, channels)`, or `nn.SyncBatchNorm` on several devices.

    ## How to see it cured
    Train and eval mode give the same loss on the same batch, and the validation loss no longer spikes.
    """

    name = "batchnorm-misuse"
    explains = (
        "small-normalization-batch",
        "validation-anomaly",
        "gradient-instability",
        "underfitting",
        "overfitting",
        "loss-oscillation",
        "not-learning",
        "slow-learning",
    )
    prior = -2.5
    suggests = ("change-batch-size", "add-normalization")
    references = ("https://arxiv.org/abs/1502.03167", "https://arxiv.org/abs/1803.08494")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How many values per channel the BatchNorm layers have, and their running statistics."""
        known = chart.fact("mode.batchnorm")
        if known:
            values = known["most_values"]
            share = chart.fact("mode.batchnorm_momentum")
            if first_statistics(chart) > 0.5:
                still = share_text(first_statistics(chart))
                text = f"BatchNorm's running statistics are still {still} their initial values"
                yield Evidence(CERTAIN if problem.has("validation-anomaly") else 3.0, text)
            elif share is not None and not 1e-3 <= share < 0.9:
                text = f"the momentum of the BatchNorm layers is {number_text(share)}; 0.1 is usual"
                yield Evidence(CERTAIN if problem.has("small-normalization-batch") else 3.0, text)
            elif values <= FEW or known.get("most_samples", FEW) <= PAIR:
                few = f"{values} values per channel" if values <= FEW else f"{known['most_samples']} samples in a batch"
                text = f"{worst_layer(chart)} has at most {few}"
                yield Evidence(CERTAIN if problem.has("small-normalization-batch") else 3.0, text)
            elif values >= ENOUGH:
                yield Evidence(-2.0, f"the BatchNorm layers have up to {values} values per channel")
            else:
                yield Evidence(1.0, f"{worst_layer(chart)} has at most {values} values per channel")
        elif chart.fact("mode.whole") is not None:
            yield Evidence(-6.0, "no BatchNorm layer uses the statistics of its batch")
