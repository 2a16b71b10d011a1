"""LO07 suspiciously-low-loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.not_learning import chance_level
from torchdoctor.symptoms.progress import Progress, is_adversarial, is_unrolled, outline_levels
from torchdoctor.symptoms.weight_growth import total_growth

# fmt: off
NONNEGATIVE = (
    "CrossEntropyLoss", "BCEWithLogitsLoss", "BCELoss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "KLDivLoss",
)
# fmt: on
"""Losses that cannot be negative for any target."""
ABYSS = 1e4
"""Multiple of the start (or of 1) that no log-likelihood reaches below zero."""


@dataclass(frozen=True)
class SuspiciouslyLowLoss(Detector):
    """The loss is too good to be true.

    ## What it means
    The model sees the answer: a causal mask that lets later tokens through, a feature computed from the target, or
    training samples that it has seen before. Or the loss does not measure what you think: all targets are equal, a mask
    removes everything, or the mean includes padding.

    ## How it is told apart
    Easy tasks reach low losses too. Only losses that the task makes impossible are reported:

    - a next-token loss below a tenth of chance level in the first epoch: no model predicts text so well;
    - a negative value of a loss function that cannot be negative;
    - a training loss near zero in the first epoch while the validation loss stays high;
    - a loss that falls faster and faster below zero, while weights grow or it runs away: a minus sign too many, or a
      missing term. A log-likelihood may be negative, but falls more and more slowly.

    ## What to do
    Change the input token at position t: no output before t may change. Shuffle the labels: the loss must stay at
    chance level. Train without each suspicious feature.

    ## How to see that it is cured
    The loss falls as fast as in published runs of that kind, and validation follows.

    ## Example
    >>> chart = Chart.of(loss=[4.2 * 0.96**step for step in range(200)], lr=[1e-3] * 200)
    >>> chart.add({"type": "facts", "step": 0, "facts": {"data.next_token": True, "loss.chance": 4.2}})
    >>> SuspiciouslyLowLoss().check(chart).message
    'loss 0.00203 for next tokens, 0.05 % of chance level, within one epoch'
    """

    code = "LO07"
    name = "suspiciously-low-loss"
    reads = ("loss",)
    suggests = ("fix-mask", "clean-data", "cross-validate", "fix-loss")
    references = ("https://reproducible.cs.princeton.edu/", "https://karpathy.github.io/2019/04/25/recipe/")
    every = 20
    closes_after = 10

    steps: int = 40
    """Losses needed before anything is reported."""
    share: float = 0.1
    """Share of chance level below which a next-token loss is too low for one epoch."""
    near_zero: float = 0.02
    """Share of chance level (or of the start, if unknown) below which a training loss is close to zero."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test four ways in which a loss is too low to be true."""
        series = chart["loss"]
        if series.count < self.steps:
            return None
        chance, start = chance_level(chart), Progress.of(series).start
        # A cheap test first: far from all limits below.
        high = max(self.share, self.near_zero) * (chance if chance > 0 else start)
        if (median(series.last(8)) > 2 * high > 0 and series.lowest >= 0) or is_adversarial(chart):
            return None
        level = median(series.last(25))
        low = f"loss {number_text(level)}"
        if level < 0 and (text := _impossible(chart)):
            return self._found(chart, level, f"{low}, and {text}")
        if level < 0 and _is_bottomless(chart, level):
            return self._found(chart, level, f"{low}, from {number_text(start)}, falls faster and faster without limit")
        yardstick = chance if chance > 0 else start
        epochs = _epochs(chart)
        if epochs > 1 or not yardstick > 0 or level < 0:
            return None
        if chart.fact("data.next_token") and level < self.share * yardstick:
            scale = "chance level" if chance > 0 else "where the run began"
            text = f"{low} for next tokens, {number_text(float(f'{100 * level / yardstick:.1g}'))} % of {scale}"
            return self._found(chart, level, f"{text}, within one epoch")
        validation = chart["val_loss"].values
        if (
            epochs > 0
            and validation.size >= 2
            and level < self.near_zero * yardstick
            and float(validation.min()) > 0.5 * yardstick
        ):
            text = f"{low} within one epoch, while the validation loss is {number_text(float(validation.min()))}"
            return self._found(chart, level, text)
        return None

    def _found(self, chart: Chart, level: float, message: str) -> Symptom:
        return self.symptom(chart, "warning", message, value=level, confidence=0.85)


def _impossible(chart: Chart) -> str:
    """Why a loss below zero is impossible, or "": the loss function cannot be negative, or its value was negated."""
    function = chart.fact("loss.function")
    criterion, losses = chart["criterion"], chart["loss"]
    if function not in NONNEGATIVE or not criterion:
        return ""
    at = losses.values[losses.steps == criterion.step]
    turned = at.size > 0 and abs(float(at[0]) + criterion.latest) < 1e-3 * abs(criterion.latest)
    if turned or criterion.latest < 0:
        return f"{function} cannot be negative" + (": its sign was flipped" if turned else "")
    return ""


def _is_bottomless(chart: Chart, level: float, times: float = 5.0, growth: float = 1.7) -> bool:
    """Whether the loss is far below zero and falls faster and faster, while the weights grow or it runs away."""
    series = chart["loss"]
    start, jitter = Progress.of(series).start, series.baseline(128).jitter
    if series.count < 60 or not -level > times * max(abs(start), jitter):
        return False
    if is_unrolled(chart) and abs(start) < 2 * jitter:
        return False  # policy gradients: about zero at first, of either sign
    first, second, third, last = (median(part) for part in np.array_split(outline_levels(series), 4))
    if not (last < third < second < first and third - last > 1.2 * (first - second)):
        return False
    runs_away = third - last > 3 * (second - third) > 9 * (first - second) or -level > ABYSS * max(abs(start), 1.0)
    return total_growth(chart) > growth or runs_away


def _epochs(chart: Chart) -> float:
    """How many epochs have passed; 0 if the size of the data is unknown, as for a stream."""
    samples, batch = chart.context.get("dataset_size"), chart.context.get("batch_size")
    if not isinstance(samples, int) or not isinstance(batch, int) or samples <= 0:
        return 0.0
    return (chart.step + 1) * batch / samples
