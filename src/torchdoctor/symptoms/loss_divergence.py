"""LO02 loss-divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, Series, median, scatter
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, SAME, Detector, Outlook
from torchdoctor.symptoms.leaps import is_relearnt, own_leap
from torchdoctor.symptoms.progress import (
    Mask,
    Progress,
    acts,
    extreme,
    is_game,
    outline_levels,
    trend_gain,
)
from torchdoctor.symptoms.setbacks import RECENT, set_back
from torchdoctor.symptoms.target_values import is_summed

AT_HOME = 0.4
"""Share of earlier values above the limit from which the run counts as having always been there."""


@dataclass(frozen=True)
class LossDivergence(Detector):
    """The loss rises far above the level that it had reached, and does not come back.

    ## What it means
    Training undoes itself: step after step, the weights move away from what they had learned. This rarely heals by
    itself. It ends in useless outputs or in values that are not finite.

    ## How it is told apart
    A `loss-spike` comes back; divergence is judged by the median of several steps, compared with the progress of the
    run. It is found if one of these is true:
    - The loss is above its start, or has given back most of its progress and still rises.
    - The loss is back near its start for twice as long as it first took to leave it, and does not fall.
    - Training and validation loss are both far above their best at two evaluations, and neither improves.
    - The loss began below chance level and stays above it, or the first updates multiplied it and it stays high.
    - A run without progress (a wandering adversarial or reinforcement loss) leaves its whole range by far.

    It is critical if it lasts. A harder curriculum, a warm restart or a noisy stretch only gives back a part and falls
    again. A new task may lift the loss far above its start, but without an unusual update before it, and the loss then
    falls. A loss that is a sum over the batch is corrected for larger batches. If the loop was seen to change something
    just before (see `loss-spike`), this is info as long as the loss comes down.

    ## What to do
    Go back to the last good checkpoint. Continue with half the learning rate or less, and with clipped gradients.

    ## How to see that it is cured
    The loss gets below the level from which it diverged, and continues to fall.

    ## Example
    >>> losses = [4.0 - 0.05 * step for step in range(60)] + [1.0, 3.0, 5.0, 6.0, 6.5, 7.0, 7.2, 7.5]
    >>> print(LossDivergence().check(Chart.of(loss=losses)))
    step 67: LO02 loss-divergence (warning): loss level 7 is above the 4 that the run began with; its best was 1.16
    """

    code = "LO02"
    name = "loss-divergence"
    reads = ("loss", "val_loss")
    suggests = ("scale-lr", "set-clip-norm", "roll-back", "ask-for-help")
    references = ("https://arxiv.org/abs/2309.14322", "https://arxiv.org/abs/2205.01068")
    expects_changes = True

    history: int = 12
    """Values needed before anything is reported."""
    settled: int = 32
    """Values needed before the loss is compared with its start."""
    steps: int = 5
    """Latest values whose median is the present level."""
    given_back: float = 0.6
    """Share of the progress that is lost again, while the loss still rises: a warning."""
    times: float = 5.0
    """Without progress: the loss must rise by this many times the first loss."""
    acting: float = 100.0
    """The same in reinforcement learning: returns that grow by 10 make squared errors grow by 100."""

    back: float = 0.25
    """A loss within this share of its progress from the start is back at the start,"""
    again: float = 2.0
    """if it stays there this many times as long as it first took to leave the start,"""
    staying: int = 64
    """and at least for this many steps."""
    lost: float = 2.0
    """Factor on that duration from which it is critical."""

    guess: float = 1.3
    """Factor over chance level (where known) above which a run that began below it has diverged."""
    lasting: int = 32
    """Steps for which the loss must stay there."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the present level with start and best; ordinary values end at the first test."""
        series = chart["loss"]
        if chart["val_loss"].step == chart.step and (since := set_back(chart)) is not None:
            return self._set_back(chart, since)
        if series.count < self.history or not series.latest > series.first - 0.5 * (series.first - series.lowest):
            return None
        level = float(np.sort(series.last(self.steps))[self.steps // 2]) / growth(chart)
        guess = self.guess * _chance(chart)
        if series.count > self.lasting and series.first < guess < float(series.last(self.lasting).min()):
            message = f"loss level {number_text(level)} is far above chance level ({number_text(guess / self.guess)}); "
            message += f"it began at {number_text(series.first)}"
            return self.symptom(chart, "warning", message, value=level, limit=guess, since=_above_since(series, guess))
        if (limit := self._blown_up(chart)) > 0:
            message = f"loss level {number_text(level)} is {level / limit * self.times:.0f} times the first loss "
            message += f"({number_text(series.first)}) or the loss of a constant guess, whichever is higher"
            return self.symptom(chart, "warning", message, value=level, limit=limit, since=_above_since(series, limit))
        if self._is_undone(series, guess / self.guess):
            message = f"loss level {number_text(level)} is above the {number_text(series.first)} of the first step: "
            message += "the first updates made the model worse than a constant guess, and it has not recovered"
            return self.symptom(chart, "warning", message, value=level, limit=series.first, since=int(series.steps[1]))
        return self._departed(chart, level) or self._is_back(chart, level)

    def _departed(self, chart: Chart, level: float) -> Symptom | None:
        """Whether the level is above the start, or on its way there."""
        series = chart["loss"]
        progress, noise = Progress.of(series), series.baseline(128).noise
        least = (self.acting if acts(chart) else self.times) * abs(progress.start)
        if progress.is_learning(noise) and series.count >= self.settled and not acts(chart):
            if not level > progress.best + self.given_back * progress.descent:
                return None
            levels = outline_levels(series)
            if has_held(levels, progress):
                return self._left(chart, level, levels, noise)
        if not level > progress.start + max(least, 2 * self.times * noise):
            return None
        levels = np.sort(outline_levels(series))
        span = float(levels[levels.size // 4] - levels[levels.size // 20])  # of the lower, calmer part of the run
        limit = progress.start + max(least, self.times * max(span, 2 * noise))
        if level > limit and not _is_usual(series, level):
            return self._diverged(chart, level, limit, "critical" if self._lasting(chart, limit) else "warning")
        return None

    def _is_back(self, chart: Chart, level: float) -> Symptom | None:
        """Whether the loss is back at its starting level and stays there."""
        progress = Progress.of(chart["loss"])
        since = self._back_since(chart, progress)
        if since is None or not level > progress.best + self.given_back * progress.descent:
            return None
        message = (
            f"loss level {number_text(level)} has been back near its starting level of {number_text(progress.start)} "
        )
        message += f"for {chart.step - since} steps and does not fall; its best was {number_text(progress.best)}"
        limit = progress.start - self.back * progress.descent
        known = self.name in chart.open_episodes  # its onset was reported when it was found
        severity: Severity = "critical" if self._back_since(chart, progress, self.lost) is not None else "warning"
        return self.symptom(chart, severity, message, value=level, limit=limit, since=None if known else since)

    def _back_since(self, chart: Chart, progress: Progress, times: float = 1.0) -> int | None:
        """The step since which a run that had learned is back at its start, if that lasts longer than at first."""
        series, high = chart["loss"], progress.start - self.back * progress.descent
        recent = series.last(self.staying)
        if not self._may_be_back(progress, recent) or recent.size < self.staying:
            return None
        if not progress.is_learning(scatter(recent)):
            return None  # the noise between batches explains it
        if is_game(chart) or chart.fact("data.differentiated"):
            return None
        at, _, levels, _ = series.outline.columns()
        smooth = _without_single_values(levels)
        low = np.flatnonzero(smooth < high)
        if not low.size or not has_held(levels, progress):
            return None
        first = min(int(low[-1]) + 1, at.size - 1)  # after the last low value
        since, took = int(at[first]), int(at[low[0]]) - int(at[0])
        gain, _ = trend_gain(recent)
        lasting = chart.step - since > times * max(self.staying, self.again * took)
        return since if lasting and gain < 0.1 * progress.descent else None

    def _may_be_back(self, progress: Progress, *stretches: Array) -> bool:
        """A quick test: whether losses are near, or cross, the starting level of a run that had fallen below it."""
        levels, near = [median(losses) for losses in stretches if losses.size], self.back * progress.descent
        if not levels or not progress.is_learning(0.0):
            return False
        return min(levels) - near < progress.start < max(levels) + near

    def _is_undone(self, series: Series, chance: float) -> bool:
        """Whether a model that began below chance level got above it within a few steps, and has not recovered."""
        first = series.first
        if not first < 0.75 * chance or not self.lasting < series.count == series.values.size:
            return False
        worst, best = float(series.values[1:9].max()), float(series.last(self.lasting).min())
        return worst > chance and best > first + 0.2 * (chance - first)

    def _blown_up(self, chart: Chart) -> float:
        """The limit above which the loss jumped in the first steps and has stayed, even if it falls there; else 0.

        The limit follows from the untrained model and from a constant guess, so later losses cannot shift it.
        """
        series, guesses, plain = chart["loss"], chart["guess_loss"], chart["criterion"]
        if not guesses or not self.lasting < series.count == series.values.size or acts(chart):
            return 0.0
        if not abs(plain.first - series.first) < 0.05 * abs(series.first):  # the loss has other terms, too
            return 0.0
        limit = self.times * max(abs(series.first), median(guesses.values))
        return limit if 0 < limit < float(series.last(self.lasting).min()) else 0.0

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether all of these losses are in the lower half of the range between start and lowest loss."""
        series, losses = chart["loss"], coming["loss"]
        lowest = min(series.lowest, *losses)
        return series.count > 0 and not max(losses) > series.first - 0.5 * (series.first - lowest)

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The same tests for all of these losses, as long as start, best and the early levels do not change."""
        series, losses = chart["loss"], coming.columns["loss"]
        finite = np.isfinite(losses)
        lowest = np.minimum.accumulate(np.where(finite, losses, math.inf)).clip(max=series.lowest)
        odd = ~(losses <= series.first - 0.5 * (series.first - lowest)) & ~np.isnan(losses)
        steady = series.outline.steady if (odd & finite).any() and series.count >= self.settled else 0
        leapt = bool(chart["guess_loss"]) and float(losses[finite].max(initial=0)) > self.times * abs(series.first)
        if steady < 1 or not math.isnan(_chance(chart)) or leapt or growth(chart) > 1:
            return np.where(odd, LOOK, CALM).astype(np.int8)
        losses, finite, odd = losses[:steady], finite[:steady], odd[:steady]
        known = np.concatenate([series.last(self.steps - 1), losses[finite]])
        ordered = np.sort(np.lib.stride_tricks.sliding_window_view(known, self.steps), axis=1)
        level, low = np.zeros(losses.size), np.zeros(losses.size)
        level[finite], low[finite] = ordered[:, self.steps // 2], ordered[:, 0]
        same = self._narrow(chart, odd, level, low, known)
        outlook = np.where(odd, LOOK, CALM)
        outlook[odd & same] = SAME
        outlook[~finite & odd] = LOOK
        return outlook.astype(np.int8)

    def _narrow(self, chart: Chart, odd: Mask, level: Array, low: Array, coming: Array) -> Mask:
        """Reduce `odd` to the steps that may be found; return which of them would repeat the open finding."""
        series = chart["loss"]
        progress, noise, levels = Progress.of(series), series.upcoming(128).noise, outline_levels(series)
        least = (self.acting if acts(chart) else self.times) * abs(progress.start)
        more = coming.size // series.outline.stride + 2  # buckets that may be filled or begun meanwhile
        ordered, size = np.sort(levels), levels.size
        calmer = size // 4 - more
        span = float(ordered[calmer] - ordered[(size + more) // 20]) if calmer > 0 else 0.0
        beyond = level > progress.start + max(least, self.times * max(span, 2 * noise))
        same = np.zeros(level.size, dtype=bool)
        if not progress.is_learning(noise) or acts(chart):
            odd &= beyond
            return same
        odd &= level > progress.best + self.given_back * progress.descent
        if self._may_be_back(progress, series.last(self.staying), coming):
            return same
        half = progress.start - 0.5 * progress.descent
        if not (levels[-10:].min() > half and coming.min() > half):
            return same  # the answer of has_held may change
        if not has_held(levels, progress):
            odd &= beyond
            return same
        limit = progress.start + max(0.1 * progress.descent, 0.05 * abs(progress.start))
        far = level > progress.start + max(progress.descent, 0.5 * abs(progress.start))
        contrast = bool(chart.fact("data.differentiated")) and progress.best < 0
        gone = (level > limit) & (low > progress.start) & (far | (not contrast))
        if contrast or not has_held(levels, progress, progress.best + self.given_back * progress.descent):
            odd &= gone
        current = chart.open_episodes.get(self.name)
        if current is not None and current.severity != "info":
            same = gone if current.severity == "critical" else gone & ~far
        return same

    def _left(self, chart: Chart, level: float, levels: Array, noise: float) -> Symptom | None:
        """Whether a run that had learned and kept it is above its start, or on its way there."""
        series = chart["loss"]
        progress = Progress.of(series)
        limit = progress.start + max(0.1 * progress.descent, 0.05 * abs(progress.start))
        far = level > progress.start + max(progress.descent, 0.5 * abs(progress.start))
        earlier, known = series.values[: -self.steps], self.name in chart.open_episodes
        if not known and is_relearnt(chart, limit):
            return None  # a new task
        if not known and float((earlier > limit).mean()) > AT_HOME:
            return None  # if single samples are far below the rest, start and best are chance
        if not known and _comes_by_chance(series, limit):
            return None
        # Contrastive scores of data against generated samples: the samples catch up, and the loss rises to zero.
        contrast = bool(chart.fact("data.differentiated")) and progress.best < 0
        if level > limit and float(series.last(self.steps).min()) > progress.start and (far or not contrast):
            lasting = far and self._lasting(chart, limit)
            return self._diverged(chart, level, limit, "critical" if lasting else "warning")
        limit = progress.best + self.given_back * progress.descent
        if contrast or not has_held(levels, progress, limit) or (not known and _comes_by_chance(series, limit)):
            return None
        leapt = own_leap(chart, limit)  # a jump to the level of new data: what counts is whether it rises from there
        if _rising(series.last(64) if leapt is None else leapt, noise):
            return self._diverged(chart, level, limit, "warning")
        return None

    def _set_back(self, chart: Chart, since: int) -> Symptom:
        """Training and validation loss have both lost much of their progress."""
        losses, evaluations = chart["loss"], chart["val_loss"]
        level, best, now = median(losses.last(RECENT)), float(evaluations.values.min()), evaluations.latest
        message = f"loss level {number_text(level)} and validation loss {number_text(now)} (its best was "
        message += f"{number_text(best)}) are far above earlier values and do not fall"
        return self.symptom(chart, "warning", message, value=now, limit=best, since=since)

    def _lasting(self, chart: Chart, limit: float) -> bool:
        return chart["loss"].count >= 20 and median(chart["loss"].last(20)) > limit

    def _diverged(self, chart: Chart, level: float, limit: float, severity: Severity) -> Symptom:
        progress = Progress.of(chart["loss"])
        verb = "is above" if level > progress.start else "is on its way back to"
        began = min(progress.start, chart["loss"].first)  # the first level may already be that of a run that blows up
        message = f"loss level {number_text(level)} {verb} the {number_text(began)} that the run began with"
        if progress.best < began:
            message += f"; its best was {number_text(progress.best)}"
        return self.symptom(chart, severity, message, value=level, limit=limit)


def _comes_by_chance(series: Series, limit: float, recent: int = 64, longer: int = 20) -> bool:
    """Whether single losses are above the limit so often that a run of this length has three in five by chance.

    That is so if a batch is one sample. A longer stretch above the limit is no chance.

    >>> hard = [2.0 if step % 8 == 0 else 0.1 for step in range(1_000)]
    >>> _comes_by_chance(Chart.of(loss=hard)["loss"], 1.0), _comes_by_chance(Chart.of(loss=[0.1] * 1_000)["loss"], 1.0)
    (True, False)
    """
    older = series.values[:-recent]
    if older.size < recent:
        return False
    share = float((older > limit).mean())
    return 10 * share**3 * series.count > 0.1 and not median(series.last(longer)) > limit


def _above_since(series: Series, limit: float) -> int:
    """The first known step from which the loss stays above a limit."""
    below = np.flatnonzero(series.values <= limit)
    return int(series.steps[int(below[-1]) + 1 if below.size else 0])


def growth(chart: Chart) -> float:
    """The factor by which batches have grown, if the loss is a sum over the batch and grows with it; else 1.

    >>> chart = Chart.of(input_size=[64.0, 64.0, 128.0, 256.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": "sum"}})
    >>> growth(chart), growth(Chart.of(input_size=[64.0, 64.0, 128.0, 256.0]))
    (4.0, 1.0)
    """
    sizes = chart["input_size"]
    if not is_summed(chart) or sizes.count < 4 or not sizes.first > 0:
        return 1.0
    return max(1.0, float(sizes.last(2).max()) / sizes.first)


def _chance(chart: Chart) -> float:
    """Chance level, if the logged loss is the plain criterion that it belongs to; else NaN."""
    chance, plain, first = chart.fact("loss.chance"), chart["criterion"].first, chart["loss"].first
    return float(chance) if chance and abs(plain - first) < 0.05 * abs(first) else math.nan


def has_held(levels: Array, progress: Progress, limit: float = math.inf) -> bool:
    """Whether the loss stayed in the lower half of its descent once it was there, until the present rise.

    A loss that wanders up and down has a start and a best only by chance; its next rise is no divergence.

    >>> there_and_back = np.concatenate([np.linspace(4, 1, 50), np.ones(100), np.linspace(1, 4, 50)])
    >>> has_held(there_and_back, Progress(4.0, 1.0)), has_held(np.tile(there_and_back, 3), Progress(4.0, 1.0))
    (True, False)
    """
    above = levels > progress.start - 0.5 * progress.descent
    smooth = np.convolve(above, np.full(9, 1 / 9), mode="same")
    calm = np.flatnonzero(smooth < 0.5)
    held = above[int(calm[0]) : int(calm[-1]) + 1] if calm.size else above[:0]
    if held.size < 16:
        return True
    visits = _without_single_values(levels[int(calm[0]) : int(calm[-1]) + 1]) > limit
    return float(held.mean()) < 0.1 and float(visits.mean()) < 0.01


def _without_single_values(levels: Array, width: int = 5) -> Array:
    """A running median over the levels; the first and the last ones stay as they are.

    >>> _without_single_values(np.array([1.0, 1.0, 9.0, 1.0, 2.0, 2.0, 2.0]))
    array([1., 1., 1., 2., 2., 2., 2.])
    """
    if levels.size < width:
        return levels
    smooth, edge = levels.copy(), width // 2
    smooth[edge:-edge] = np.median(np.lib.stride_tricks.sliding_window_view(levels, width), axis=1)
    return smooth


def _is_usual(series: Series, level: float) -> bool:
    """Whether a positive loss usually changes by such factors from one value to the next, as with rare rewards.

    >>> _is_usual(Chart.of(loss=[2e-4, 2e-3, 1e-4, 2e-4, 2e-2, 4e-4, 1e-2, 3e-4, 2e-2, 1e-2, 1e-3, 2e-2])["loss"], 0.01)
    True
    """
    if not series.lowest > 0:
        return False
    logs = np.log(series.last(128))
    swing = float(np.std(np.diff(logs))) / 2**0.5  # around the mean change: steady growth is no swing
    return math.log(level) - median(logs[: logs.size // 2]) < extreme(3.0, logs.size) * swing


def _rising(values: Array, noise: float) -> bool:
    """Whether the median rises from quarter to quarter, in total by more than noise."""
    if values.size < 32:
        return False
    levels = [median(part) for part in np.array_split(values, 4)]
    return levels[0] < levels[1] < levels[2] < levels[3] and levels[3] - levels[0] > 2 * noise
