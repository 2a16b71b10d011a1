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
"""Losses that no target allows to be negative."""
ABYSS = 1e4
"""Times its start, or one, that no likelihood goes below zero."""


@dataclass(frozen=True)
class SuspiciouslyLowLoss(Detector):
    """The loss is too good to be true.

    ## What it means
    The model has been given the answer: a causal mask that lets later tokens through, a feature made of the target, or
    training samples that are not new. Or the loss measures something else than you think: targets that are all the
    same, a mask that leaves nothing, a mean over padding.

    ## How it is told apart
    Easy tasks reach low losses too. What counts is a loss that the task forbids: a next-token loss at a few per
    cent of a guess before the data has been seen twice (nobody predicts text so well), a likelihood or cross-entropy
    below zero, or a training loss near zero in the first epoch that the validation loss contradicts from the start. A
    log-likelihood may well be negative, and falls ever more slowly; a loss that falls ever faster below zero while the
    weights grow has no bottom: a minus sign too many, or a missing term.

    ## What to do
    Change one input token at position t and look at the outputs before t: none may change. Shuffle the labels: the
    loss must now stay at chance. Train without each suspicious feature.

    ## How to see that it is cured
    The loss falls at the pace of published runs of that kind, and validation follows.

    ## Example
    >>> chart = Chart.of(loss=[4.2 * 0.96**step for step in range(200)], lr=[1e-3] * 200)
    >>> chart.add({"type": "facts", "step": 0, "facts": {"data.next_token": True, "loss.chance": 4.2}})
    >>> print(SuspiciouslyLowLoss().check(chart))
    step 199: LO07 suspiciously-low-loss (warning): loss 0.00203 for the next token, 0.05 % of a guess, within one epoch
    """

    code = "LO07"
    name = "suspiciously-low-loss"
    reads = ("loss",)
    suggests = ("fix-mask", "clean-data", "cross-validate", "fix-loss")
    references = ("https://reproducible.cs.princeton.edu/", "https://karpathy.github.io/2019/04/25/recipe/")
    every = 20
    closes_after = 10

    steps: int = 40
    """Values that must be known."""
    share: float = 0.1
    """Share of a guess that a next-token loss does not reach in one epoch."""
    near_zero: float = 0.02
    """Share of its start at which a training loss is next to nothing."""

    def check(self, chart: Chart) -> Symptom | None:
        """What the task forbids: four ways of being too good."""
        series = chart["loss"]
        if series.count < self.steps:
            return None
        chance, start = chance_level(chart), Progress.of(series).start
        # Far from any of the limits below: nothing that costs time is asked.
        high = max(self.share, self.near_zero) * (chance if chance > 0 else start)
        if (median(series.last(8)) > 2 * high > 0 and series.lowest >= 0) or is_adversarial(chart):
            return None
        level = median(series.last(25))
        low = f"loss {number_text(level)}"
        if level < 0 and (text := _impossible(chart)):
            return self._found(chart, level, f"{low}, and {text}")
        if level < 0 and _is_bottomless(chart, level):
            return self._found(chart, level, f"{low}, from {number_text(start)}, falls ever faster: nothing stops it")
        yardstick = chance if chance > 0 else start
        epochs = _epochs(chart)
        if epochs > 1 or not yardstick > 0 or level < 0:
            return None
        if chart.fact("data.next_token") and level < self.share * yardstick:
            text = f"{low} for the next token, {number_text(float(f'{100 * level / yardstick:.1g}'))} % of a guess"
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
    """Why a loss under zero cannot be, where that is known: the sign of what `loss_fn` returned was turned."""
    function = chart.fact("loss.function")
    criterion, losses = chart["criterion"], chart["loss"]
    if function not in NONNEGATIVE or not criterion:
        return ""
    at = losses.values[losses.steps == criterion.step]
    turned = at.size > 0 and abs(float(at[0]) + criterion.latest) < 1e-3 * abs(criterion.latest)
    if turned or criterion.latest < 0:
        return f"{function} cannot be negative" + (": it is maximised" if turned else "")
    return ""


def _is_bottomless(chart: Chart, level: float, times: float = 5.0, growth: float = 1.7) -> bool:
    """Whether the loss is far below zero, falls ever faster, and takes the weights with it or runs away."""
    series = chart["loss"]
    start, jitter = Progress.of(series).start, series.baseline(128).jitter
    if series.count < 60 or not -level > times * max(abs(start), jitter):
        return False
    if is_unrolled(chart) and abs(start) < 2 * jitter:
        return False  # actions along a path, weighed by what came of them: nothing at first, for better and worse
    first, second, third, last = (median(part) for part in np.array_split(outline_levels(series), 4))
    if not (last < third < second < first and third - last > 1.2 * (first - second)):
        return False
    runs_away = third - last > 3 * (second - third) > 9 * (first - second) or -level > ABYSS * max(abs(start), 1.0)
    return total_growth(chart) > growth or runs_away


def _epochs(chart: Chart) -> float:
    """How often the data was seen; 0 where its size is not known, for a stream has no epochs."""
    samples, batch = chart.context.get("dataset_size"), chart.context.get("batch_size")
    if not isinstance(samples, int) or not isinstance(batch, int) or samples <= 0:
        return 0.0
    return (chart.step + 1) * batch / samples
