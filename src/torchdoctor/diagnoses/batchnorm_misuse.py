"""batchnorm-misuse."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import number_text
from torchdoctor.symptoms.small_normalization_batch import worst_layer
from torchdoctor.symptoms.validation_inputs import first_statistics

FEW, ENOUGH = 4, 16
"""Values a channel that are too few, and that are enough to acquit."""
PAIR = 2
"""Samples that are too few, however many places each has."""


class BatchnormMisuse(Cause):
    """BatchNorm works on batches that are too small or mixed.

    ## What it is
    Its mean and variance come from the batch. From a few values they are noise; from batches that mix domains (real
    and generated, several tasks) they fit neither. In eval mode the stored averages are used, and differ; with a
    `momentum` near 1 they are those of the last batch, with one near 0 they never move.

    ## How to confirm it
    The loss of one batch in train mode and in eval mode: far apart, it is BatchNorm. With GroupNorm instead, the gap
    closes.

    ## What to change
    A batch of 16 or more, `nn.GroupNorm(32, channels)`, `nn.SyncBatchNorm` on several devices.

    ## How to see it cured
    Train and eval mode agree on the same batch, and validation loses its spikes.
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
        """How many values a channel its layers have."""
        known = chart.fact("mode.batchnorm")
        if known:
            values = known["most_values"]
            share = chart.fact("mode.batchnorm_momentum")
            if first_statistics(chart) > 0.5:
                text = f"its running statistics are still {first_statistics(chart):.0%} what they began with"
                yield Evidence(CERTAIN if problem.has("validation-anomaly") else 3.0, text)
            elif share is not None and not 1e-3 <= share < 0.9:
                text = f"the momentum of its BatchNorm layers is {number_text(share)}, and 0.1 is usual"
                yield Evidence(CERTAIN if problem.has("small-normalization-batch") else 3.0, text)
            elif values <= FEW or known.get("most_samples", FEW) <= PAIR:
                text = f"{worst_layer(chart)} has at most {values} values a channel"
                yield Evidence(CERTAIN if problem.has("small-normalization-batch") else 3.0, text)
            elif values >= ENOUGH:
                yield Evidence(-2.0, f"its BatchNorm layers have up to {values} values a channel")
            else:
                yield Evidence(1.0, f"{worst_layer(chart)} has at most {values} values a channel")
        elif chart.fact("mode.whole") is not None:
            yield Evidence(-6.0, "no BatchNorm layer computes statistics of its batch")
