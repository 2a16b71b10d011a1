"""LO05 slow-learning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.not_learning import chance_level, looks_up_only
from torchdoctor.symptoms.progress import (
    Progress,
    goes_straight,
    has_fallen_far,
    has_gained,
    is_adversarial,
    is_game,
    median_ratio,
    outline_levels,
    trend_gain,
    working_since,
)

ONWARD = "each gradient points where the last did"
"""How a way that is straight, and steps that are short on it, are told."""
STRAIGHT = "weights go straight on"
"""How the same is told of the weights themselves."""


@dataclass(frozen=True)
class SlowLearning(Detector):
    """The loss falls, but far slower than it should.

    ## What it means
    The direction is right and the steps are too short: at this pace the run needs many times its length. Weights that
    move by less than a hundred-thousandth of themselves a step need a hundred thousand steps to change at all.

    ## How it is told apart
    A healthy run falls quickly first and slowly later: its curve is bent. Here it is a straight line from the start,
    with little gained. It is a warning where update ratios say that weights hardly move, and a note where they are not
    known. Where each gradient points where those before it pointed, the way is straight and steps are short, whatever
    their ratio; noise of batches hides a part of that where weights move by little too. So it is where weights that
    were new at the start keep one direction from sample to sample: over dozens of steps noise is gone from it. It is a
    warning too where most
    weights, in half precision, do not move because what a step adds is rounded away, and where dropout leaves so little
    of what is learnt that neither training nor validation has come far, or is above a guess still. Warm-up, the end of
    a schedule, and fine-tuning
    of a model that knows its task already (a loss far under that of a guess; less far where no layer looks new) are not
    judged. Nor are short steps on a straight way where batches agree on nothing any more.

    ## What to do
    Raise the learning rate by ten; `torchdoctor lr-range` finds how far one can go. Check that the loss is not divided
    twice (mean over the batch, then by accumulation steps), and that clipping does not cut every step to nothing.

    ## How to see that it is cured
    Update ratios about 1e-3, and in a hundred steps a gain that took the whole run before.

    ## Example
    >>> chart = Chart.of(loss=[2.3 - 1e-5 * step for step in range(300)], lr=[1e-6] * 300)
    >>> chart.add({"type": "tensors", "step": 299, "vitals": {"update_ratio": [2e-7, 5e-7, 4e-7]}})
    >>> SlowLearning().check(chart).message
    'loss fell by only 0.003 in 300 steps; weights move by 4e-07 of themselves a step'
    """

    code = "LO05"
    name = "slow-learning"
    reads = ("loss",)
    suggests = ("scale-lr", "change-schedule", "normalize-inputs")
    references = ("https://arxiv.org/abs/1206.5533", "https://cs231n.github.io/neural-networks-3/")
    every = 25
    closes_after = 4

    steps: int = 100
    """Steps after the warm-up that must be known."""
    ratio: float = 2e-5
    """Typical share of itself by which a weight tensor moves a step, under which it hardly moves."""
    gained: float = 0.1
    """Share of the first loss that the run has gained at most."""
    aligned: float = 0.8
    """Cosine of gradients with those before them, at sample after sample, from which steps are too short."""
    leaning: float = 0.4
    """The same where weights move by less than ten times `ratio`: the noise of batches hides the rest."""
    dropout: float = 0.8
    """Share that dropout drops from which a loss that has not fallen by"""
    drowned: float = 0.3
    """this share of its start, in training as in validation, is held down by it."""
    short: float = 5e-4
    """Typical share of itself by which a tensor moves a step at most, where it moves straight on,"""
    shorter: float = 2e-4
    """and from which it is a warning at once, and not after twice the steps."""
    fresh: float = 0.4
    """Share of the layers that must look new at the start: of a model that goes on, hardly any does."""
    worn: float = 0.1
    """The same share under which the model was trained before: three quarters of a guess's loss are knowledge then."""
    noise: float = 0.1
    """Signal of a batch's gradient, as a share of its noise, under which there is no way to go on."""
    held: float = 0.75
    """Share of its start, or of a guess, that the loss must still be at."""
    straight: float = 0.6
    """Share of the first half's gain that the second half must reach at least, where ratios are not known."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare what was gained with the size of updates, or with a straight line."""
        if has_fallen_far(chart["loss"]) or is_satisfied(chart["loss"]):
            return None
        return self._is_drowned(chart) or self._is_slow(chart) or self._is_short(chart)

    def _is_slow(self, chart: Chart) -> Symptom | None:
        """A loss that gains little, and what tells that steps are too short."""
        series, ratio, rounded = chart["loss"], median_ratio(chart), is_rounded_away(chart)
        aligned = self._is_aligned(chart, ratio)
        if series.count < self.steps or (ratio > self.ratio and not rounded and not aligned):
            return None
        if (math.isnan(ratio) and has_gained(series)) or is_adversarial(chart) or _was_wild(chart):
            return None
        since = working_since(chart)
        if since is None or series.outline.start > self.steps or chart["lr"].latest < 0.1 * _highest(chart):
            return None
        levels = outline_levels(series)[series.outline.before(since) :]
        if levels.size < self.steps / 2 or levels.size < 32:
            return None
        begun, level = median(levels[:5]), median(levels[-levels.size // 4 :])
        # Such weights stand still, whatever the noise hides; those that moved before have arrived.
        hopeless = 0 < ratio < 0.1 * self.ratio and not self._has_moved(chart)
        enough = self.gained * abs(begun)
        known = (0.5 if not chart["weights_fresh"].first < self.worn else 0.75) * chance_level(chart)
        if (begun - level > enough and not hopeless) or level < known:
            return None
        gain, doubt = trend_gain(levels)
        if hopeless and gain > max(3 * doubt, enough):
            return None
        if hopeless or ((rounded or aligned or 0 < ratio < self.ratio) and gain + 2 * doubt < enough):
            severity: Severity = "warning"
        elif math.isnan(ratio) and gain > 6 * doubt and self._is_straight(levels) and gain > 0:
            severity = "info"
        else:
            return None
        fell = f"fell by only {number_text(gain)}" if gain > 0 else "did not fall"
        message = f"loss {fell} in {chart.step - since + 1} steps"
        if severity == "warning":
            message += f"; {self._reason(chart, ratio, rounded)}"
        return self.symptom(chart, severity, message, value=gain, confidence=0.8, since=since)

    def _has_moved(self, chart: Chart) -> bool:
        """Whether most weights moved by far more of themselves before, and the loss fell by more than a tenth."""
        rows = chart.tensors("update_ratio").matrix()[:-1]
        with np.errstate(all="ignore"):
            before = max((median(row[np.isfinite(row)]) for row in rows if np.isfinite(row).any()), default=0.0)
        progress = Progress.of(chart["loss"])
        return before > 10 * self.ratio and progress.descent > self.gained * abs(progress.start)

    def _is_short(self, chart: Chart) -> Symptom | None:
        """New weights that go straight on by little, while the loss is not far from where it began."""
        series, since = chart["loss"], working_since(chart)
        if series.count < self.steps or since is None or not goes_straight(chart) or is_game(chart):
            return None
        if not chart["weights_fresh"].first > self.fresh or looks_up_only(chart) or _was_wild(chart):
            return None  # a model that knows something needs no more than short steps
        if median(chart["gradient_snr"].last(6)) < self.noise:
            return None  # so does one that has nothing left to learn: what its batches agree on is gone
        ratio = typical_ratio(chart)
        if not 0 < ratio < self.short or chart["lr"].latest < 0.3 * _highest(chart):
            return None
        start, level = median(outline_levels(series)[:5]), series.baseline(128).recent
        chance = chance_level(chart)
        yardstick = min(start, chance) if chance > 0 else start
        steps = chart.step - since + 1
        if not level > self.held * yardstick > 0 or steps < 0.9 * self.steps:
            return None
        severity: Severity = "warning" if ratio < self.shorter or steps >= 2 * self.steps else "info"
        message = f"loss is {number_text(level)} after {steps} steps and began at {number_text(start)}; {STRAIGHT}, "
        message += f"by {number_text(ratio)} of themselves a step"
        return self.symptom(chart, severity, message, value=ratio, limit=self.short, confidence=0.8, since=since)

    def _reason(self, chart: Chart, ratio: float, rounded: bool) -> str:
        if rounded:
            return f"{chart['update_lost'].latest:.0%} of the weights do not move: steps are rounded away"
        if ratio < self.ratio:
            return f"weights move by {number_text(ratio)} of themselves a step"
        return f"{ONWARD}: cosine {median(chart['momentum_cosine'].last(6)):.2f}"

    def _is_drowned(self, chart: Chart) -> Symptom | None:
        """Dropout that leaves next to nothing, and a loss that has not come far for it."""
        rates = [rate for rate in chart.context.get("dropout") or () if isinstance(rate, int | float)]
        series = chart["loss"]
        if not rates or max(rates) < self.dropout or series.count < self.steps or is_game(chart):
            return None
        start = median(outline_levels(series)[:5])
        level = series.baseline(128).recent
        validated = chart["val_loss"].latest
        chance, kept = chance_level(chart), 1 - self.drowned
        held = level > kept * start > 0 and not validated < kept * start
        # A first loss that noise has driven up is no yardstick: it is still above a guess that ignores the input.
        held = held or (level > chance > 0 and not validated < 0.9 * chance)
        if not held or _was_wild(chart):
            return None
        if working_since(chart) is None or chart["lr"].latest < 0.1 * _highest(chart):
            return None
        limit = kept * start if level > kept * start else chance
        message = f"loss is {number_text(level)} after {chart.step + 1} steps and began at {number_text(start)}; "
        message += f"dropout leaves {1 - max(rates):.0%} of what it is applied to"
        return self.symptom(chart, "warning", message, value=level, limit=limit, since=0)

    def _is_aligned(self, chart: Chart, ratio: float, samples: int = 6) -> bool:
        cosines = chart["momentum_cosine"].last(samples)
        if cosines.size < samples or is_game(chart):
            return False
        leans = 0 < ratio < 10 * self.ratio and median(cosines) > self.leaning and float(cosines.min()) > 0.2
        return leans or float(cosines.min()) > self.aligned

    def _is_straight(self, levels: Array) -> bool:
        half = levels.size // 2
        first, second = trend_gain(levels[:half])[0], trend_gain(levels[half:])[0]
        return second > self.straight * first > 0


def is_satisfied(series: Series, samples: int = 32) -> bool:
    """Whether every other loss is exactly 0: a margin that all samples keep has nothing more to teach.

    >>> is_satisfied(Chart.of(loss=[0.5, 0.0, 0.01, 0.0] * 8)["loss"])
    True
    """
    values = series.last(samples)
    return values.size == samples and 2 * int(np.count_nonzero(values == 0)) >= samples


def typical_ratio(chart: Chart, samples: int = 4) -> float:
    """The typical share of itself by which a tensor moved a step, over the last samples; NaN where unknown.

    >>> typical_ratio(Chart.of(loss=[1.0]))
    nan
    """
    rows = (row[np.isfinite(row)] for _, row in list(chart.tensors("update_ratio").rows)[-samples:])
    ratios = [median(row) for row in rows if row.size]
    return median(np.array(ratios)) if ratios else math.nan


def is_rounded_away(chart: Chart, share: float = 0.8) -> bool:
    """Whether most weights in half precision do not move, gradient or not: what a step adds is under their last digit.

    >>> is_rounded_away(Chart.of(update_lost=[0.9] * 5)), is_rounded_away(Chart.of(update_lost=[0.3] * 5))
    (True, False)
    """
    lost = chart["update_lost"].last(5)
    return lost.size == 5 and float(lost.min()) > share


def _was_wild(chart: Chart) -> bool:
    """Whether the run has come from somewhere else: what is left after an explosion is not slow, it is broken."""
    wild = ("gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf")
    return any(episode.name in wild and episode.severity != "info" for episode in chart.episodes)


def _highest(chart: Chart) -> float:
    return chart["lr"].outline.highest if chart["lr"] else 0.0
