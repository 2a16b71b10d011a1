"""GP05 small-normalization-batch."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class SmallNormalizationBatch(Detector):
    """BatchNorm computes its statistics from a handful of values.

    ## What it means
    Mean and variance of a channel are taken over the batch and, in images, over its places. From four values or fewer
    they are noise, and from one they cannot be had: what the network sees in training changes with the company that a
    sample keeps, and in eval mode it sees something else again.

    ## How it is told apart
    Counted are values a channel: one image of 64 × 64 gives 4,096, and a pair of such is only a note. The largest
    batch counts, so that a short last batch of an epoch is no finding; layers in eval mode are not asked.

    ## What to do
    A larger batch, or GroupNorm or LayerNorm, which need no batch; several devices: `nn.SyncBatchNorm`. Accumulating
    gradients does not help: each micro-batch is normalized by itself.

    ## How to see that it is cured
    The loss of one batch in train mode and in eval mode is nearly the same.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"mode.batchnorm": {"layers": 3, "most_values": 2}}})
    >>> print(SmallNormalizationBatch().check(chart))  # doctest: +ELLIPSIS
    step 0: GP05 small-normalization-batch (warning): 3 BatchNorm layers take their statistics from at most 2 values ...
    """

    code = "GP05"
    name = "small-normalization-batch"
    reads = ("tensors/grad_norm", "facts/mode.batchnorm")
    suggests = ("change-batch-size", "add-normalization")
    references = ("https://arxiv.org/abs/1803.08494",)
    closes_after = 2

    few: int = 4
    """Values a channel that are too few."""
    pair: int = 2
    """Samples that are too few, however many places each has: values of one image are alike."""
    small: int = 256
    """Values a channel up to which that is a warning; of large images it is a note."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the values a channel of the worst layer."""
        known = chart.fact("mode.batchnorm") or {}
        values, samples = known.get("most_values", 0), known.get("most_samples", self.pair + 1)
        pair = samples <= self.pair
        if not 0 < values <= 2 * self.few and not (values and pair):
            return None
        severity: Severity = "warning" if values <= self.few or (pair and values <= self.small) else "info"
        message = f"{known['layers']} BatchNorm layers take their statistics from at most {values} values a channel"
        if pair:
            message += f", of {samples} samples" if samples > 1 else ", of 1 sample"
        since = chart.facts["mode.batchnorm"].step
        return self.symptom(chart, severity, message, value=values, limit=self.few, since=since)
