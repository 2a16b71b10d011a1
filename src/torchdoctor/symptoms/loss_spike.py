"""LO01 loss-spike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import TINY, Baseline, Series
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, Detector, Outlook
from torchdoctor.symptoms.progress import (
    JUMP,
    SETTLED,
    SLACK,
    Progress,
    acts,
    extreme,
    highest_of_last,
    is_restart,
    keeps_its_rate,
    log_spread,
    lr_jump,
    third_highest_rise,
    will_keep_its_rate,
)

ALERT = 2.0
"""Deviations that are enough right after a leap of the learning rate."""
SHAKEN = 3.5
"""Deviations that are enough right after a leap of the gradient that no loss accounts for."""
LASTING = 3
"""Losses among which one that is followed by another high one may have been the highest."""
ABSURD = 1000.0
"""Times the recent loss that no sample is as hard as: a wrong one."""
FEW_TIMES = 8.0
"""Times the recent loss that a batch with an outlier in it may cost, whose gradient rises further than its loss."""
SKIP = 8
"""Values before the current one that do not count as precedents: they may belong to the same spike."""


@dataclass(frozen=True)
class LossSpike(Detector):
    """The loss rises suddenly, far beyond its own noise.

    ## What it means
    Either this batch is unlike the others, or the last update broke something. A spike that returns within a few
    steps is usually the batch; one that stays is usually the update, and `loss-divergence` takes over.

    ## How it is told apart
    The rise must exceed the run's own noise about its trend (in log space too where losses are positive, so
    heavy-tailed losses stay silent), every precedent of the recent past, and a share of what the run has gained since
    its start. It is a note while it is small, a warning when it is several times the recent loss, worse than the
    untrained model, comes right after a learning rate that the run had never used or after a gradient that leapt while
    the loss was calm, or comes with a gradient explosion. A harder curriculum lifts the loss to a level under its
    start, and it stays there: a note at most. So is one in a loop that acts and learns from what came of it, unless it
    is far above all that the run has known: a target network that is renewed, or a longer episode, lifts the loss.
    So is a single high loss whose gradient rose no further than itself, or than the run knew before: a hard sample.
    If the next loss is high
    too, the update has done harm; unless it is no higher than an untrained model's and falls from there at once: a new
    task.

    ## What to do
    Look at the batch of that step. If the loss does not come back: lower the learning rate, clip gradients, roll
    back to a checkpoint before the spike and skip a window of batches.

    ## How to see that it is cured
    The loss is back under its level before the spike, and stays there.

    ## Example
    >>> losses = [2.0, 2.1, 1.9, 2.05] * 16
    >>> print(LossSpike().check(Chart.of(loss=[*losses, 11.0])))
    step 64: LO01 loss-spike (warning): loss 11 rose from its recent 2.02, 5.43 times as much
    >>> LossSpike().check(Chart.of(loss=[*losses, 2.3]))
    """

    code = "LO01"
    name = "loss-spike"
    reads = ("loss",)
    suggests = ("set-clip-norm", "scale-lr", "clean-data", "roll-back", "ask-for-help")
    references = ("https://arxiv.org/abs/2204.02311", "https://arxiv.org/abs/2312.16903")

    window: int = 128
    """Values that the recent level and noise are taken from."""
    history: int = 24
    """Values that must be known before anything is said."""
    deviations: float = 6.0
    """Robust deviations above the recent level."""
    precedents: int = 512
    """Values in which no earlier rise may have been nearly as high (two are forgiven)."""
    ratio: float = 4.5
    """Times the recent loss: a warning."""
    notice: float = 1.5
    """Times the recent loss: worth a note."""
    share: float = 0.1
    """Share of the run's descent: worth a note."""
    beyond: float = 20.0
    """Times the first loss and the recent one: a warning where the loop collects its own experience."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the loss with its recent level; the quiet path ends at the first test."""
        series = chart["loss"]
        loss = series.latest
        base = series.baseline(self.window)
        if base.count < self.history:
            return self._young(chart) if base.count >= SKIP and loss > ABSURD * series.first > 0 else None
        rise = loss - base.recent
        scale = max(base.noise, 0.003 * abs(base.recent))
        if not ALERT * scale < rise < math.inf:
            return None
        shaken = rise > SHAKEN * scale and is_shaken(chart, base.recent + ALERT * scale)
        deviations = SHAKEN if shaken else self.deviations
        limit = extreme(deviations, base.count) * scale
        jump = lr_jump(chart) > JUMP
        if not jump and not rise > limit:
            return None
        progress = Progress.of(series)
        loaded = _was_loaded(chart)  # what an old state brings back has its precedents: the losses of that time
        if not jump and not loaded and not self._unprecedented(chart, rise, progress, deviations):
            return None
        positive = base.recent > 0 and series.lowest > 0
        alone = bool(series.values[-2] < base.recent + limit)
        worst = loss if alone else float(series.last(LASTING).max())
        grave = (
            self._grave(progress, base, worst, positive, positive and _has_settled(series, base.recent))
            or jump
            or (_exploding(chart) and rise > 0.25 * progress.descent)
            or (loaded and rise > 0.2 * progress.descent)  # the place is known: less is enough
        )
        if acts(chart) and not jump and not loss > self.beyond * max(abs(progress.start), abs(base.recent)):
            grave = shaken = False  # new targets and new experience lift a loss, too
        if grave and not (jump or loaded):
            times = loss / base.recent if positive else 1.0
            its_own = _is_outlier(chart, times) if alone else _is_new_task(chart, base, limit, progress.start)
            # of one batch, so far; whether the update did harm, the next loss will tell
            grave, shaken = grave and not its_own, shaken and not its_own
        notable = rise > self.share * progress.descent or (positive and loss > self.notice * base.recent)
        grave = grave or (shaken and rise > self.share * progress.descent and base.count >= SETTLED)
        if not grave and (not notable or is_restart(chart)):
            return None
        message = f"loss {number_text(loss)} rose from its recent {number_text(base.recent)}"
        if positive:
            message += f", {number_text(loss / base.recent)} times as much"
        if loss > progress.start > base.recent + limit:
            message += f", above the {number_text(progress.start)} of the first steps"
        severity: Severity = "warning" if grave else "info"
        return self.symptom(chart, severity, message, value=loss, limit=base.recent + limit)

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether the highest of these losses would end at the first tests."""
        base = chart["loss"].upcoming(self.window)
        rise, scale = max(coming["loss"]) - base.recent, max(base.noise, 0.003 * abs(base.recent))
        if base.count < self.history:
            return not max(coming["loss"]) > ABSURD * chart["loss"].first
        if not rise > ALERT * scale:
            return True
        return not rise > SHAKEN * scale and keeps_its_rate(chart, coming)

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The same for each of these losses."""
        base, losses = chart["loss"].upcoming(self.window), coming.columns["loss"]
        if base.count < self.history:
            return np.where(losses > ABSURD * chart["loss"].first, LOOK, CALM).astype(np.int8)
        with np.errstate(all="ignore"):
            rise, scale = losses - base.recent, max(base.noise, 0.003 * abs(base.recent))
            if not will_keep_its_rate(chart, coming):
                odd = rise > ALERT * scale
            else:
                odd = rise > extreme(self.deviations, base.count) * scale
                odd |= (rise > extreme(SHAKEN, base.count) * scale) & may_be_shaken(chart, coming)
        return np.where(odd & (losses < math.inf), LOOK, CALM).astype(np.int8)

    def _young(self, chart: Chart) -> Symptom | None:
        """A run that has no scale of its own yet: more than a thousand times whatever it had is no start's wildness."""
        values = chart["loss"].values
        highest = float(values[:-1].max())
        if not highest * ABSURD < values[-1] < math.inf or not values.min() > 0 or acts(chart):
            return None
        message = f"loss {number_text(float(values[-1]))} rose from at most {number_text(highest)} before"
        return self.symptom(chart, "warning", message, value=float(values[-1]), limit=ABSURD * highest)

    def _grave(self, progress: Progress, base: Baseline, loss: float, positive: bool, settled: bool) -> bool:
        """Several times the recent loss; or worse than untrained by far, in a run that had learnt something."""
        rise = loss - base.recent
        if positive and loss > self.ratio * base.recent and rise > self.share * progress.descent and not settled:
            return True
        if not loss > progress.start or not progress.is_learning(base.noise):
            return False
        high = rise > 20 * base.noise or (positive and loss > 3 * base.recent)
        # So young a run has no scale of its own yet; a log-likelihood swings widely in its first steps.
        return high and rise > (0.5 if positive or base.count >= SETTLED else 6.0) * progress.descent

    def _unprecedented(self, chart: Chart, rise: float, progress: Progress, deviations: float) -> bool:
        """Whether the rise leaves its precedents far behind; for positive losses in log space, extreme there too."""
        series = chart["loss"]
        values = series.last(self.precedents + 1)[: -1 - SKIP]
        if not float(values.min()) > 0:
            return rise > 2 * third_highest_rise(series, self.precedents + 1, 1 + SKIP)
        base = series.baseline(self.window, log=True)
        times = math.log(series.latest) - base.recent
        # A run that has arrived has wild relative noise, and yet half of its descent in one step is no noise.
        near = max(series.latest - rise - progress.best, series.baseline(self.window).noise) < 0.02 * progress.descent
        arrived = near and rise > 0.5 * progress.descent
        if not arrived and not times > extreme(deviations, base.count) * (base.noise + 2 / base.count):
            return False
        return times > 1.4 * third_highest_rise(series, self.precedents + 1, 1 + SKIP, log=0.0)


def _has_settled(series: Series, recent: float) -> bool:
    """Whether a positive loss went to a new level a few steps ago and has stayed there: a harder task, not a spike."""
    before = series.last(6)[:-1]
    middle = float(np.sort(before)[2])
    return float(before.min()) > math.sqrt(recent * middle) and series.latest < 1.5 * middle


def _is_new_task(chart: Chart, base: Baseline, limit: float, start: float, most: int = 16) -> bool:
    """Whether the loss went up to about that of the untrained model, no update to blame, and is being learnt again.

    The gradient leapt with it, not before it, and no further. The next loss is about as high as the first, as it is
    not after one bad batch, and all fall from there on, as they do not where an update did harm.
    """
    losses, norms = chart["loss"].values[-most:], chart["grad_norm"]
    under = np.flatnonzero(losses < base.recent + limit)
    usual = norms.baseline(128, log=True).recent
    if not under.size or not base.recent > 0 or norms.step != chart.step or norms.values.size < most:
        return False
    place = int(under[-1]) + 1
    since, leaps = losses[place:], np.log(np.abs(norms.values[-losses.size :]) + TINY) - usual
    first = float(since[0])
    # Of two losses, noise may have made the second the higher one; what is new to learn has a gradient.
    least = 1.1 if since.size == 2 and float(leaps[place]) > math.log(3) else 0.97
    falls = since[-1] < least * first and 0.97 * first < 1.94 * start and bool((np.diff(since) < 0.1 * first).all())
    calm = bool((leaps[max(0, place - 3) : place] < math.log(3)).all())
    return falls and calm and since[1] > 0.5 * first and float(leaps[place]) < math.log(first / base.recent)


def _was_loaded(chart: Chart, within: int = 3, habit: int = 4) -> bool:
    """Whether a state was loaded into the model just before; a loop that does so again and again means it."""
    steps = chart.fact("state.loaded") or ()
    return any(0 <= chart.step - step < within for step in steps) and len(steps) <= habit


def _exploding(chart: Chart) -> bool:
    episode = chart.open_episodes.get("gradient-explosion")
    return episode is not None and episode.severity != "info" and episode.last_step >= chart.step - 5


def _is_outlier(chart: Chart, times: float) -> bool:
    """Whether the gradient of this step rose no further than its loss, and that by no absurd factor: hard samples."""
    norms = chart["grad_norm"]
    base = norms.baseline(128, log=True)
    if base.count < SETTLED // 2 or not norms.latest > 0 or norms.step != chart.step:
        return False
    risen = math.log(norms.latest) - base.recent
    if base.count < SETTLED:  # of few norms, only one that has not risen says something
        return times < ABSURD and risen < math.log(1.5)
    if times < ABSURD and risen < math.log(max(1.5, times)):
        return True
    # The mean gradient of many samples is small, and one outlier's is not: it may rise twice as far.
    calm = float(norms.last(4)[:-1].max()) < 3 * math.exp(base.recent)
    known = float(norms.values[SETTLED:-4].max(initial=0.0)) > 0.5 * norms.latest  # such batches came before
    return times < FEW_TIMES and calm and known and risen < 2 * math.log(times)


def is_shaken(chart: Chart, calm: float, within: int = 3, times: float = 6.0) -> bool:
    """Whether the gradient leapt at one of the last steps although its loss was calm: the update, not the batch.

    Each alone may be chance where losses and norms swing widely; in this order they are not.
    """
    norms, losses = chart["grad_norm"], chart["loss"]
    base = norms.baseline(128, log=True)
    before = slice(-within - 1, -1)
    recent = losses.values[before][losses.steps[before] >= chart.step - within]
    if base.count < 32 or norms.step != chart.step or not recent.size:
        return False
    leap = np.log(np.abs(norms.values[before][-recent.size :]) + TINY) - base.recent
    high = leap > max(math.log(times), 3 * log_spread(base, 128))
    return recent.size == leap.size and bool((high & (recent < calm)).any())


def may_be_shaken(chart: Chart, coming: Stretch, within: int = 3, times: float = 6.0) -> NDArray[np.bool_]:
    """At which of the steps that come `is_shaken` may be true: in doubt, at all of them."""
    norms = coming.columns.get("grad_norm")
    if norms is None or not np.isfinite(norms).all():
        return np.full(len(coming), norms is not None)
    base = chart["grad_norm"].upcoming(128, log=True)
    highest = np.log(highest_of_last(chart["grad_norm"], np.abs(norms), within + 1) + TINY)
    return np.asarray((highest - base.recent > math.log(times) - SLACK) & (base.count >= 32))
