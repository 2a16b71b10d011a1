"""Which setting explains the outcome: a test, an effect with its interval, or how many runs are needed.

There are two ways to test a setting; the design of the runs (never their outcome) decides which. If there are runs
that are equal in every other setting, the levels are shuffled among those. If not, as in a random search, the levels
are shuffled among configurations: each configuration counts once, however many seeds it had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchdoctor.comparing.design import Design, Factor, Ints
from torchdoctor.comparing.permutation import Trial, holm, trial
from torchdoctor.comparing.shift import Shift, normal_quantile, shift
from torchdoctor.comparing.summary import Floats

ALPHA = 0.05
POWER = 0.8
MOST_NEEDED = 200
TOGETHER = 0.8
"""Settings whose levels correlate more than this cannot be separated by comparing configurations."""
ROBUST = 5
SEED = 20240501
"""Fixed, so that repeating a comparison gives the same result."""


@dataclass(frozen=True)
class Level:
    """One value of a setting."""

    label: str
    runs: int
    diverged: int
    median: float
    """The median score of the runs that did not diverge."""
    rank: float
    """The mean rank of its runs among those compared, from -1 (best) to 1; NaN if none was compared."""


@dataclass(frozen=True)
class Contrast:
    """The best level compared with another one."""

    other: str
    shift: Shift
    """How much higher the other level's costs are; a log ratio if costs are logarithms."""


@dataclass(frozen=True)
class Effect:
    """The effect of one setting."""

    names: tuple[str, ...]
    levels: tuple[Level, ...]
    tested: str
    """"runs": among runs with all else equal; "configurations": among configurations; "": too few to test."""
    verdict: str
    """"matters", "nothing seen" or "not enough runs"."""
    p: float = math.nan
    """The p-value, corrected for the number of tested settings."""
    explained: float = math.nan
    """The share of the variance of ranks that the setting explains."""
    best: str = ""
    tied: tuple[str, ...] = ()
    """Levels that may be as good as the best, by the interval of their difference."""
    apart: tuple[str, ...] = ()
    """Levels without a run that matches a run of the best level in all else: they cannot be compared with it."""
    contrasts: tuple[Contrast, ...] = ()
    needed: int | None = None
    """If not tested: how many times as many runs are needed. If nothing was seen: runs or configurations per level."""
    together: tuple[str, ...] = ()
    """Other settings that mostly change together with this one."""


@dataclass(frozen=True)
class _Plan:
    """How a factor can be tested."""

    factor: Factor
    unit: str
    trial: Trial
    costs: Floats
    levels: Ints
    strata: Ints

    @property
    def floor(self) -> float:
        return self.trial.smallest_p() if len(self.trial.ranks) else 1.0


def effects(design: Design, costs: Floats, scores: Floats) -> list[Effect]:
    """The effect of each setting that differs, the clearest first."""
    plans = [_plan(design, factor, costs) for factor in design.factors]
    bar = _bar([plan.floor for plan in plans])
    able = [plan for plan in plans if plan.floor <= bar]
    generator = np.random.default_rng(SEED)
    corrected = holm([plan.trial.p_value(generator) for plan in able])
    found = []
    for plan in plans:
        effect = _described(plan, costs, scores)
        if plan in able:
            found.append(_judged(effect, plan, corrected[able.index(plan)], design))
        else:
            found.append(replace(effect, needed=_repeats(plan.trial, bar)))
    return sorted(found, key=lambda effect: (not effect.tested, effect.p if effect.tested else 0.0, effect.names))


def _bar(floors: Sequence[float]) -> float:
    """The uncorrected p-value that the clearest setting must stay under; settings that cannot reach it are ignored."""
    for able in range(len(floors), 1, -1):
        if sum(floor <= ALPHA / able for floor in floors) >= able:
            return ALPHA / able
    return ALPHA


def _plan(design: Design, factor: Factor, costs: Floats) -> _Plan:
    strata = design.strata(factor)
    within = _Plan(factor, "runs", trial(costs, factor.codes, strata), costs, factor.codes, strata)
    if within.floor <= ALPHA / max(1, len(design.factors)):
        return within
    firsts = np.unique(design.groups, return_index=True)[1]
    means = _by_group(costs, design.groups)
    none = np.zeros(len(firsts), dtype=np.int64)
    across = _Plan(
        factor, "configurations", trial(means, factor.codes[firsts], none), means, factor.codes[firsts], none
    )
    return across if across.floor < within.floor and design.configurations > len(factor.labels) else within


def _by_group(costs: Floats, groups: Ints) -> Floats:
    """The median cost of each configuration; infinite if most of its runs diverged."""
    found = np.full(int(groups.max()) + 1, math.nan)
    for group in range(len(found)):
        own = np.sort(costs[(groups == group) & ~np.isnan(costs)])
        if len(own):
            found[group] = own[len(own) // 2] if not math.isfinite(own[-1]) else float(np.median(own))
    return found


def _described(plan: _Plan, costs: Floats, scores: Floats) -> Effect:
    factor = plan.factor
    levels = []
    for code, label in enumerate(factor.labels):
        here = factor.codes == code
        well = scores[here & np.isfinite(costs)]
        ranks = plan.trial.ranks[plan.trial.levels == code]
        levels.append(
            Level(
                label,
                int(here.sum()),
                int(np.isposinf(costs[here]).sum()),
                float(np.median(well)) if len(well) else math.nan,
                float(ranks.mean()) if len(ranks) else math.nan,
            )
        )
    return Effect(factor.names, tuple(levels), "", "not enough runs")


def _judged(effect: Effect, plan: _Plan, p: float, design: Design) -> Effect:
    order = [place for place, level in enumerate(effect.levels) if not math.isnan(level.rank)]
    order.sort(key=lambda place: effect.levels[place].rank)
    pairs = len(order) * (len(order) - 1) // 2
    shifts = {other: _shift(plan, other, order[0], ALPHA / pairs) for other in order[1:]}
    held = [other for other, found in shifts.items() if not math.isnan(found.estimate)]
    contrasts = [
        Contrast(effect.levels[other].label, shifts[other]) for other in dict.fromkeys((*held[:1], *held[-1:]))
    ]
    matters = p <= ALPHA
    return replace(
        effect,
        tested=plan.unit,
        verdict="matters" if matters else "nothing seen",
        p=p,
        explained=plan.trial.explained(),
        best=effect.levels[order[0]].label,
        tied=tuple(effect.levels[other].label for other in sorted(shifts) if -math.inf < shifts[other].low <= 0),
        apart=tuple(effect.levels[other].label for other in sorted(shifts) if other not in held),
        contrasts=tuple(contrasts),
        needed=None if matters or not held else _for_power(plan, order, contrasts[-1].shift.estimate),
        together=_together(plan, design),
    )


def _shift(plan: _Plan, first: int, second: int, alpha: float) -> Shift:
    known = ~np.isnan(plan.costs)
    mine, other = known & (plan.levels == first), known & (plan.levels == second)
    return shift(plan.costs[mine], plan.costs[other], plan.strata[mine], plan.strata[other], alpha)


def _repeats(tested: Trial, bar: float) -> int | None:
    """How many times all runs must be repeated before the clearest outcome is significant; None if too many."""
    if not len(tested.ranks):
        return None
    for times in range(2, MOST_NEEDED):
        more = Trial(np.tile(tested.ranks, times), np.tile(tested.levels, times), np.tile(tested.strata, times))
        if more.smallest_p() <= bar:
            return times
    return None


def _for_power(plan: _Plan, order: Sequence[int], difference: float) -> int | None:
    """Runs or configurations per level that would show the observed difference with 80 % power."""
    spreads: list[float] = []
    for stratum, code in {(stratum, code) for stratum in set(plan.strata.tolist()) for code in order}:
        own = plan.costs[(plan.strata == stratum) & (plan.levels == code) & np.isfinite(plan.costs)]
        spreads += ((own - own.mean()) ** 2).tolist() if len(own) > 1 else []
    if len(spreads) < 4 or not math.isfinite(difference) or difference == 0:
        return None
    reach = normal_quantile(1 - ALPHA / 2) + normal_quantile(POWER)
    needed = math.ceil(2 * (reach / difference) ** 2 * float(np.mean(spreads)))
    return needed if needed <= MOST_NEEDED else None


def _together(plan: _Plan, design: Design) -> tuple[str, ...]:
    """The settings that mostly change with this one; this can mislead only a test across configurations."""
    if plan.unit != "configurations" or plan.factor.values is None:
        return ()
    mine = _order(plan.factor.values)
    found = []
    for other in design.factors:
        if other is not plan.factor and other.values is not None:
            theirs = _order(other.values)
            if abs(float(np.corrcoef(mine, theirs)[0, 1])) > TOGETHER:
                found.append(other.name)
    return tuple(found)


def _order(values: Floats) -> Floats:
    levels = np.unique(values)
    return np.searchsorted(levels, values).astype(float)


def seed_spread(costs: Floats, groups: Ints) -> float:
    """The typical standard deviation between runs that differ only in their seed; NaN if none were repeated.

    With five configurations or more it is the median, so a few very seed-dependent ones do not dominate.

    >>> round(seed_spread(np.array([1.0, 1.2, 5.0, 5.2]), np.array([0, 0, 1, 1])), 3)
    0.141
    """
    squares, spare = [], []
    for group in np.unique(groups):
        own = costs[(groups == group) & np.isfinite(costs)]
        if len(own) > 1:
            squares.append(float(((own - own.mean()) ** 2).sum()))
            spare.append(len(own) - 1)
    if not spare:
        return math.nan
    if len(spare) < ROBUST:
        return math.sqrt(sum(squares) / sum(spare))
    free = np.array(spare)
    return math.sqrt(float(np.median(np.array(squares) / (free * (1 - 2 / (9 * free)) ** 3))))
