"""Rewards that were earned and lost again, or never earned, and policies that never change.

>>> values = [2.0 + 3 * step for step in range(20)] + [60.0] * 10 + [60.0 - 4 * step for step in range(15)] + [1.0] * 9
>>> print(*lost(Chart.of(reward=values, context={"source": "CSV", "better": {"reward": "higher"}})))
step 33: LO02 loss-divergence (warning): reward fell from 59.4 to 1; it began at 5
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.entropy_collapse import EntropyCollapse
from torchdoctor.symptoms.hindsight.curve import Curve, climbs, shown
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import smoothed

FEW, MANY = 5, 16
"""Fewest rewards for any finding, and fewest for findings that need an earlier level."""
KEPT = 0.2
"""Share of its gain below which a reward at the end counts as lost; after losing as much, it has begun to fall."""
GREW = 8
"""Multiple of its start above which the loss counts as diverged."""
OUT = 3
"""Multiple of the earlier range by which the last rewards must be below the earlier minimum."""
NOTHING = 0.75
"""Share of rewards at the minimum from which there is almost nothing to learn from."""
ENTROPY, DIVERGENCE = ("entropy",), ("kl", "kullback")
"""Words in the names of a policy's entropy, and of the distance that an update moved it."""
BINS = 40
"""Parts of a long run whose means are compared if single rewards are noise."""
LONG = 100
"""Rewards from which a log is long enough to say that they do not rise, or that a tenth of them was held."""
RISING, SINKING = 0.15, -0.5
"""Rank correlation of rewards with time below which they do not rise, and below which they fall."""
TOP = 0.2
"""Share of rewards at the maximum from which the task may be solved."""
CERTAIN = 10
"""Fewest updates for a policy that was never uncertain."""
UPDATES = 8
"""Fewest updates without change for a finding."""
FAR = 5
"""Multiple of the early range, or of the first reward, by which the reward of a short log must have fallen."""


def estimates_diverge(chart: Chart) -> Iterator[Symptom]:
    """The loss of the value estimate has grown many times over, but the reward has not risen.

    >>> values = [3.0 * 1.05**step for step in range(80)]
    >>> print(*estimates_diverge(Chart.of(loss=values, reward=[1.0, 2.0] * 40, context={"source": "CSV"})))
    step 0: LO02 loss-divergence (warning): loss grew from 4.33 to 98.2, but the reward did not rise
    """
    curve, reward = Curve.of(chart["loss"], "loss"), Curve.of(chart["reward"], "reward")
    if min(curve.values.size, reward.values.size) < 3 * MANY or not float(curve.values.min()) > 0:
        return
    first, now = (
        median(part) for part in (curve.values[: curve.values.size // 5], curve.values[-curve.values.size // 5 :])
    )
    begun = reward.values[: reward.values.size // 5]
    late = reward.values[reward.steps >= reward.steps[-1] - 0.1 * (reward.steps[-1] - reward.steps[0])]
    earned = float(np.mean(late)) > float(np.mean(begun)) + 0.5 * float(np.std(begun))
    if now > GREW * first and climbs(curve.values) > 0.4 and not earned:
        said = f"loss grew from {number_text(first)} to {number_text(now)}, but the reward did not rise"
        yield shown(LossDivergence, curve, 0, "warning", said, value=now, limit=first)


def _lost_on_average(curve: Curve) -> list[Symptom]:
    """The same for rewards of single episodes, which are mostly noise: the means of a fortieth of the run each.

    At the end, for a fifth of the run, they must be below where they began.

    >>> odds = np.concatenate([np.full(200, 0.5), np.full(400, 0.85), np.full(400, 0.12)])
    >>> values = (np.random.default_rng(0).random(1000) < odds).astype(float)
    >>> print(*_lost_on_average(Curve("reward", np.arange(1000), values)))
    step 600: LO02 loss-divergence (warning): reward fell from 0.84 to 0.105 on average; it began at 0.42
    """
    if curve.values.size < BINS * FEW * 2:
        return []
    parts = np.array_split(curve.values, BINS)
    means = np.array([part.mean() for part in parts])
    doubt = float(np.median([part.std() / math.sqrt(part.size) for part in parts]))
    first, late = float(means[:2].mean()), means[-BINS // 5 :]
    held = max(float(means[place : place + 4].min()) for place in range(BINS - 4))
    if not held - first > 4 * doubt or not float(late.max()) < first - 2 * doubt:
        return []
    near = int(np.flatnonzero(means > (first + held) / 2)[-1]) + 1
    since, now = sum(part.size for part in parts[:near]), float(late.mean())
    said = f"reward fell from {number_text(held)} to {number_text(now)} on average; it began at {number_text(first)}"
    return [shown(LossDivergence, curve, since, "warning", said, value=now, limit=first)]


def _fell_out(curve: Curve) -> Iterator[Symptom]:
    """Rewards fell below all earlier ones by several times the earlier range, and stayed there.

    >>> values = np.array([-54.0, -40.0, -30.0, -20.0] + [-16.0, -17.0] * 10 + [-304.0, -260.0, -277.0])
    >>> print(*_fell_out(Curve("reward", np.arange(27), values)))
    step 24: LO02 loss-divergence (warning): reward is -277 at the end; it was never below -54 before step 24
    """
    values = curve.values
    worst, best = np.minimum.accumulate(values), np.maximum.accumulate(values)
    highest = np.maximum.accumulate(values[::-1])[::-1]  # of all later ones
    limits = worst - OUT * (best - worst)
    fallen = (highest[1:] < limits[:-1]) & (best > worst)[:-1]
    place = 1 + int(np.argmax(fallen))
    if fallen.any() and min(place, values.size - place + 1) > max(3, values.size // 20):
        since, now = number_text(int(curve.steps[place])), median(values[place:])
        said = f"reward is {number_text(now)} at the end; it was never below {number_text(float(worst[place - 1]))} "
        said += f"before step {since}"
        yield shown(LossDivergence, curve, place, "warning", said, value=now, limit=float(limits[place - 1]))


def unearned(chart: Chart) -> Iterator[Symptom]:
    """Most rewards are at the minimum, and the second half is no better than the first.

    >>> values = [0.0, 0.0, 0.125, 0.0, 0.0, 0.0, 0.0625, 0.0] * 5
    >>> print(*unearned(Chart.of(reward=values, context={"source": "CSV"})))
    step 0: LO04 not-learning (warning): reward is 0 in 30 of 40 records and does not improve
    """
    curve = Curve.of(chart["reward"] if "reward" in chart else chart["val_reward"], "reward")
    values, half = curve.values, curve.values.size // 2
    if half < MANY or not np.ptp(values):  # a constant column may mean anything
        return
    lowest = float(values.min())
    none = values == lowest
    more = float(np.mean(values[half:])) > float(np.mean(values[:half]))
    if float(np.mean(none)) >= NOTHING and float(np.mean(none[half:])) >= NOTHING and not more:
        count = round(curve.thinned * int(none.sum()))
        said = f"reward is {number_text(lowest)} in {count} of {curve.records} records and does not improve"
        yield shown(NotLearning, curve, 0, "warning", said, value=lowest)


def stagnant(chart: Chart) -> Iterator[Symptom]:
    """Over a long run the reward does not rise at all, or it falls all the time.

    >>> noise = np.sin(np.arange(200.0) ** 2)
    >>> print(*stagnant(Chart.of(reward=noise - 13, context={"source": "CSV"})))
    step 0: LO04 not-learning (warning): reward does not rise in 200 records: it was -13.2 at first and is -13 now
    >>> print(*stagnant(Chart.of(reward=noise - np.linspace(9, 20, 200), context={"source": "CSV"})))
    step 0: LO02 loss-divergence (warning): reward falls all the time: from -10.1 to -19
    """
    curve = Curve.of(chart["reward"] if "reward" in chart else chart["val_reward"], "reward")
    values, third = curve.values, curve.values.size // 3
    if values.size >= LONG and values[0] and not np.ptp(values) and _moves(chart):
        said = f"reward is exactly {number_text(curve.start)} in all {curve.records} records"
        yield shown(NotLearning, curve, 0, "warning", said, value=curve.start)
    if values.size < LONG or float(np.mean(values == values.max())) > TOP:
        return
    levels = [median(part) for part in np.array_split(values, 6)]
    first, now, trend = levels[0], levels[-1], climbs(values)
    if trend < SINKING and max(levels[3:]) < min(levels[:2]):
        said = f"reward falls all the time: from {number_text(first)} to {number_text(now)}"
        yield shown(LossDivergence, curve, 0, "warning", said, value=now, limit=first)
    spread = float(np.percentile(values[:third], 75) - np.percentile(values[:third], 25))
    share = float(values.min()) >= 0 and float(values.max()) <= 1 and now > 0.5  # most of what can be had
    if abs(trend) < RISING and max(levels[1:]) < first + spread and now < first + 0.5 * spread and not share:
        said = f"reward does not rise in {curve.records} records: it was {number_text(first)} at first and is "
        yield shown(NotLearning, curve, 0, "warning", f"{said}{number_text(now)} now", value=now, limit=first)


def lost(chart: Chart) -> Iterator[Symptom]:
    """The reward rose, was held for a while and is back near its start; or, in a short log, it falls far."""
    curve = Curve.of(chart["reward"] if "reward" in chart else chart["val_reward"], "reward")
    values = curve.values
    if values.size < FEW:
        return
    late, first = values[-max(3, values.size // 6) :], median(values[:3])
    if values.size >= MANY:
        smooth = smoothed(values)
        held = float(np.percentile(smooth, 80 if values.size < LONG else 90))
        limit = first + KEPT * (held - first)
        noise = float(np.median(np.abs(np.diff(values))))
        if held - first > max(4 * noise, 0.5 * abs(first)) and float(late.max()) < limit:
            near = np.flatnonzero(smooth > held - KEPT * (held - first))
            since, now = int(near[-1]) + 1, median(late)
            said = f"reward fell from {number_text(held)} to {number_text(now)}"
            said += f"; it began at {number_text(first)}"
            yield shown(LossDivergence, curve, since, "warning", said, value=now, limit=limit)
        else:
            yield from _lost_on_average(curve) or _fell_out(curve)
        return
    yield from _fell_out(curve)
    begun = values[: max(2, values.size // 2)]
    span = FAR * max(float(np.ptp(begun)), abs(float(values[0])))
    if climbs(values) < -0.7 and float(values[-2:].max()) < float(values[0]) - span:
        now = float(values[-1])
        said = f"reward fell from {number_text(float(values[0]))} to {number_text(now)} and is still falling"
        yield shown(LossDivergence, curve, 0, "warning", said, value=now, limit=float(values[0]))


def unmoved(chart: Chart) -> Iterator[Symptom]:
    """The policy is the same after every update, and its entropy is constant.

    >>> chart = Chart.of(entropy_loss=[-0.35] * 10, approx_kl=[0.0] * 10, context={"source": "CSV"})
    >>> print(*unmoved(chart))
    step 0: LO04 not-learning (warning): entropy loss is -0.35 and approx kl 0 at all 10 updates: nothing changes
    """
    entropy, shift = (_constant(chart, words) for words in (ENTROPY, DIVERGENCE))
    players = {"policy", "actor"} & {word for name in chart.vitals for word in name.split("_")}
    if entropy and not entropy.start and players and entropy.values.size >= CERTAIN:
        said = f"{entropy.name} is exactly 0 at all {entropy.records} updates: the policy never tries anything else"
        yield shown(EntropyCollapse, entropy, 0, "warning", said, value=0.0)
    if entropy and shift and not shift.start:
        said = f"{entropy.name} is {number_text(entropy.start)} and {shift.name} 0 at all {shift.records} updates"
        yield shown(NotLearning, shift, 0, "warning", f"{said}: nothing changes", value=entropy.start)


def _moves(chart: Chart) -> bool:
    """Whether training goes on while the reward stays: a loss or an entropy changes."""
    names = [name for name in chart.vitals if {"loss", "entropy", "coef"} & set(name.split("_"))]
    return any(chart[name].count >= UPDATES and np.ptp(chart[name].values) > 0 for name in names)


def _constant(chart: Chart, words: Collection[str]) -> Curve | None:
    """A constant vital with one of these words in its name."""
    for name in chart.vitals:
        if chart[name].count >= UPDATES and not set(words).isdisjoint(name.split("_")):
            curve = Curve.of(chart[name], name.replace("_", " "))
            if not np.ptp(curve.values):
                return curve
    return None
