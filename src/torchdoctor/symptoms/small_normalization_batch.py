"""GP05 small-normalization-batch."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class SmallNormalizationBatch(Detector):
    """BatchNorm takes its statistics from a handful of values, or keeps those of one batch.

    ## What it means
    Mean and variance of a channel are taken over the batch and, in images, over its places. From four values or fewer
    they are noise, and from one they cannot be had: what the network sees in training changes with the company that a
    sample keeps, and in eval mode it sees something else again. The same follows from a `momentum` near 1, the way
    that other frameworks count: the running statistics are then those of the last batch alone. With one near 0
    they never leave their first values.

    ## How it is told apart
    Counted are values a channel: one image of 64 × 64 gives 4,096, and a pair of such is only a note. The largest
    batch counts, so that a short last batch of an epoch is no finding; layers in eval mode are not asked. A momentum
    near 1 is a note where batches are large.

    ## What to do
    A larger batch, or GroupNorm or LayerNorm, which need no batch; several devices: `nn.SyncBatchNorm`. Accumulating
    gradients does not help: each micro-batch is normalized by itself. `momentum=0.1`, where 0.9 is written elsewhere.

    ## How to see that it is cured
    The loss of one batch in train mode and in eval mode is nearly the same.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"mode.batchnorm": {"layers": 3, "most_values": 2}}})
    >>> print(SmallNormalizationBatch().check(chart))  # doctest: +ELLIPSIS
    step 0: GP05 small-normalization-batch (warning): the worst of 3 BatchNorm layers takes its statistics from at ...
    """

    code = "GP05"
    name = "small-normalization-batch"
    reads = ("tensors/grad_norm", "facts/mode.batchnorm", "facts/mode.batchnorm_momentum")
    suggests = ("change-batch-size", "add-normalization")
    references = ("https://arxiv.org/abs/1803.08494",)
    closes_after = 2

    few: int = 4
    """Values a channel that are too few."""
    pair: int = 2
    """Samples that are too few, however many places each has: values of one image are alike."""
    small: int = 256
    """Values a channel up to which that is a warning; of large images it is a note."""
    momentum: float = 0.9
    """Share of the last batch in the running statistics from which they are its own."""
    samples: int = 64
    """Samples of a batch up to which that is a warning."""
    followed: float = 0.5
    """Momentum times steps under which running statistics are still mostly their first values."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the values a channel of the worst layer."""
        known = chart.fact("mode.batchnorm") or {}
        values, samples = known.get("most_values", 0), known.get("most_samples", self.pair + 1)
        pair = samples <= self.pair
        if not 0 < values <= 2 * self.few and not (values and pair):
            return self._forgetful(chart, samples) if known else None
        severity: Severity = "warning" if values <= self.few or (pair and values <= self.small) else "info"
        message = f"{worst_layer(chart)} takes its statistics from at most {values} values a channel"
        if pair:
            message += f", of {samples} samples" if samples > 1 else ", of 1 sample"
        since = chart.facts["mode.batchnorm"].step
        where = (known["worst"],) if "worst" in known else ()
        return self.symptom(chart, severity, message, value=values, limit=self.few, where=where, since=since)

    def _forgetful(self, chart: Chart, samples: int) -> Symptom | None:
        """Running statistics that hold the last batch only, or nothing of any."""
        share = chart.fact("mode.batchnorm_momentum")
        if share is None:
            return None
        since = chart.facts["mode.batchnorm_momentum"].step
        if share >= self.momentum:
            message = f"momentum is {number_text(share)}: eval mode uses the statistics of the last batch alone, "
            message += f"of {samples} samples; 0.1 is usual"
            severity: Severity = "warning" if samples <= self.samples else "info"
            return self.symptom(chart, severity, message, value=share, limit=self.momentum, since=since)
        if share < 1e-3 and share * chart.step < self.followed and chart["val_loss"].count >= 2 and chart.step >= 100:
            message = f"momentum is {number_text(share)}: after {chart.step + 1} steps eval mode still uses the first "
            message += "values of its statistics; 0.1 is usual"
            return self.symptom(chart, "warning", message, value=share, since=since)
        return None


def worst_layer(chart: Chart) -> str:
    """The BatchNorm layer with the fewest values, in a sentence: others may have more."""
    known = chart.fact("mode.batchnorm") or {}
    many = known.get("layers", 1)
    name = f", {chart.called(known['worst'])}," if known.get("worst") else ""
    return f"the worst of {many} BatchNorm layers{name}" if many > 1 else f"a BatchNorm layer{name}"
