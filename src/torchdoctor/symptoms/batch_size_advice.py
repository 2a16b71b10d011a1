"""DA04 batch-size-advice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import trend_gain

WINDOW = 16
"""Latest measurements that an estimate uses,"""
FEWEST = 12
"""and the number that it needs at least."""
FIRST_STEPS = 20
"""First steps that are ignored: at the very start all samples agree on the same rough direction."""
DEVIATIONS = 3.0
"""Half-width of the interval, in standard errors."""


class NoiseScale(NamedTuple):
    """The batch size at which signal and noise of a gradient are equal, with its interval; infinite if all is noise."""

    batch: float
    """Samples per step, with all micro-batches."""
    scale: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.scale) or math.isinf(self.high):
            return f"more than {number_text(self.low)} samples"
        return f"about {number_text(self.scale)} samples ({number_text(self.low)} to {number_text(self.high)})"


def noise_scale(chart: Chart, until: int | None = None) -> NoiseScale | None:
    """The gradient noise scale from the latest measurements up to a step; None if there are too few.

    >>> print(noise_scale(Chart.of(step=20, gradient_snr=[0.1] * 16, gradient_samples=[32.0] * 16)))
    about 320 samples (320 to 320)
    """
    snr = chart["gradient_snr"]
    stop = len(snr) if until is None else int(np.searchsorted(snr.steps, until, side="right"))
    values = snr.values[int(np.searchsorted(snr.steps, FIRST_STEPS)) : stop][-WINDOW:]
    sizes = chart["gradient_samples"].last(WINDOW)
    if values.size < FEWEST or not sizes.size:
        return None
    batch, error = median(sizes), DEVIATIONS * float(values.std(ddof=1)) / math.sqrt(values.size)
    bounds = (float(values.mean()), float(values.mean()) + error, float(values.mean()) - error)
    if bounds[1] < 0:  # a negative signal: the samples of a batch are not independent
        return None
    return NoiseScale(batch, *(batch / bound if bound > 0 else math.inf for bound in bounds))


@dataclass(frozen=True)
class BatchSizeAdvice(Detector):
    """The batch is far smaller or far larger than the gradient noise scale.

    ## What it means
    The gradient noise scale is the batch size at which signal and noise of a step's gradient are equal. If the batch is
    far smaller, most of each step is noise: twice the batch size needs almost half as many steps. If it is far larger,
    its samples agree: half the batch size learns almost as much per step, at half the cost. This is advice on speed,
    not a fault.

    ## How it is told apart
    The noise scale is measured on the single samples of sampled steps. Its whole interval must be a factor of `times`
    away from the batch size. A converged run is all noise, so a small batch is reported only while the loss falls. Not
    judged are batches that are the whole data set or whose samples depend on each other (BatchNorm, contrastive
    losses). There is no advice while a warning or a critical finding is open.

    ## What to do
    Change the batch size by a factor of two to four, and the learning rate by the same factor for SGD or by its square
    root for Adam. If memory is short, accumulate gradients. A small batch may be a choice: it uses the fewest samples.

    ## How to see that it is cured
    `gradient_snr`, the batch size divided by the noise scale, is between 1/8 and 8.

    ## Example
    >>> chart = Chart.of(step=20, gradient_snr=[40.0] * 16, gradient_samples=[2048.0] * 16)
    >>> print(BatchSizeAdvice().check(chart))  # doctest: +NORMALIZE_WHITESPACE
    step 35: DA04 batch-size-advice (info): the batch of 2048 is 40 times the gradient noise scale of about 51.2 samples
    (51.2 to 51.2): a quarter of the batch size would learn almost as much per step
    """

    code = "DA04"
    name = "batch-size-advice"
    reads = ("gradient_snr",)
    suggests = ("change-batch-size",)
    references = ("https://arxiv.org/abs/1812.06162", "https://arxiv.org/abs/2411.00999")
    closes_after = 8

    times: float = 8.0
    """Factor between batch size and noise scale above which either is reported."""
    large: int = 64
    """Batch size below which a batch is never called large, because a smaller one would save little."""
    window: int = 512
    """Latest losses that must fall for a batch to be called small."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the batch size with the interval of the noise scale."""
        found = noise_scale(chart)
        if found is None or not math.isfinite(found.low):  # only noise: no batch size would help
            return None
        if any(item.severity != "info" for item in chart.open_episodes.values()):
            return None  # a sick run must be cured first, and its gradients may mean something else
        batch, times = number_text(found.batch), number_text(found.batch / found.scale)
        if (
            found.high * self.times < found.batch >= self.large
            and self._is_even(chart)
            and not _is_closed(chart, found)
        ):
            text = f"the batch of {batch} is {times} times the gradient noise scale of {found}"
            return self._advice(
                chart, found, f"{text}: a quarter of the batch size would learn almost as much per step"
            )
        if found.low > self.times * found.batch and self._falls(chart) and not _is_closed(chart, found):
            text = f"most of each step is noise: the gradient noise scale is {found}, and the batch has {batch}"
            return self._advice(chart, found, f"{text}; twice the batch size would need almost half as many steps")
        return None

    def _advice(self, chart: Chart, found: NoiseScale, message: str) -> Symptom:
        value = found.batch / found.scale
        return self.symptom(chart, "info", message, value=value, limit=self.times if value > 1 else 1 / self.times)

    def _is_even(self, chart: Chart) -> bool:
        """Whether three quarters of the measurements show a large batch, not just a few early ones."""
        return float(np.percentile(chart["gradient_snr"].last(WINDOW), 25)) > self.times

    def _falls(self, chart: Chart) -> bool:
        gain, doubt = trend_gain(chart["loss"].last(self.window))
        return gain > 3 * doubt


def _is_closed(chart: Chart, found: NoiseScale) -> bool:
    """Whether the batch is the whole data set, or its samples depend on each other."""
    batches = chart["input_checksum"].last(2)
    whole = batches.size == 2 and batches[0] == batches[1]
    answers = chart.fact("loss.classes") or chart.fact("outputs.classes")
    return bool(
        whole or chart.fact("data.same_tensor", False) or (answers and answers == chart.context.get("batch_size"))
    )
