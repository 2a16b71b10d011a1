"""LO06 loss-oscillation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import TINY, Array, Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress, is_adversarial, is_game, trend_gain
from torchdoctor.symptoms.target_values import climbs_from_zero, is_summed

SHORT = 8
"""Period in steps below which a loop may be alternating between tasks."""


class Swing(NamedTuple):
    """A periodic swing in a stretch of losses."""

    period: float
    """In steps."""
    height: float
    """From trough to crest."""
    before: float
    """The same in the first half of the stretch."""
    start: int
    gaining: bool
    """Whether the stretch as a whole falls by more than 0.3 of a swing."""


@dataclass(frozen=True)
class LossOscillation(Detector):
    """The loss swings up and down with a fixed period, and the swings do not shrink.

    ## What it means
    The run goes back and forth instead of making progress. The period shows the cause:

    - Two steps: the learning rate is too high for the curvature, and each step overshoots the minimum.
    - Some tens of steps: momentum.
    - An epoch or a part of it: the data comes in a fixed, sorted order, and the model learns one part and forgets the
      other.

    ## How it is told apart
    Noise has no period, and a wandering loss has none that lasts: the autocorrelation must be high at one, two and
    three periods and negative half a period away. A loss that follows a cyclic learning rate is healthy. It is info if
    the swings ride on a falling loss or are small compared with the progress of the run, if tasks alternate, if the
    loss is a sum over batches whose sizes swing as much, and for losses of a policy or around zero. Two adversarial
    losses are not judged.

    ## What to do
    Period 2: halve the learning rate. Tens of steps: lower momentum or the learning rate. The length of an epoch:
    `DataLoader(..., shuffle=True)`, and shuffle files or shards as well.

    ## How to see that it is cured
    The loss of consecutive steps differs by noise only, and its level falls.

    ## Example
    >>> print(LossOscillation().check(Chart.of(loss=[3.0, 1.0, 2.9, 1.1] * 50, lr=[0.5] * 200)))
    step 0: LO06 loss-oscillation (warning): loss swings by 1.9 around 2, every 2 steps, and does not settle
    """

    code = "LO06"
    name = "loss-oscillation"
    reads = ("loss",)
    suggests = ("scale-lr", "set-momentum", "shuffle-data")
    references = ("https://arxiv.org/abs/2103.00065", "https://distill.pub/2017/momentum/")
    every = 50
    closes_after = 4

    steps: int = 64
    """Values needed before anything is reported."""
    correlation: float = 0.5
    """Autocorrelation that must be exceeded at one, two and three periods."""
    periods: int = 4
    """Periods that a stretch must contain."""
    share: float = 0.4
    """Height of a swing, as a share of the run's descent, above which it is a warning."""
    level: float = 0.05
    """Height of a swing, as a share of the loss, above which it is reported."""

    def check(self, chart: Chart) -> Symptom | None:
        """Look for a period in the recent values, and in the outline of the run."""
        series = chart["loss"]
        if series.count < self.steps or is_adversarial(chart):
            return None
        swing = self._swing(series)
        if swing is None or _rate_swings(chart, swing.start):
            return None
        stretch = series.values[series.steps >= swing.start]
        centre = median(stretch)
        if not swing.height > self.level * abs(centre) or swing.height < 0.7 * swing.before:
            return None
        progress = Progress.of(series)
        # Swings that grow, with peaks above the first loss, are serious even while the stretch falls.
        growing = swing.height > 1.2 * swing.before and centre + swing.height / 2 > progress.start
        grave = swing.height > self.share * max(progress.start - centre, 0.0) and (growing or not swing.gaining)
        # A target network that is updated periodically raises the loss with that period. A loss around zero has no
        # level to fall from: repeated passes over the same samples lower it, and the next samples raise it again.
        about_zero = series.lowest < 0 and (abs(centre) < swing.height or _has_both_signs(stretch))
        grave = grave and not is_game(chart) and not about_zero and not climbs_from_zero(chart)
        grave = grave and not (swing.period < SHORT and _takes_turns(chart))
        grave = grave and not _sizes_swing(chart, swing.height / (abs(centre) + TINY))
        severity: Severity = "warning" if grave else "info"
        message = (
            f"loss swings by {number_text(swing.height)} around {number_text(centre)}, every "
            f"{number_text(round(swing.period))} steps{', and does not settle' if grave else ''}"
        )
        return self.symptom(chart, severity, message, value=swing.height, confidence=0.8, since=swing.start)

    def _swing(self, series: Series) -> Swing | None:
        recent = min(len(series), 256)
        found = self._periodic(series.last(recent), series.steps[-recent:])
        if found is None and series.count > 256:
            means = series.outline.means()
            some = slice(means.size // 4, None, max(1, means.size // 350))
            if period(means[some], self.correlation, self.periods):
                found = self._periodic(means[some], series.outline.columns()[0][some])
        return found

    def _periodic(self, values: Array, steps: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Swing | None:
        lag = period(values, self.correlation, self.periods)
        if not lag:
            return None
        half = values.size // 2
        gain, _ = trend_gain(values)
        height = _height(values[half:], lag)
        stride = float(steps[-1] - steps[0]) / (steps.size - 1)
        return Swing(lag * stride, height, _height(values[:half], lag), int(steps[0]), gain > 0.3 * height)


def _sizes_swing(chart: Chart, share: float) -> bool:
    """Whether the loss is a sum over batches whose sizes vary by as large a share.

    >>> chart = Chart.of(input_size=[800.0, 100.0, 120.0, 900.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": "sum"}})
    >>> _sizes_swing(chart, 0.3), _sizes_swing(Chart.of(input_size=[64.0] * 4), 0.3)
    (True, False)
    """
    sizes = chart["input_size"].last(16)
    if not is_summed(chart) or sizes.size < 4:
        return False
    return float(np.ptp(sizes)) > share * median(sizes)


def period(values: Array, correlation: float, periods: int) -> int:
    """The lag at which a stretch of values repeats itself; 0 if there is none.

    >>> period(np.sin(np.arange(200) / 3), 0.5, 6), period(np.random.default_rng(0).standard_normal(200), 0.5, 6)
    (19, 0)
    """
    count = values.size
    longest = count // periods
    if longest < 2:
        return 0
    at, square = _places(count)
    with np.errstate(all="ignore"):
        rest = values - values.sum() / count
        rest -= at * ((at @ rest) / square)
        ordered = np.sort(rest)
        rest = np.minimum(np.maximum(rest, ordered[count // 50]), ordered[-1 - count // 50])  # a spike is no period
        # Batches in the same order repeat their noise every epoch, but consecutive values are then uncorrelated.
        if not abs(float(rest[1:] @ rest[:-1])) > 0.25 * float(rest @ rest):
            return 0
        power = np.abs(np.fft.rfft(rest, 2 * count)) ** 2
        shared = np.fft.irfft(power)[:count] / np.arange(count, 0, -1)
        returns = shared / shared[0] if shared[0] > 0 else np.zeros(count)
    if not np.isfinite(returns).all() or not abs(float(returns[1])) > 0.3:
        return 0
    crossed = np.flatnonzero(returns[: longest + 1] < -0.05)
    if not crossed.size:
        return 0
    start = int(crossed[0])
    within = returns[start : longest + 1]
    lag = start + int(np.argmax(within > 0.85 * within.max()))  # the shortest period, not a multiple of it
    while lag < longest and returns[lag + 1] > returns[lag]:
        lag += 1
    again = [float(returns[lag * times - 1 : lag * times + 2].max()) for times in (1, 2, 3)]
    half_way = float(returns[lag // 2 : (lag + 1) // 2 + 1].min())
    return lag if min(again) > correlation and half_way < -0.1 * correlation else 0


@lru_cache(maxsize=16)
def _places(count: int) -> tuple[Array, float]:
    """The centered positions of this many values, and the sum of their squares."""
    at: Array = np.arange(count, dtype=np.float64) - (count - 1) / 2
    return at, float(at @ at)


def _height(values: Array, lag: int) -> float:
    """From trough to crest of the median period, in which noise averages out."""
    whole = values[values.size % lag :].reshape(-1, lag)
    shape = np.median(whole, axis=0)
    return float(shape.max() - shape.min())


def _has_both_signs(values: Array) -> bool:
    """Whether more than 10 % of the values are above zero, and more than 10 % below."""
    return min(float((values > 0).mean()), float((values < 0).mean())) > 0.1


def _takes_turns(chart: Chart, least: int = 2) -> bool:
    """Whether some tensors have a gradient at some steps and none at others: tasks alternate, each with its own level.

    Samples may fall on the same task again and again, so a tensor needs a gradient only once in the whole run.
    """
    there = np.isfinite(chart.tensors("grad_norm").matrix())
    times = there.sum(axis=0)
    return len(there) > least and bool(((times > 0) & (times <= len(there) - least)).any())


def _rate_swings(chart: Chart, since: int) -> bool:
    """Whether the learning rate itself went up and down."""
    starts, _, means, _ = chart["lr"].outline.columns()
    changes = np.diff(means[starts >= since])
    return changes.size > 1 and bool((changes > 0.02 * means[starts >= since].max()).any() and (changes < 0).any())
