"""LO05 slow-learning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text, share_text
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

ONWARD = "gradients keep pointing in one direction"
"""Words for aligned gradients: longer steps would be possible."""
STRAIGHT = "weights keep moving in one direction"
"""The same for the weights."""


@dataclass(frozen=True)
class SlowLearning(Detector):
    """The loss falls, but far more slowly than it should.

    ## What it means
    The direction is right, but the steps are too short: at this pace the run needs many times its length. If a step
    changes weights by less than 1e-5 of their norm, it takes a hundred thousand steps to change them substantially.

    ## How it is told apart
    The loss of a healthy run falls quickly first and slowly later. Here it has gained little since the start, and

    - update ratios show that weights hardly move (a warning); or they are unknown and the loss falls in a straight line
      (info);
    - or consecutive gradients point in the same direction, so steps are too short; if weights move little, less
      agreement is enough, because the noise of batches hides a part, and if they move far, the loss must have gained
      even less (a loss with a high floor falls by small shares);
    - or weights that were new at the start keep moving in one direction over dozens of steps;
    - or most weights in half precision do not change, because their updates are rounded away;
    - or dropout removes so much that neither training nor validation has improved much, or got below chance level.

    Warm-up, the end of a schedule, and fine-tuning are not judged. A run counts as fine-tuning if its loss is below
    half of chance level, or below three quarters if no layer looks new. Steps in one direction are not judged if the
    gradients of batches are nearly pure noise.

    ## What to do
    Raise the learning rate tenfold; `torchdoctor lr-range` finds how far it can go. Check that the loss is not divided
    twice (mean over the batch, then by accumulation steps), and that clipping does not shorten every step.

    ## How to see that it is cured
    Update ratios are about 1e-3, and the loss gains as much in a hundred steps as in the whole run before.

    ## Example
    >>> chart = Chart.of(loss=[2.3 - 1e-5 * step for step in range(300)], lr=[1e-6] * 300)
    >>> chart.add({"type": "tensors", "step": 299, "vitals": {"update_ratio": [2e-7, 5e-7, 4e-7]}})
    >>> SlowLearning().check(chart).message
    'loss fell by only 0.003 in 300 steps; each step changes the weights by 4e-07 of their norm'
    """

    code = "LO05"
    name = "slow-learning"
    reads = ("loss",)
    suggests = ("scale-lr", "change-schedule", "normalize-inputs")
    references = ("https://arxiv.org/abs/1206.5533", "https://cs231n.github.io/neural-networks-3/")
    every = 25
    closes_after = 4

    steps: int = 100
    """Steps needed after the warm-up."""
    ratio: float = 2e-5
    """Median update ratio below which weights hardly move."""
    gained: float = 0.1
    """Share of the first loss; a run that has gained more is not slow."""
    creeping: float = 0.03
    """The same if only the agreement of gradients speaks for short steps, and the update ratio is above `short`."""
    aligned: float = 0.8
    """Cosine between a gradient and earlier ones above which, at every sample, steps are too short."""
    leaning: float = 0.4
    """The same (as a median) if the update ratio is less than ten times `ratio`: batch noise hides the rest."""
    dropout: float = 0.8
    """Dropout from which it is blamed for a loss that has hardly fallen."""
    drowned: float = 0.3
    """Share of its start by which the training or validation loss must have fallen, or else dropout is blamed."""
    short: float = 5e-4
    """Median update ratio below which steps in one direction are too short."""
    shorter: float = 2e-4
    """The same for an immediate warning; above it, it is info until twice `steps` have passed."""
    fresh: float = 0.4
    """Share of layers that must look new at the start; in a pretrained model hardly any does."""
    worn: float = 0.1
    """Share of new layers below which the model counts as pretrained: below 3/4 of chance level it is not judged."""
    noise: float = 0.1
    """Signal-to-noise ratio of the gradient below which steps in one direction are not judged."""
    held: float = 0.75
    """Share of its start, or of chance level if lower, above which the loss has hardly fallen."""
    straight: float = 0.6
    """Share of the first half's gain that the second half must exceed if update ratios are unknown."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test for too much dropout, then for a slow loss, then for short steps in one direction."""
        if has_fallen_far(chart["loss"]) or is_satisfied(chart["loss"]):
            return None
        return self._is_drowned(chart) or self._is_slow(chart) or self._is_short(chart)

    def _is_slow(self, chart: Chart) -> Symptom | None:
        """A loss that has gained little, with a sign that steps are too short."""
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
        # Such weights stand still, even if noise hides it; weights that moved before may have converged.
        hopeless = 0 < ratio < 0.1 * self.ratio and not self._has_moved(chart)
        enough = self.gained * abs(begun)
        known = (0.5 if not chart["weights_fresh"].first < self.worn else 0.75) * chance_level(chart)
        if (begun - level > enough and not hopeless) or level < known:
            return None
        gain, doubt = trend_gain(levels)
        # Aligned steps that change the weights much are not short if the loss falls at all.
        far = aligned and not rounded and ratio > self.short
        if (hopeless or far) and gain > max(3 * doubt, self.creeping * abs(begun) if far else enough):
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
        """Whether update ratios were far higher before, and the loss has fallen by more than a tenth."""
        rows = chart.tensors("update_ratio").matrix()[:-1]
        with np.errstate(all="ignore"):
            before = max((median(row[np.isfinite(row)]) for row in rows if np.isfinite(row).any()), default=0.0)
        progress = Progress.of(chart["loss"])
        return before > 10 * self.ratio and progress.descent > self.gained * abs(progress.start)

    def _is_short(self, chart: Chart) -> Symptom | None:
        """New weights that keep moving in one direction by short steps, while the loss has hardly fallen."""
        series, since = chart["loss"], working_since(chart)
        if series.count < self.steps or since is None or not goes_straight(chart) or is_game(chart):
            return None
        if not chart["weights_fresh"].first > self.fresh or looks_up_only(chart) or _was_wild(chart):
            return None  # a pretrained model needs only short steps
        if median(chart["gradient_snr"].last(6)) < self.noise:
            return None  # pure noise: nothing is left to learn
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
        message = f"loss is {number_text(level)} after {steps} steps and began at about {number_text(start)}; "
        message += f"{STRAIGHT}, "
        message += f"by {number_text(ratio)} of their norm per step"
        return self.symptom(chart, severity, message, value=ratio, limit=self.short, confidence=0.8, since=since)

    def _reason(self, chart: Chart, ratio: float, rounded: bool) -> str:
        if rounded:
            return f"{share_text(chart['update_lost'].latest)} of the weights do not move: steps are rounded away"
        if ratio < self.ratio:
            return f"each step changes the weights by {number_text(ratio)} of their norm"
        return f"{ONWARD}: cosine {median(chart['momentum_cosine'].last(6)):.2f}"

    def _is_drowned(self, chart: Chart) -> Symptom | None:
        """A loss that has hardly fallen under very strong dropout."""
        rates = [rate for rate in chart.context.get("dropout") or () if isinstance(rate, int | float)]
        series = chart["loss"]
        if not rates or max(rates) < self.dropout or series.count < self.steps or is_game(chart):
            return None
        start = median(outline_levels(series)[:5])
        level = series.baseline(128).recent
        validated = chart["val_loss"].latest
        chance, kept = chance_level(chart), 1 - self.drowned
        held = level > kept * start > 0 and not validated < kept * start
        # Noise may have raised the first loss, so a loss above chance level counts as well.
        held = held or (level > chance > 0 and not validated < 0.9 * chance)
        if not held or _was_wild(chart):
            return None
        if working_since(chart) is None or chart["lr"].latest < 0.1 * _highest(chart):
            return None
        limit = kept * start if level > kept * start else chance
        message = f"loss is {number_text(level)} after {chart.step + 1} steps and began at about {number_text(start)}; "
        message += f"dropout keeps only {share_text(1 - max(rates))} of its inputs"
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
    """Whether at least half of the last losses are exactly 0: a margin loss that samples already satisfy.

    >>> is_satisfied(Chart.of(loss=[0.5, 0.0, 0.01, 0.0] * 8)["loss"])
    True
    """
    values = series.last(samples)
    return values.size == samples and 2 * int(np.count_nonzero(values == 0)) >= samples


def typical_ratio(chart: Chart, samples: int = 4) -> float:
    """The median update ratio of the tensors over the last samples; NaN if unknown.

    >>> typical_ratio(Chart.of(loss=[1.0]))
    nan
    """
    rows = (row[np.isfinite(row)] for _, row in list(chart.tensors("update_ratio").rows)[-samples:])
    ratios = [median(row) for row in rows if row.size]
    return median(np.array(ratios)) if ratios else math.nan


def is_rounded_away(chart: Chart, share: float = 0.8) -> bool:
    """Whether most half-precision weights do not change because their updates are rounded away.

    >>> is_rounded_away(Chart.of(update_lost=[0.9] * 5)), is_rounded_away(Chart.of(update_lost=[0.3] * 5))
    (True, False)
    """
    lost = chart["update_lost"].last(5)
    return lost.size == 5 and float(lost.min()) > share


def _was_wild(chart: Chart) -> bool:
    """Whether the run had an explosion, spike, divergence or non-finite value: then it is broken, not slow."""
    wild = ("gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf")
    return any(episode.name in wild and episode.severity != "info" for episode in chart.episodes)


def _highest(chart: Chart) -> float:
    return chart["lr"].outline.highest if chart["lr"] else 0.0
