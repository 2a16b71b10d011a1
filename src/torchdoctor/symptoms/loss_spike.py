"""LO01 loss-spike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Baseline, Series, median
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
"""Deviations that are enough right after the learning rate jumped."""
LOADED = 3.5
"""Deviations that are enough right after a state was loaded."""
ABSURD = 1000.0
"""Factor over the recent loss that no hard sample explains: the sample is wrong."""
FEW_TIMES = 8.0
"""Factor over the recent loss that a hard batch can explain."""
SOLVED = 0.3
"""Share of its start below which high losses are samples that a nearly solved, clipped run still gets wrong."""
PART = 0.25
"""Share of a loss's rise, in log space, that the norm of a hard batch rises at least; squares make it a half."""
SKIP = 8
"""Values just before the current one that do not count as precedents: they may belong to the same spike."""


@dataclass(frozen=True)
class LossSpike(Detector):
    """The loss suddenly jumps far above its recent level and noise.

    ## What it means
    Either this batch is unlike the others, or the last update damaged the model. A spike that is gone after a few
    steps usually comes from the batch. One that stays usually comes from the update; `loss-divergence` takes over.

    ## How it is told apart
    The jump must be large compared with three things: the noise around the recent trend, the highest jumps of the last
    512 steps, and the progress since the start. If all losses are positive, jumps are compared in log space, so
    heavy-tailed losses stay silent.

    It is a warning if the loss is several times its recent level, is worse than the untrained model, comes with a
    gradient explosion, or comes right after the learning rate jumped or a state was loaded. Otherwise it is info.
    It also stays info if the jump has a harmless explanation:
    - Hard samples: one or two high losses whose gradients rose no more than they did, or were clipped.
    - A rhythm: the spike returns at a fixed distance, such as a penalty at every 16th step.
    - A new task, a new loss term or pruned weights: no unusual update came before, and the loss falls from there.
    - A change by the loop that was seen at that step: another optimizer, tensors that join the optimizer or begin to
      get gradients, a loss of a new name, another data set. The message names it, and the loss must come down again.
    - Reinforcement learning: a renewed target network or a longer episode raises the loss. Only a loss far above
      everything before is a warning.

    If a single large batch is far above chance level and the next one is fine, its labels or inputs are reported as
    wrong.

    ## What to do
    Look at the batch of that step. If the loss does not come back: lower the learning rate, clip gradients, roll
    back to a checkpoint before the spike and skip a window of batches.

    ## How to see that it is cured
    The loss is back below its level before the spike, and stays there.

    ## Example
    >>> losses = [2.0, 2.1, 1.9, 2.05] * 16
    >>> print(LossSpike().check(Chart.of(loss=[*losses, 11.0])))
    step 64: LO01 loss-spike (warning): loss jumped to 11 from its recent level of 2.02, 5.43 times as high
    >>> LossSpike().check(Chart.of(loss=[*losses, 2.3]))
    """

    code = "LO01"
    name = "loss-spike"
    reads = ("loss",)
    suggests = ("set-clip-norm", "scale-lr", "clean-data", "roll-back", "ask-for-help")
    references = ("https://arxiv.org/abs/2204.02311", "https://arxiv.org/abs/2312.16903")
    expects_changes = True

    window: int = 128
    """Recent values from which level and noise are estimated."""
    history: int = 24
    """Values needed before anything is reported."""
    deviations: float = 6.0
    """Robust deviations by which the loss must exceed its recent level."""
    precedents: int = 512
    """Values in which no earlier rise may have been nearly as high (the two highest are ignored)."""
    ratio: float = 4.5
    """Factor over the recent loss from which this is a warning."""
    notice: float = 1.5
    """Factor over the recent loss from which this is info."""
    share: float = 0.1
    """Share of the progress since the start from which this is info."""
    guess: float = 2.0
    """Factor over chance level (where known) from which a whole batch is reported as wrong, if the next one is fine,"""
    many: int = 32
    """and if it holds at least this many samples."""
    beyond: float = 20.0
    """Factor over the first and the recent loss from which this is a warning in reinforcement learning."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the loss with its recent level; ordinary values end at the first test."""
        series = chart["loss"]
        loss = series.latest
        base = series.baseline(self.window)
        if base.count < self.history:
            return self._young(chart) if base.count >= SKIP and loss > ABSURD * series.first > 0 else None
        rise = loss - base.recent
        scale = max(base.noise, 0.003 * abs(base.recent)) * math.sqrt(of_fewer(chart))
        if not ALERT * scale < rise < math.inf:
            return self._wrong_as_a_whole(chart, base) if self.name in chart.open_episodes else None
        loaded = _was_loaded(chart)  # an old state brings back old losses, so these are no precedents
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
            or (loaded and rise > 0.2 * progress.descent)  # the reason is known, so less is enough
            or (loaded and positive and _is_set_back(chart, base.recent, progress.start))
        )
        if acts(chart) and not jump and not loss > self.beyond * max(abs(progress.start), abs(base.recent)):
            grave = False  # new targets and new experience raise a loss, too
        if grave and not (jump or loaded):
            # It may be one batch or a new task; the next loss tells whether the update did harm.
            grave = not self._is_its_own(chart, base, limit, alone)
        notable = rise > self.share * progress.descent or (positive and loss > self.notice * base.recent)
        if not grave and not notable:
            return None
        message = f"loss jumped to {number_text(loss)} from its recent level of {number_text(base.recent)}"
        if positive:
            message += f", {number_text(loss / base.recent)} times as high"
        if loss > progress.start > base.recent + limit:
            message += f", above the {number_text(progress.start)} of the first steps"
        severity: Severity = "warning" if grave else "info"
        return self.symptom(chart, severity, message, value=loss, limit=base.recent + limit)

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether even the highest of these losses would fail the first tests."""
        base = chart["loss"].upcoming(self.window)
        rise, scale = max(coming["loss"]) - base.recent, max(base.noise, 0.003 * abs(base.recent))
        if base.count < self.history:
            return not max(coming["loss"]) > ABSURD * chart["loss"].first
        if not rise > ALERT * scale:
            return True
        return not rise > LOADED * scale and keeps_its_rate(chart, coming)

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The same test for each of these losses."""
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
        odd[1:] |= odd[:-1].copy()  # whether a whole batch was wrong shows at the next one
        episode = chart.open_episodes.get(self.name)
        odd[:1] |= episode is not None and episode.last_step == chart.step
        return np.where(odd & (losses < math.inf), LOOK, CALM).astype(np.int8)

    def _wrong_as_a_whole(self, chart: Chart, base: Baseline) -> Symptom | None:
        """One batch far above chance level between others far below it.

        A few hard samples do not raise the mean of a large batch that much, and a new task lasts longer than one batch.
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
        message = f"loss {number_text(loss)} of one batch of {size} samples is {number_text(loss / guess)} times the "
        message += f"chance level, other batches are at {number_text(base.recent)}: its labels or inputs must be wrong"
        limit = self.guess * guess
        return self.symptom(chart, "warning", message, value=loss, limit=limit, since=chart.step - 1)

    def _young(self, chart: Chart) -> Symptom | None:
        """The first steps, before noise can be estimated: a factor of a thousand is more than a wild start."""
        values = chart["loss"].values
        highest = float(values[:-1].max())
        if not highest * ABSURD < values[-1] < math.inf or not values.min() > 0 or acts(chart):
            return None
        message = f"loss jumped to {number_text(float(values[-1]))} from at most {number_text(highest)} before"
        return self.symptom(chart, "warning", message, value=float(values[-1]), limit=ABSURD * highest)

    def _grave(self, progress: Progress, base: Baseline, loss: float, positive: bool) -> bool:
        """Several times the recent loss, or far worse than untrained in a run that had learned something."""
        rise = loss - base.recent
        if positive and loss > self.ratio * base.recent and rise > self.share * progress.descent:
            return True
        if not loss > progress.start or not progress.is_learning(base.noise):
            return False
        high = rise > 20 * base.noise or (positive and loss > 3 * base.recent)
        return high and rise > 0.5 * progress.descent

    def _is_its_own(self, chart: Chart, base: Baseline, limit: float, alone: bool) -> bool:
        """Whether the batch, a new task or a rhythm of the loop raised the loss, and not an update."""
        series = chart["loss"]
        times = series.latest / base.recent if base.recent > 0 and series.lowest >= 0 else 1.0
        # Near zero everything is a thousand times as much, so it must be far worse than the untrained model, too.
        if times > ABSURD and series.latest > FEW_TIMES * Progress.of(series).start:
            return False
        if is_cut(chart) and series.latest < SOLVED * Progress.of(series).start:
            return True
        if not alone:
            return self._is_pair(chart, base, limit) or is_relearnt(chart, base.recent + limit)
        return _is_outlier(chart, times) or keeps_rhythm(series) or (times < FEW_TIMES and is_cut(chart))

    def _is_pair(self, chart: Chart, base: Baseline, limit: float) -> bool:
        """Whether two hard batches came one after the other, as they do in long runs: norms rose, but less than losses.

        A loss without any gradient to match shows that the model was changed.
        """
        before, *losses = chart["loss"].last(3).tolist()
        if before > base.recent + limit or not base.recent > 0:
            return False
        usual = median(chart["grad_norm"].last(2 * SKIP))
        hard = chart["grad_norm"].latest > usual * (losses[-1] / base.recent) ** PART
        pairs = zip((1, 0), losses, strict=True)
        return hard and all(_is_outlier(chart, loss / base.recent, back) for back, loss in pairs)

    def _unprecedented(self, chart: Chart, rise: float, progress: Progress, deviations: float) -> bool:
        """Whether the rise exceeds earlier rises by far; positive losses are compared in log space."""
        series = chart["loss"]
        values = series.last(self.precedents + 1)[: -1 - SKIP]
        if not float(values.min()) > 0:
            return rise > tail(series, self.precedents + 1, 1 + SKIP, habit=2.0)
        base = series.baseline(self.window, log=True)
        times = math.log(series.latest) - base.recent
        # A converged run has wild relative noise, but losing half of its descent in one step is not noise.
        near = max(series.latest - rise - progress.best, series.baseline(self.window).noise) < 0.02 * progress.descent
        arrived = near and rise > 0.5 * progress.descent
        if not arrived and not times > extreme(deviations, base.count) * (base.noise + 2 / base.count):
            return False
        return times > tail(series, self.precedents + 1, 1 + SKIP, log=0.0)


def _guess_among_classes(chart: Chart) -> float:
    """Chance level of a classification loss; NaN if it is not known.

    Regression losses have no such bound: one outlier can make the mean of a batch arbitrarily high.
    """
    if chart.fact("loss.classes") or chart.fact("loss.kind") in ("cross-entropy", "bce"):
        return chance_level(chart)
    return math.nan


def _was_loaded(chart: Chart, within: int = 3, habit: int = 4) -> bool:
    """Whether a state was loaded into the model just before; a loop that does so often does it on purpose."""
    steps = chart.fact("state.loaded") or ()
    return any(0 <= chart.step - step < within for step in steps) and len(steps) <= habit


def _is_set_back(chart: Chart, recent: float, start: float, times: float = 3.0, share: float = 0.15) -> bool:
    """Whether a loss that fell by powers of ten jumped back by some of them, and stays there.

    Measured as a share of the descent, that is tiny. Code that returns to the best state on purpose also lowers the
    learning rate.
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


def _is_outlier(chart: Chart, times: float, back: int = 0) -> bool:
    """Whether the gradient of this step, or of one before, rose no more than its loss: hard samples."""
    norms = chart["grad_norm"]
    base = norms.baseline(128, log=True)
    if base.count < SETTLED // 2 or norms.step != chart.step or not float(norm := norms.values[-1 - back]) > 0:
        return False
    risen = math.log(norm) - base.recent
    if base.count < SETTLED:  # with few norms known, only a norm that did not rise is conclusive
        return risen < math.log(1.5)
    return risen < math.log(max(1.5, times))
