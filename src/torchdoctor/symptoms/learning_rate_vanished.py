"""LR01 learning-rate-vanished."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress, trend_gain


@dataclass(frozen=True)
class LearningRateVanished(Detector):
    """The learning rate is almost zero, and training goes on.

    ## What it means
    The schedule ended before the run: further steps cost time and change nothing. Common reasons: the scheduler counts
    epochs but is called for every batch, its number of steps was computed before accumulation or for one device, or a
    warm-up never began.

    ## How it is told apart
    A schedule may end at zero with the run, or start there. It is reported if the learning rate is below 1/10,000 of
    its highest value for at least 50 steps and 2 % of the run (the tail of a cosine is shorter), or below 1 % for most
    of the run. It is info if the schedule ended as planned and the run continues for a while. It is a warning if

    - the learning rate was cut while the loss was falling, or after the loss had hardly begun to fall;
    - a third of the run had almost no learning rate, unless `ReduceLROnPlateau` lowered it on a real plateau;
    - the scheduler was stepped several times per optimizer step, as at each micro-batch;
    - the learning rate halves every 30 steps or fewer from the start: a decay by epochs, stepped at every batch.

    It is critical if the learning rate is negative.

    ## What to do
    Print `scheduler.get_last_lr()` once per epoch and compare it with the plan. Give the schedule the true number of
    `scheduler.step()` calls, or stop the run here. If a linear decay goes below zero, limit it: `max(0.0, ...)`.

    ## How to see that it is cured
    The learning rate reaches its final value at the last step, and the loss falls until then.

    ## Example
    >>> losses = [4.0 - 0.01 * min(step, 200) for step in range(260)]
    >>> print(LearningRateVanished().check(Chart.of(lr=[1e-3] * 200 + [0.0] * 60, loss=losses)))
    step 200: LR01 learning-rate-vanished (warning): the learning rate has been 0 since step 200, down from 0.001
    """

    code = "LR01"
    name = "learning-rate-vanished"
    reads = ("lr",)
    suggests = ("change-schedule", "scale-lr")
    references = ("https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",)
    every = 20
    closes_after = 2

    steps: int = 50
    """Steps that it must last."""
    share: float = 0.02
    """Share of the run that it must last."""
    ratio: float = 1e-4
    """Share of the highest learning rate below which it is almost zero."""
    low: float = 1e-2
    """Share of the highest learning rate below which no run spends most of its steps on purpose."""

    most: float = 0.7
    """Share of the run with a working learning rate below which the rest was wasted."""
    idle: float = 0.2
    """Share of the run without a learning rate from which it is a warning if the loss had hardly begun to fall."""
    hasty: float = 0.02
    """Share of the highest learning rate below which it is a warning if the learning rate halves"""
    half_life: float = 30.0
    """every this many steps, or fewer."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check how long the learning rate has been almost zero, or low, in steps and as a share of the run."""
        rates = chart["lr"]
        if rates.latest < 0:
            since = _under(chart, 0.0)
            message = f"the learning rate is negative ({number_text(rates.latest)}): each step increases the loss"
            return self.symptom(chart, "critical", message, value=rates.latest, limit=0.0, since=since)
        if rates.count < self.steps:
            return None
        top = 1.001 * rates.outline.highest  # a share of it may be met exactly
        if not rates.latest <= self.hasty * top or top <= 0:
            return None
        life = _half_life(chart)
        if life <= self.half_life and not _has_arrived(chart, 0.3):
            message = f"the learning rate halves every {_between_cuts(chart, life):.0f} steps, and fell from "
            message += f"{number_text(top)} to {number_text(rates.latest)} in {chart.step + 1} steps"
            return self.symptom(chart, "warning", message, value=rates.latest, limit=self.hasty * top, since=0)
        if not rates.latest <= self.low * top:
            return None
        low = _under(chart, self.low * top)
        long = chart.step - low + 1 >= max(self.steps, 0.6 * chart.step)
        since = _under(chart, self.ratio * top)
        if chart.step - since + 1 < max(self.steps, self.share * chart.step):
            if not long:
                return None
            since = low
        # A schedule that ended, in a run that continues for a while, is a plan; not if it is most of the run.
        wasted = low < self.most * chart.step and not _has_arrived(chart) and not _was_asked_for(chart, low)
        cut = highest_between(rates, since - 20, since - 1) > 0.1 * top and _was_falling(chart, since)
        hurried = chart.fact("schedule.interval") == 0 and not _has_arrived(chart)  # several times per optimizer step
        begun = chart.step - low < self.idle * chart.step or not _had_hardly_begun(chart, low)
        severity: Severity = "warning" if wasted or cut or hurried or not begun else "info"
        high, now = number_text(highest_between(rates, since, chart.step)), number_text(rates.latest)
        level = now if high == now else f"{high} or less"
        message = f"the learning rate has been {level} since step {since}, down from {number_text(top)}"
        message += "" if high == now else f", and is now {now}"
        return self.symptom(chart, severity, message, value=rates.latest, limit=self.low * top, since=since)


def _under(chart: Chart, limit: float) -> int:
    """The first step since which the learning rate has not been above a limit; the next step if it is now."""
    since = chart.step + 1
    for bucket in reversed(chart["lr"].outline.buckets()):
        if bucket[3] > limit:
            break
        since = bucket[0]
    return since


def highest_between(series: Series, first: int, last: int) -> float:
    """The highest value of a vital between two steps; 0 if it has none there."""
    return max((bucket[3] for bucket in series.outline.buckets() if first <= bucket[0] <= last), default=0.0)


def _has_arrived(chart: Chart, share: float = 0.1) -> bool:
    """Whether the loss has fallen below this share of its first value."""
    losses = chart["loss"]
    return abs(losses.baseline(128).recent) < share * abs(losses.first)


def _half_life(chart: Chart) -> float:
    """In how many steps the learning rate halves, if it has done so steadily from the start; otherwise infinity.

    Linear and cosine schedules fall late; a decay at a few milestones is constant in between.
    """
    buckets = chart["lr"].outline.buckets()
    first, now = buckets[0][3], chart["lr"].latest
    if not 0 < now < 0.5 * first or buckets[0][0] > 0 or len(buckets) < 32:
        return math.inf
    if _falls_at_validations(chart):
        return math.inf
    depth = math.log(first / now)
    fallen = [math.log(first / max(buckets[len(buckets) * part // 4][2], now)) / depth for part in (1, 2, 3)]
    if any(abs(share - part / 4) > 0.1 for part, share in enumerate(fallen, start=1)):
        return math.inf
    return math.log(2) * (chart.step + 1) / depth


def _between_cuts(chart: Chart, life: float) -> float:
    """The half-life from the first cut to the last: the steps before and after them belong to no whole period.

    >>> chart = Chart.of(lr=[0.5 ** (step // 10) for step in range(100)])
    >>> round(_half_life(chart), 1), _between_cuts(chart, 11.1)
    (11.1, 10.0)
    """
    rates = chart["lr"]
    cuts = np.flatnonzero(np.diff(rates.values) < 0) + 1
    if cuts.size < 2 or not rates.values[cuts[-1]] > 0:
        return life
    depth = math.log(rates.values[cuts[0]] / rates.values[cuts[-1]])
    return math.log(2) * float(rates.steps[cuts[-1]] - rates.steps[cuts[0]]) / depth


def _falls_at_validations(chart: Chart) -> bool:
    """Whether the learning rate is lowered only just after validations: at the end of epochs, or on a plateau."""
    rates, validated = chart["lr"], chart["val_loss"].steps
    cuts = rates.steps[1:][np.diff(rates.values) < 0]
    if not validated.size or not cuts.size or cuts.size > rates.values.size // 2:
        return False
    after = cuts - validated[np.maximum(np.searchsorted(validated, cuts, side="right") - 1, 0)]
    return bool(((after >= 0) & (after <= 2))[cuts >= validated[0]].all())


def _had_hardly_begun(chart: Chart, since: int) -> bool:
    """Whether the loss fell before this step, but by less than a fifth."""
    means = np.array([bucket[2] for bucket in chart["loss"].outline.buckets() if bucket[0] < since])
    gain, doubt = trend_gain(means)
    return gain > 3 * doubt and median(means[-means.size // 8 :]) > 0.8 * Progress.of(chart["loss"]).start > 0


def _was_asked_for(chart: Chart, since: int) -> bool:
    """Whether `ReduceLROnPlateau` lowered the learning rate because validation had stopped improving."""
    losses = chart["val_loss"]
    before = losses.values[losses.steps < since]
    if chart.context.get("scheduler") != "ReduceLROnPlateau" or before.size < 4:
        return False
    return int(np.argmin(before)) < before.size // 2


def _was_falling(chart: Chart, since: int) -> bool:
    """Whether the loss was falling just before this step."""
    means = np.array([bucket[2] for bucket in chart["loss"].outline.buckets() if bucket[0] < since])
    gain, doubt = trend_gain(means[-max(32, means.size // 2) :])
    return gain > 3 * doubt
