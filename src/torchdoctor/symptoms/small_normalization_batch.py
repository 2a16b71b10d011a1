"""GP05 small-normalization-batch."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class SmallNormalizationBatch(Detector):
    """BatchNorm computes its statistics from only a few values, or keeps those of the last batch alone.

    ## What it means
    The mean and variance of a channel are computed over the batch and, for images, over all positions. From four values
    or fewer they are noise, and from one they cannot be computed: in training, the output for a sample depends on the
    other samples in its batch, and eval mode gives yet another output. A `momentum` near 1, as in other frameworks, has
    the same effect: the running statistics are those of the last batch alone. With a `momentum` near 0 they never leave
    their initial values.

    ## How it is told apart
    Values per channel are counted: one image of 64 × 64 gives 4,096, so a batch of two such images is only info. The
    largest batch counts, so a short last batch of an epoch is not reported. Layers in eval mode are not judged. A
    momentum near 1 is info if batches are large.

    ## What to do
    Use a larger batch, or GroupNorm or LayerNorm, which do not depend on the batch; with several devices,
    `nn.SyncBatchNorm`. Accumulating gradients does not help: each micro-batch is normalized separately. What other
    frameworks write as a momentum of 0.9 is `momentum=0.1` in PyTorch.

    ## How to see that it is cured
    The loss of a batch is nearly the same in train mode and in eval mode.

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
    """Values per channel up to which it is a warning; up to twice as many are info."""
    pair: int = 2
    """Samples that are too few, however many positions each has: the values of one image are similar."""
    small: int = 256
    """Values per channel up to which so few samples are a warning; with more they are info."""
    momentum: float = 0.9
    """Momentum from which the running statistics count as those of the last batch alone."""
    samples: int = 64
    """Samples per batch up to which such a momentum is a warning; with more it is info."""
    followed: float = 0.5
    """Momentum times steps below which the running statistics are still mostly their initial values."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test the values per channel of the worst layer, then the momentum."""
        known = chart.fact("mode.batchnorm") or {}
        values, samples = known.get("most_values", 0), known.get("most_samples", self.pair + 1)
        pair = samples <= self.pair
        if not 0 < values <= 2 * self.few and not (values and pair):
            return self._forgetful(chart, samples) if known else None
        severity: Severity = "warning" if values <= self.few or (pair and values <= self.small) else "info"
        message = f"{worst_layer(chart)} takes its statistics from at most {values} values per channel"
        if pair:
            message += f", of {samples} samples" if samples > 1 else ", of 1 sample"
        since = chart.facts["mode.batchnorm"].step
        where = (known["worst"],) if "worst" in known else ()
        return self.symptom(chart, severity, message, value=values, limit=self.few, where=where, since=since)

    def _forgetful(self, chart: Chart, samples: int) -> Symptom | None:
        """Running statistics that hold only the last batch, or still their initial values."""
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
            message = f"momentum is {number_text(share)}: after {chart.step + 1} steps eval mode still uses mostly "
            message += "the initial statistics; 0.1 is usual"
            return self.symptom(chart, "warning", message, value=share, since=since)
        return None


def worst_layer(chart: Chart) -> str:
    """Words for the BatchNorm layer with the fewest values; others may have more."""
    known = chart.fact("mode.batchnorm") or {}
    many = known.get("layers", 1)
    name = f", {chart.called(known['worst'])}," if known.get("worst") else ""
    return f"the worst of {many} BatchNorm layers{name}" if many > 1 else f"a BatchNorm layer{name}"
