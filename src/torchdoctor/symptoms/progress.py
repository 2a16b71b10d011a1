"""How far a loss has fallen: the scale against which rises, plateaus and divergence are judged.

A rise of 0.5 means nothing for a summed loss of 10,000, and ruins a run with a loss of 0.1. The run's own descent, from
its start to its best level, gives a scale for every loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from torchdoctor.chart import Chart
from torchdoctor.series import EMPTY, TINY, Array, Baseline, Series, median
from torchdoctor.stretch import Stretch

Mask = NDArray[np.bool_]

JUMP = 3.0
"""Factor between two steps above which a change of the learning rate counts as a jump: no schedule rises so fast."""
PLAYERS = (
    frozenset({"g", "gen", "generator", "netg", "net_g", "forger"}),
    frozenset({"d", "dis", "disc", "discriminator", "netd", "net_d", "critic"}),
)
"""Common names for the two players of an adversarial game."""
LEAPT = 0.4
"""Share of the highest recent learning rate that the jump must reach; the first steps of a warm-up do not."""
DRIFT = 0.3
"""Share of a step due to weight decay above which decay sets the direction over dozens of steps: noise averages out."""
SETTLED = 48
"""Values after which a run has a scale of its own; before that, a jump must be larger to count."""
SLACK = 1e-9
"""Tolerance between logarithms computed for one number and for an array."""
BLOCKS = 8
"""Blocks that a window is cut into: the trend is fitted to their medians, which takes a few microseconds."""

EARLIER, LATER = np.triu_indices(BLOCKS, 1)


@dataclass(frozen=True, slots=True)
class Progress:
    """Levels of a loss over the whole run.

    >>> progress = Progress.of(Chart.of(loss=[10.0 - 0.1 * step for step in range(80)])["loss"])
    >>> progress.start, round(progress.best, 1), round(progress.descent, 1)
    (10.0, 2.5, 7.5)
    """

    start: float
    """The start of the run: its first value, or the level of its first steps if that is higher."""
    best: float
    """The lowest level so far: a low percentile rather than one lucky batch."""

    @property
    def descent(self) -> float:
        """How far the loss has fallen; never negative."""
        return max(0.0, self.start - self.best)

    def is_learning(self, noise: float) -> bool:
        """Whether the descent is more than chance: only then can it serve as a scale."""
        return self.descent > max(0.01 * abs(self.start), 5 * noise)

    def is_below(self, base: Baseline) -> bool:
        """Whether the current level is below the start by more than the noise of a single value."""
        return self.start - base.recent > max(0.01 * abs(self.start), 2.5 * base.noise)

    @classmethod
    def of(cls, series: Series) -> Progress:
        """The progress of a series with at least one value."""
        levels = series.outline.settled()
        if series.memo is not None and series.memo[0] is levels and isinstance(series.memo[1], Progress):
            return series.memo[1]
        progress = cls(float(max(series.first, levels[:3].mean())), percentile(levels, 5))
        series.memo = levels, progress
        return progress


def percentile(values: Array, percent: float) -> float:
    """`np.percentile` of a row of finite numbers, five times faster.

    >>> values = np.random.default_rng(0).standard_normal(100)
    >>> [percentile(values, percent) == float(np.percentile(values, percent)) for percent in (5, 60)]
    [True, True]
    """
    ordered = np.sort(values)
    place = percent / 100 * (ordered.size - 1)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, ordered.size - 1)])
    part = place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def outline_levels(series: Series) -> Array:
    """The means of the outline's buckets, oldest first: the whole run in at most about a thousand numbers."""
    return series.outline.means()


def trend_gain(window: Array) -> tuple[float, float]:
    """How much a stretch of losses fell from end to end (Theil-Sen slope of block medians), and its uncertainty.

    >>> gain, doubt = trend_gain(np.linspace(2.0, 1.0, 400))
    >>> round(gain, 2), round(doubt, 2)
    (1.0, 0.0)
    """
    if window.size < 2 * BLOCKS:
        return 0.0, math.inf
    bounds = [window.size * block // BLOCKS for block in range(BLOCKS + 1)]
    medians = np.array([median(window[start:stop]) for start, stop in pairwise(bounds)])
    slope = median((medians[LATER] - medians[EARLIER]) / (LATER - EARLIER))
    residuals = medians - slope * np.arange(BLOCKS)
    with np.errstate(over="ignore", invalid="ignore"):  # a loss of 1e308 overflows and gives no trend
        residuals -= residuals.mean()
    scatter = math.sqrt(float(residuals @ residuals) / BLOCKS) / math.sqrt(1 - 2 / BLOCKS)
    spread = math.sqrt(BLOCKS * (BLOCKS**2 - 1) / 12)
    return -slope * BLOCKS, scatter / spread * BLOCKS


def working_since(chart: Chart, share: float = 0.3) -> int | None:
    """The first step at which the learning rate reached this share of its highest; None while it rises or is unknown.

    The loss during a warm-up does not show how well the run learns.

    >>> working_since(Chart.of(lr=[min(1e-3, 1e-5 * step) for step in range(200)]))
    30
    >>> working_since(Chart.of(lr=[1e-5 * step for step in range(50)]))
    """
    rates = chart["lr"]
    recent = rates.last(9)
    if not recent.size and "source" in chart.context:  # a log without a learning rate
        return 0
    if not recent.size or float(recent[-1]) > float(recent[0]):
        return None
    return rates.outline.reached(share * rates.outline.highest)


def has_fallen_far(series: Series) -> bool:
    """A quick test: whether the loss of a long run is below half of its first value."""
    return series.count > 1000 and 0 <= series.baseline(128).recent < 0.5 * series.first


def has_gained(series: Series, guess: float = math.nan) -> bool:
    """A quick test: whether the loss, after 200 steps, is a fifth below chance level, or below its start if unknown.

    >>> has_gained(Chart.of(loss=[3.0 * 0.99**step for step in range(400)])["loss"])
    True
    """
    if series.count <= 200:
        return False
    yardstick = guess if guess > 0 else Progress.of(series).start
    return 0 <= series.baseline(128).recent < 0.8 * yardstick


def is_adversarial(chart: Chart) -> bool:
    """Whether several optimizers work against each other, so that none of their losses has to fall.

    If only the sum of the losses is logged, or losses are named after players, the names of modules or losses decide.

    >>> is_adversarial(Chart.of(loss=[1.0], d_loss=[1.0], context={"optimizer": [{}, {}]}))
    True
    """
    if len(chart.context.get("optimizer") or ()) < 2:
        return False
    losses = [name for name in chart.vitals if "loss" in name.split("_") and not name.startswith("val_")]
    roots = {name.partition(".")[0].lower() for name in chart.names} | set(chart.vitals)
    return len(losses) > 1 or not any(map(roots.isdisjoint, PLAYERS))


def is_of_one_sample(chart: Chart) -> bool:
    """Whether batches hold a single labelled sample, so that there are no two labels to compare.

    >>> is_of_one_sample(Chart.of(target_top_share=[1.0], target_collision=[0.0]))
    True
    >>> is_of_one_sample(Chart.of(target_top_share=[1.0], target_collision=[1.0]))
    False
    """
    return chart["target_top_share"].latest == 1 and chart["target_collision"].latest == 0


def acts(chart: Chart) -> bool:
    """Whether the loop collects its own experience (RL), so that its loss does not measure progress."""
    paid = "reward" in chart and "source" in chart.context
    return bool(chart.fact("loop.acts")) or paid or ("policy_loss" in chart and "entropy" in chart)


def is_unrolled(chart: Chart, passes: int = 3) -> bool:
    """Whether the whole model runs several times for each backward pass, such as along a sequence that it generates.

    Only the first of these passes is observed, and it may well start from the same inputs for every sample.

    >>> chart = Chart.of(loss=[1.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.names": ["cell"], "modules.repeated": {"cell": 5}}})
    >>> is_unrolled(chart)
    True
    """
    names = chart.fact("modules.names") or ()
    return bool(names) and unrolled_modules(chart, passes).issuperset(names)


def unrolled_modules(chart: Chart, passes: int = 3) -> frozenset[str]:
    """The modules that run several times for each backward pass, such as recurrent cells.

    >>> chart = Chart.of(loss=[1.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.repeated": {"cell": 8, "twin": 2}}})
    >>> sorted(unrolled_modules(chart))
    ['cell']
    """
    runs = chart.fact("modules.repeated") or {}
    backwards = max((int(count) for count in chart.fact("zeroing.backwards") or ()), default=1) or 1
    return frozenset(name for name, count in runs.items() if count >= passes * backwards)


def is_game(chart: Chart) -> bool:
    """Whether the loss need not fall in a healthy run: adversarial games and reinforcement learning.

    >>> is_game(Chart.of(g_loss=[1.0], d_loss=[1.0])), is_game(Chart.of(loss=[1.0], reward=[0.0]))
    (True, True)
    """
    players = "d_loss" in chart and "g_loss" in chart
    return players or is_adversarial(chart) or acts(chart) or "reward" in chart or "val_reward" in chart


def median_ratio(chart: Chart) -> float:
    """The median update ratio of the tensors at the last sampled step; NaN if unknown."""
    for _, row in reversed(chart.tensors("update_ratio").rows):
        known = row[np.isfinite(row)]
        if known.size:
            return median(known)
    return math.nan


def decay_pull(chart: Chart) -> float:
    """The share of each weight removed by decay per step, multiplied by SGD's momentum; 0 if there is none.

    It is also 0 for coupled decay in adaptive optimizers, where the share is unknown.

    >>> chart = Chart.of(lr=[0.1])
    >>> chart.groups = ({"optimizer": "SGD", "weight_decay": 5e-4, "momentum": 0.9},)
    >>> round(decay_pull(chart), 6)
    0.0005
    """
    pulls = [0.0]
    for group in chart.groups:
        decay, momentum, kind = (group.get(name) for name in ("weight_decay", "momentum", "optimizer"))
        if isinstance(decay, int | float) and (kind == "SGD" or group.get("decoupled_weight_decay") or kind == "AdamW"):
            kept = momentum if kind == "SGD" and isinstance(momentum, float) and 0 <= momentum < 1 else 0.0
            pulls.append(decay * chart["lr"].latest / (1 - kept))
    return max(pulls)


def goes_straight(chart: Chart, samples: int = 4) -> bool:
    """Whether weights keep moving in one direction over dozens of steps, so that longer steps would help.

    >>> goes_straight(Chart.of(course=[0.95, 0.97, 0.9, 0.96])), goes_straight(Chart.of(course=[0.9, 0.4, 0.2, 0.1]))
    (True, False)
    """
    ways = chart["course"].last(samples)
    if not (ways.size == samples and median(ways) > 0.8 and float(ways.min()) > 0.7):
        return False
    return not decay_pull(chart) > DRIFT * median_ratio(chart)  # weight decay leads straight to zero


def lr_jump(chart: Chart, within: int = 16) -> float:
    """The ratio of a learning rate that jumped recently to the highest before; 1.0 if it did not or is unknown.

    A warm restart (back to a learning rate used before) is not a jump, nor is a warm-up: it rises step by step, and
    if its first steps double or triple, they are still tiny.

    >>> lr_jump(Chart.of(lr=[1e-3] * 60 + [3e-2]))
    30.0
    >>> lr_jump(Chart.of(lr=[1e-3 * min((step + 0.2) / 8, 1.0) for step in range(17)]))
    1.0
    """
    series = chart["lr"]
    values = series.values
    if values.size <= within:
        return 1.0
    recent, previous = values[-within:], values[-within - 1 : -1]
    leaps = recent[recent > JUMP * np.maximum(previous, TINY)]
    if not leaps.size or not float(leaps.max()) > LEAPT * float(recent.max()):
        return 1.0
    before = highest_rate_before(series, within)
    return round(float(values[-within:].max()) / before, 6) if before > 0 else 1.0


def keeps_its_rate(chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
    """Whether `lr_jump` certainly finds nothing at any of the coming steps, given their vitals.

    >>> keeps_its_rate(Chart.of(lr=[1e-3] * 60), {"lr": [1e-3, 9e-4]})
    True
    """
    rates = [*chart["lr"].last(17).tolist(), *coming.get("lr", ())]
    return not rates or max(rates) <= JUMP * min(rates)


def will_keep_its_rate(chart: Chart, coming: Stretch) -> bool:
    """The same for the steps of a stretch."""
    rates = coming.columns.get("lr", EMPTY.values)
    known = rates[np.isfinite(rates)]
    return keeps_its_rate(chart, {"lr": (float(known.min()), float(known.max()))} if known.size else {})


def highest_of_last(series: Series, coming: Array, size: int) -> Array:
    """For each coming value, the highest of the last `size` finite values up to it.

    >>> highest_of_last(Chart.of(loss=[5.0, 1.0])["loss"], np.array([2.0, math.nan, 3.0]), 2)
    array([2., 2., 3.])
    """
    finite = np.isfinite(coming)
    values = np.concatenate([np.full(size, -np.inf), series.last(size - 1), coming[finite]])
    highest = values[size - 1 :]
    for back in range(1, size):
        highest = np.maximum(highest, values[size - 1 - back : -back])
    return np.asarray(highest[np.cumsum(finite) + highest.size - 1 - int(finite.sum())])


def highest_rate_before(series: Series, within: int) -> float:
    """The highest value of the whole run before its last few values."""
    cut = int(series.steps[-within])
    buckets = series.outline.buckets()
    earlier = [high for (_, _, _, high), after in pairwise(buckets) if after[0] <= cut]
    return max(float(series.values[:-within].max()), max(earlier, default=0.0))


def is_restart(chart: Chart, within: int = 16) -> bool:
    """Whether the learning rate rose recently to a level that the run has used before: the loss may rise with it.

    >>> is_restart(Chart.of(lr=[0.1] * 40 + [0.001] * 40 + [0.1]))
    True
    """
    series = chart["lr"]
    rates = series.last(2 * within)
    if rates.size < 2 * within or len(series) == rates.size:
        return False
    now = float(rates[within:].max())
    return now > 2 * float(rates[:within].min()) and now < 1.1 * highest_rate_before(series, 2 * within)


def is_hurt(chart: Chart, within: int = 10) -> bool:
    """Whether the loss is non-finite, or has an open spike or divergence of severity warning or higher."""
    if chart["loss"].nonfinite and not math.isfinite(chart["loss"].latest):
        return True
    return any(
        episode.severity != "info" and episode.last_step >= chart.step - within
        for name in ("loss-spike", "loss-divergence")
        if (episode := chart.open_episodes.get(name)) is not None
    )


def gets_better(chart: Chart) -> bool:
    """Whether the loss is near its best and not in trouble.

    >>> gets_better(Chart.of(loss=[3.0 * 0.99**step for step in range(400)]))
    True
    """
    loss = chart["loss"]
    if not loss or is_hurt(chart):
        return False
    progress, base = Progress.of(loss), loss.baseline(128)
    slack = max(0.3 * progress.descent, 2 * base.noise)  # the best of many noisy levels is partly luck
    return progress.is_below(base) and base.recent < progress.best + slack


def extreme(deviations: float, count: int) -> float:
    """How many robust deviations count as extreme, given the number of values that the spread was estimated from.

    With few values the spread itself is uncertain, so the limit widens, as Student's quantiles do.

    >>> extreme(6.0, 128) < 7 < extreme(6.0, 16)
    True
    """
    return deviations * (1 + 12 / count)


def log_spread(base: Baseline, window: int) -> float:
    """The spread of a norm in log space against which jumps are measured.

    A rough start distorts the trend, so until the window is full the change from value to value counts if it is
    smaller. An estimate from few values may be far too low by chance, so a term that fades with their number is added.
    """
    spread = base.noise if base.count >= window else min(base.noise, 1.25 * base.jitter)
    return spread + 2 / base.count
