"""LO01 loss-spike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Baseline, Series
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, Detector, Outlook
from torchdoctor.symptoms.leaps import is_cut, is_relearnt, keeps_rhythm, of_fewer
from torchdoctor.symptoms.not_learning import chance_level
from torchdoctor.symptoms.progress import (
    JUMP,
    SETTLED,
    Progress,
    acts,
    extreme,
    keeps_its_rate,
    lr_jump,
    will_keep_its_rate,
)
from torchdoctor.symptoms.tails import tail

ALERT = 2.0
"""Deviations that are enough right after a leap of the learning rate."""
LOADED = 3.5
"""Deviations that are enough right after a state was loaded."""
ABSURD = 1000.0
"""Times the recent loss that no sample is as hard as: a wrong one."""
FEW_TIMES = 8.0
"""Times the recent loss that a hard batch may cost."""
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
    heavy-tailed losses stay silent), what its upper tail in the recent past makes likely, and a share of what the run
    has gained since its start. It is a note while it is small, a warning when it is several times the recent loss,
    worse than the untrained model, comes right after a learning rate that the run had never used, or comes with a
    gradient explosion. In a loop that acts and learns from what came of it, it is a note, unless it is far above all
    that the run has known: a target network that is renewed, or a longer episode, lifts the loss. So is a single high
    loss whose gradient rose no further than itself, or whose step is clipped and which is a few times as high: a hard
    sample; unless a batch of many was answered far worse than by a guess, and the next one well again: then its labels
    or inputs were wrong as a whole. So is one that comes at the same distance again: a penalty at every sixteenth step.
    If the next loss is high too, the update has done harm; unless no step before it was unusual, the loss does not fall
    back at once, and comes down from where it leapt to: a new task, a new term of the loss, weights that were pruned.
    Of a sum over samples, there may be more of them.

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
    guess: float = 2.0
    """Times the loss of a guess, where that is known: a warning where the next batch is answered well again,"""
    many: int = 32
    """and so many samples were wrong together."""
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
        scale = max(base.noise, 0.003 * abs(base.recent)) * math.sqrt(of_fewer(chart))
        if not ALERT * scale < rise < math.inf:
            return self._wrong_as_a_whole(chart, base) if self.name in chart.open_episodes else None
        loaded = _was_loaded(chart)  # what an old state brings back has its precedents: the losses of that time
        deviations = LOADED if loaded else self.deviations
        limit = extreme(deviations, base.count) * scale
        jump = lr_jump(chart) > JUMP
        if not jump and not rise > limit:
            return None
        progress = Progress.of(series)
        if not jump and not loaded and not self._unprecedented(chart, rise, progress, deviations):
            return None
        positive = base.recent > 0 and series.lowest > 0
        alone = bool(series.values[-2] < base.recent + limit)
        grave = (
            self._grave(progress, base, loss, positive)
            or jump
            or (_exploding(chart) and rise > 0.25 * progress.descent)
            or (loaded and rise > 0.2 * progress.descent)  # the place is known: less is enough
            or (loaded and positive and _is_set_back(chart, base.recent, progress.start))
        )
        if acts(chart) and not jump and not loss > self.beyond * max(abs(progress.start), abs(base.recent)):
            grave = False  # new targets and new experience lift a loss, too
        if grave and not (jump or loaded):
            # of one batch, so far, or of a new task; whether the update did harm, the next loss will tell
            grave = not self._is_its_own(chart, base, limit, alone)
        notable = rise > self.share * progress.descent or (positive and loss > self.notice * base.recent)
        if not grave and not notable:
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
        return not rise > LOADED * scale and keeps_its_rate(chart, coming)

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
                least = LOADED if chart.fact("state.loaded") else self.deviations
                odd = rise > extreme(least, base.count) * scale
        odd[1:] |= odd[:-1].copy()  # of a batch that was wrong as a whole, the next one tells
        episode = chart.open_episodes.get(self.name)
        odd[:1] |= episode is not None and episode.last_step == chart.step
        return np.where(odd & (losses < math.inf), LOOK, CALM).astype(np.int8)

    def _wrong_as_a_whole(self, chart: Chart, base: Baseline) -> Symptom | None:
        """One batch that was answered far worse than by a guess, between others that are answered well.

        A few hard samples do not make the mean of many of them so high; a new task would not be over with the next.
        """
        series, size = chart["loss"], chart.context.get("batch_size")
        if chart.open_episodes[self.name].last_step != chart.step - 1 or len(series) < 3:
            return None
        if not isinstance(size, int) or size < self.many or int(series.steps[-2]) != chart.step - 1:
            return None
        before, loss = (float(value) for value in series.values[-3:-1])
        guess = _guess_among_classes(chart)
        if not loss > self.guess * guess or not max(base.recent, before, series.latest) < 0.5 * guess:
            return None
        message = f"loss {number_text(loss)} of a batch of {size} samples is {number_text(loss / guess)} times that of "
        message += f"a guess, between others at {number_text(base.recent)}: its labels or inputs are wrong as a whole"
        limit = self.guess * guess
        return self.symptom(chart, "warning", message, value=loss, limit=limit, since=chart.step - 1)

    def _young(self, chart: Chart) -> Symptom | None:
        """A run that has no scale of its own yet: more than a thousand times whatever it had is no start's wildness."""
        values = chart["loss"].values
        highest = float(values[:-1].max())
        if not highest * ABSURD < values[-1] < math.inf or not values.min() > 0 or acts(chart):
            return None
        message = f"loss {number_text(float(values[-1]))} rose from at most {number_text(highest)} before"
        return self.symptom(chart, "warning", message, value=float(values[-1]), limit=ABSURD * highest)

    def _grave(self, progress: Progress, base: Baseline, loss: float, positive: bool) -> bool:
        """Several times the recent loss; or worse than untrained by far, in a run that had learnt something."""
        rise = loss - base.recent
        if positive and loss > self.ratio * base.recent and rise > self.share * progress.descent:
            return True
        if not loss > progress.start or not progress.is_learning(base.noise):
            return False
        high = rise > 20 * base.noise or (positive and loss > 3 * base.recent)
        return high and rise > 0.5 * progress.descent

    def _is_its_own(self, chart: Chart, base: Baseline, limit: float, alone: bool) -> bool:
        """Whether the batch, the task or the loop's own way made the loss high, not an update."""
        series = chart["loss"]
        times = series.latest / base.recent if base.recent > 0 and series.lowest >= 0 else 1.0
        # Of next to nothing anything is a thousand times as much: it must be far worse than the untrained model, too.
        if times > ABSURD and series.latest > FEW_TIMES * Progress.of(series).start:
            return False
        if not alone:
            return is_relearnt(chart, base.recent + limit)
        return _is_outlier(chart, times) or keeps_rhythm(series) or (times < FEW_TIMES and is_cut(chart))

    def _unprecedented(self, chart: Chart, rise: float, progress: Progress, deviations: float) -> bool:
        """Whether the rise leaves its precedents far behind; for positive losses in log space, extreme there too."""
        series = chart["loss"]
        values = series.last(self.precedents + 1)[: -1 - SKIP]
        if not float(values.min()) > 0:
            return rise > tail(series, self.precedents + 1, 1 + SKIP, habit=2.0)
        base = series.baseline(self.window, log=True)
        times = math.log(series.latest) - base.recent
        # A run that has arrived has wild relative noise, and yet half of its descent in one step is no noise.
        near = max(series.latest - rise - progress.best, series.baseline(self.window).noise) < 0.02 * progress.descent
        arrived = near and rise > 0.5 * progress.descent
        if not arrived and not times > extreme(deviations, base.count) * (base.noise + 2 / base.count):
            return False
        return times > tail(series, self.precedents + 1, 1 + SKIP, log=0.0)


def _guess_among_classes(chart: Chart) -> float:
    """The loss of a guess where classes are told, two or many; NaN where it is not known.

    Errors of numbers have no such bound: one outlier makes the mean of a batch as high as it likes.
    """
    if chart.fact("loss.classes") or chart.fact("loss.kind") in ("cross-entropy", "bce"):
        return chance_level(chart)
    return math.nan


def _was_loaded(chart: Chart, within: int = 3, habit: int = 4) -> bool:
    """Whether a state was loaded into the model just before; a loop that does so again and again means it."""
    steps = chart.fact("state.loaded") or ()
    return any(0 <= chart.step - step < within for step in steps) and len(steps) <= habit


def _is_set_back(chart: Chart, recent: float, start: float, times: float = 3.0, share: float = 0.15) -> bool:
    """Whether a loss that came down by powers of ten went up by a good part of them at once, and stays there.

    In a share of the descent that is nothing. Who goes back to the best state on purpose lowers the rate with it.
    """
    series, rates = chart["loss"], chart["lr"].last(4)
    cut = rates.size > 0 and float(rates[-1]) < 0.8 * float(rates[0])
    if cut or not _is_apart(series) or not series.latest > times * recent:
        return False
    return math.log(series.latest / recent) > share * math.log(start / recent)


def _is_apart(series: Series, since: int = 3, before: int = 16) -> bool:
    """Whether the last losses are all above those before them."""
    values = series.last(since + before)
    return values.size == since + before and float(values[-since:].min()) > float(values[:-since].max())


def _exploding(chart: Chart) -> bool:
    episode = chart.open_episodes.get("gradient-explosion")
    return episode is not None and episode.severity != "info" and episode.last_step >= chart.step - 5


def _is_outlier(chart: Chart, times: float) -> bool:
    """Whether the gradient of this step rose no further than its loss: hard samples."""
    norms = chart["grad_norm"]
    base = norms.baseline(128, log=True)
    if base.count < SETTLED // 2 or not norms.latest > 0 or norms.step != chart.step:
        return False
    risen = math.log(norms.latest) - base.recent
    if base.count < SETTLED:  # of few norms, only one that has not risen says something
        return risen < math.log(1.5)
    return risen < math.log(max(1.5, times))
