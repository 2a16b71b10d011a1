"""LO04 not-learning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import has_fallen_far, is_adversarial, outline_levels, trend_gain, working_since


@dataclass(frozen=True)
class NotLearning(Detector):
    """The loss is flat from the very start.

    ## What it means
    The run has learnt nothing so far. Most often it never will: the loss does not reach the weights, the optimizer
    does not hold them, labels do not belong to inputs, or the learning rate is off by orders of magnitude. Waiting
    is the most expensive way to find out.

    ## How it is told apart
    Steps count from the end of a warm-up. A flat stretch is only believed where a gain of a few per cent could not
    have hidden in the noise, so losses that wander about (policy gradients, adversarial games) stay silent. A run that
    fell first and then stopped is `loss-plateau`; one that falls, but hardly, is `slow-learning`. Where the loss of a
    guess is known (ln C, the variance of y), a level well under it has learnt something, and one at it has not.

    ## What to do
    Try to overfit one batch: `for _ in range(300): step(batch)`. If the loss does not go towards zero there, the loop
    is broken, not the data: look at `p.grad` and at `optimizer.param_groups`. If it does, check that labels belong to
    inputs. Then try learning rates ten times higher and lower.

    ## How to see that it is cured
    The loss is clearly below its first values within a hundred steps.

    ## Example
    >>> losses = [2.31, 2.29, 2.3, 2.32, 2.28] * 50
    >>> print(NotLearning().check(Chart.of(loss=losses, lr=[1e-3] * 250)))
    step 0: LO04 not-learning (warning): loss has stayed at 2.3 for 250 steps, from the start on
    """

    code = "LO04"
    name = "not-learning"
    reads = ("loss",)
    suggests = ("scale-lr", "fix-loss", "add-parameters-to-optimizer", "ask-for-help")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    every = 25
    closes_after = 4

    notice: int = 100
    """Steps after the warm-up without any gain: a note; a warning at the level of a guess, or without a gradient."""
    steps: int = 200
    """Steps after the warm-up without any gain: a warning."""
    gain: float = 0.03
    """Share of the loss that might have been gained unseen, at most; five times that at the level of a guess."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test the trend since the learning rate was up, and compare with the first values and with a guess."""
        series = chart["loss"]
        if series.count < self.notice or has_fallen_far(series) or is_adversarial(chart):
            return None
        since = working_since(chart)
        buckets = series.outline.buckets()
        if since is None or buckets[0][0] > self.notice:  # a later step label: this run goes on from a checkpoint
            return None
        levels = outline_levels(series)
        later = levels[sum(bucket[0] < since for bucket in buckets) :]
        chance = chance_level(chart)
        half = later[later.size // 2 :] if chance > 0 else later
        count = round(series.count * later.size / levels.size)
        level = float(np.median(half))
        if count < self.notice or not self._is_naive(levels, level, chance) or _was_lower(levels, level):
            return None
        if not _is_flat(half, math.inf if level > chance else (5 if chance > 0 else 1) * self.gain * abs(level)):
            return None
        stuck = level > (1 - self.gain) * chance or bool(np.ptp(later) <= 1e-6 * abs(level)) or _no_gradient(chart)
        severity: Severity = "warning" if count >= self.steps or stuck else "info"
        message = f"loss has stayed at {number_text(level)} for {count} steps, from the start on"
        if chance > 0:
            guess = f"that of a guess without looking at the input is {number_text(chance)}"
            message = f"loss is {number_text(level)} after {count} steps; {guess}"
        return self.symptom(chart, severity, message, value=level, confidence=0.8, since=int(max(since, 0)))

    def _is_naive(self, levels: Array, level: float, chance: float) -> bool:
        """Whether the level is that of a guess; where that is unknown, whether it is not below the first values."""
        if chance > 0:
            return level > (1 - 3 * self.gain) * chance
        return float(np.median(levels[:5])) - level <= max(self.gain * abs(level), 2 * _scatter(levels))


def _is_flat(levels: Array, limit: float) -> bool:
    """Whether the levels did not fall, and can have moved by no more than a limit."""
    gain, doubt = trend_gain(levels)
    doubt = max(doubt, 3 * _scatter(levels) / math.sqrt(levels.size))
    return gain <= 5 * doubt and abs(gain) + 2 * doubt < limit


def _was_lower(levels: Array, level: float) -> bool:
    """Whether the run was better once, and lost it: then it had learnt."""
    pieces = [float(np.median(piece)) for piece in np.array_split(levels, 8)]
    return min(pieces) < level - 0.15 * abs(level)


def _scatter(levels: Array) -> float:
    return 1.4826 * float(np.median(np.abs(levels - np.median(levels))))


def chance_level(chart: Chart) -> float:
    """The loss of a guess that ignores the input, NaN where it is not known: ln C, the labels' entropy, var(y)."""
    value = chart.fact("loss.chance")
    if isinstance(value, int | float) and not isinstance(value, bool):
        entropy = chart["pooled_entropy"]
        seen = entropy.count * int(chart.context.get("batch_size") or 0)
        enough = seen >= 20 * math.exp(value)  # of few labels an entropy comes out too low
        return entropy.latest if enough and 0.5 * value < entropy.latest < value else float(value)
    if chart.fact("loss.function") == "MSELoss" and chart.fact("loss.reduction") == "mean":
        return chart["pooled_std"].latest ** 2
    return math.nan


def _no_gradient(chart: Chart) -> bool:
    """Whether the gradient is nothing, or is not there at all although steps are taken."""
    norms = chart["grad_norm"]
    return bool(norms) and float(np.median(norms.last(50))) < 1e-10
