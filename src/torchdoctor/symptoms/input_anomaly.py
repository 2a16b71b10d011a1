"""DA01 input-anomaly."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.not_learning import chance_level
from torchdoctor.symptoms.progress import SETTLED, Progress

UNEVEN = 100.0
"""Times the usual feature that one feature is: in a sum of them, the others are not heard."""


@dataclass(frozen=True)
class InputAnomaly(Detector):
    """The inputs are off by orders of magnitude, all the same, or not finite.

    ## What it means
    Layers are initialized for inputs of about mean 0 and deviation 1. Pixels from 0 to 255, a column in thousands
    beside others near 1, or values of 1e-4 make the first layer too loud or too quiet: learning is unstable or slow.
    If all samples of a batch are equal, there is nothing to learn from, unless the loss falls all the same.

    ## How it is told apart
    What counts is the scale at the door of the first layer, and of later ones that are fed with an input too (a time, a
    second model's data), after whatever the model does to its inputs, and not where a normalization comes first or
    right after it; where one feature drowns the others, only one that comes first helps. Pixels in [0, 1], one-hot and
    sparse inputs are healthy; so is an offset. Border pixels are constant in every batch: only a batch whose samples
    are all equal is a finding, or one in which a tenth of the samples are blank, again and again.

    ## What to do
    `x = (x - mean) / std` with the training set's mean and deviation, by feature or by channel; or a BatchNorm as first
    layer. For values that are not finite: find the samples, `torch.isfinite(x).all()`.

    ## How to see that it is cured
    `entry_rms` is between 0.1 and 3.

    ## Example
    >>> print(InputAnomaly().check(Chart.of(entry_rms=[140.0] * 3, entry_absmax=[255.0] * 3)))
    step 0: DA01 input-anomaly (warning): inputs of size 140 (largest 255) enter the first layer, which expects about 1
    """

    code = "DA01"
    name = "input-anomaly"
    reads = ("entry_rms", "side_entry_rms", "input_nonfinite", "input_constant", "input_blank")
    suggests = ("normalize-inputs", "clean-data", "add-normalization")
    references = ("https://link.springer.com/chapter/10.1007/978-3-642-35289-8_3",)
    closes_after = 3

    samples: int = 3
    """Samples in a row that must show a scale, or batches of equal samples."""
    large: float = 30.0
    """Root mean square of what enters the first layer: a warning; a third of it is a note."""
    blank: float = 0.1
    """Share of samples without any content, in every batch, that costs the model what their labels say."""
    small: float = 0.01
    """Largest value of what enters the first layer, under which it is too small."""

    def check(self, chart: Chart) -> Symptom | None:
        """Not finite, then all equal, then the scale."""
        wrong = chart["input_nonfinite"]
        if wrong.step == chart.step and wrong.latest > 0:
            message = f"{number_text(wrong.latest)} values of the input are not finite"
            return self.symptom(chart, "warning", message, value=wrong.latest, limit=0.0)
        constant = chart["input_constant"].last(self.samples)
        if constant.size == self.samples and float(constant.min()) == 1.0:
            message = "all samples of a batch are equal: the inputs carry nothing to learn from"
            severity: Severity = "info" if _learns_from_elsewhere(chart) else "warning"
            return self.symptom(chart, severity, message, value=1.0, since=int(chart["input_constant"].steps[0]))
        return self._blank(chart) or self._scale(chart) or self._side(chart)

    def _blank(self, chart: Chart) -> Symptom | None:
        """Samples in which there is nothing, in every batch looked at: files that could not be read."""
        series = chart["input_blank"]
        shares = series.last(self.samples)
        if shares.size < self.samples or not self.blank < float(shares.min()):
            return None
        message = f"{100 * median(shares):.0f} % of the samples are blank: all of their values are one number"
        first = int(series.steps[-shares.size])
        return self.symptom(chart, "warning", message, value=median(shares), limit=self.blank, since=first)

    def _side(self, chart: Chart) -> Symptom | None:
        """The scale at another door: a second input, a time, what a second model is fed."""
        series = chart["side_entry_rms"]
        sizes = series.last(self.samples)
        if sizes.size < self.samples or not float(sizes.min()) > self.large:
            return None
        message = f"a second input of size {number_text(median(sizes))} enters a layer that expects about 1"
        first = int(series.steps[-sizes.size])
        return self.symptom(chart, "warning", message, value=median(sizes), limit=self.large, since=first)

    def _scale(self, chart: Chart) -> Symptom | None:
        sizes, largest = chart["entry_rms"].last(self.samples), chart["entry_absmax"].last(self.samples)
        if sizes.size < self.samples or largest.size < self.samples:
            return None
        ratio = chart["entry_ratio"].latest
        drowns = ratio > UNEVEN and not normalizes_each(chart)
        if chart.fact("data.normalized_first") and not drowns:
            return None
        size, top = median(sizes), median(largest)
        severity: Severity
        if float(sizes.min()) > self.large / 3:
            severity = "warning" if drowns or float(sizes.min()) > self.large else "info"
        elif 0 < top < self.small:
            severity = "warning"
        else:
            return None
        message = f"inputs of size {number_text(size)} (largest {number_text(top)}) enter the first layer, "
        message += "which expects about 1"
        if ratio > UNEVEN:
            message += f"; one feature is {number_text(ratio)} times the usual one"
        first = int(chart["entry_rms"].steps[-sizes.size])
        return self.symptom(chart, severity, message, value=size, limit=self.large, since=first)


def _learns_from_elsewhere(chart: Chart) -> bool:
    """Whether the loss has fallen by more than an average answer explains, or is still too young to tell.

    Nodes of a graph may be equal by design: what is learnt from is how they are connected.
    """
    loss, chance = chart["loss"], chance_level(chart)
    if not loss:
        return False
    limit = 0.8 * chance if chance > 0 else 0.5 * Progress.of(loss).start
    return loss.count < SETTLED or (median(loss.last(8)) < limit and chart["output_spread"].latest > 0.01)


def normalizes_each(chart: Chart) -> bool:
    """Whether a normalization comes before the first layer that adds features up: after it, it comes too late."""
    return "Norm" in next(iter(chart.fact("modules.kinds", ())), "")
