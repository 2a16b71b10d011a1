"""The effect of the batch size, and how the learning rate should scale with it: linearly, by square root, or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from torchdoctor.comparing.design import Design, Factor, Ints
from torchdoctor.comparing.learning_rate import best_rates, median, regret
from torchdoctor.comparing.summary import Floats

RULES = {"linear": 1.0, "square root": 0.5, "constant": 0.0}
SAME_RATE = 0.06
"""Relative difference below which two learning rates count as the same."""
RESAMPLES = 400
SEED = 20240501
FEWEST_PAIRS = 2


@dataclass(frozen=True)
class Kept:
    """How well a scaling rule preserves the loss when the batch size grows."""

    rule: str
    pairs: int
    """Pairs of configurations whose batch size and learning rate differ as the rule says, and nothing else does."""
    change: float
    """The median change of cost from the smaller to the larger batch size; a log ratio if costs are logarithms."""
    size: float
    """The median of its absolute value."""


@dataclass(frozen=True)
class BatchEffect:
    """The effect of the batch size."""

    sizes: tuple[tuple[int, int, float], ...]
    """(batch size, runs, median regret among runs whose other settings are equal)."""
    budget: str
    """What all runs have the same number of: "steps", "samples" or "" if neither."""
    kept: tuple[Kept, ...]
    """How well each rule preserves the loss, best first."""
    rule: str
    """The best rule, if it beats the others by more than noise; else empty."""
    best_rates: tuple[tuple[int, float], ...]
    """(batch size, best learning rate), if the sweep brackets it."""
    exponent: float
    """The best learning rate grows with the batch size to this power."""
    exponent_low: float
    exponent_high: float
    """A bootstrap interval of the exponent, from runs resampled within configurations; NaN if none was repeated."""
    moves_rate: bool
    """Whether the best learning rate clearly changes with the batch size: the interval excludes 0, or, without an
    interval, the best rates grow and a rule that raises the rate with the batch beats the constant rate."""


def batch_effect(design: Design, costs: Floats, steps: Floats, spread: float) -> BatchEffect | None:
    """The effect of the batch size; None if it does not differ."""
    factor = design.factor("batch_size")
    if factor is None or factor.values is None or (factor.values <= 0).any() or factor.parted:
        return None
    regrets = regret(costs, design.strata(factor), factor.codes)
    values = np.unique(factor.values)
    kept = _kept(design, factor, costs)
    sweep = _Sweep.of(design, factor, costs)
    tried = {} if sweep is None else sweep.best(sweep.costs)
    exponent = _exponent(tried)
    rule = _standing_out(kept, spread)
    low = high = math.nan
    if sweep is not None and design.replicated and not math.isnan(exponent):
        low, high = sweep.interval()
    return BatchEffect(
        sizes=tuple(
            (int(value), int((factor.values == value).sum()), median(regrets[factor.values == value]))
            for value in values
        ),
        budget=_budget(factor.values, steps),
        kept=kept,
        rule=rule,
        best_rates=tuple((int(size), rate) for size, rate in sorted(tried.items())),
        exponent=exponent,
        exponent_low=low,
        exponent_high=high,
        moves_rate=low > 0 or high < 0 or (math.isnan(low) and exponent > 0 and rule in ("linear", "square root")),
    )


def _budget(sizes: Floats, steps: Floats) -> str:
    """Whether the runs took the same number of steps or saw the same number of samples, within 5 %."""
    for name, amount in (("steps", steps), ("samples", steps * sizes)):
        if len(amount) and amount.max() <= 1.05 * amount.min():
            return name
    return ""


def _kept(design: Design, factor: Factor, costs: Floats) -> tuple[Kept, ...]:
    """For each rule, the change of cost between configurations that follow it."""
    rate = design.factor("lr")
    if rate is None or rate.values is None or factor.values is None or rate is factor or (rate.values <= 0).any():
        return ()
    cells: dict[tuple[int, ...], dict[tuple[float, float], float]] = {}
    others = [item.codes for item in design.factors if item is not factor and item is not rate]
    firsts = np.unique(design.groups, return_index=True)[1]
    for first in firsts:
        key = tuple(int(codes[first]) for codes in others)
        cell = (float(factor.values[first]), float(rate.values[first]))
        cells.setdefault(key, {})[cell] = median(costs[design.groups == design.groups[first]])
    found = []
    for rule, power in RULES.items():
        changes = np.array([change for family in cells.values() for change in _changes(family, power)])
        changes = changes[~np.isnan(changes)]
        if len(changes) >= FEWEST_PAIRS:
            found.append(Kept(rule, len(changes), median(changes), median(np.abs(changes))))
    return tuple(sorted(found, key=lambda item: item.size))


def _changes(cells: dict[tuple[float, float], float], power: float) -> list[float]:
    """Costs at the larger batch size minus those at the smaller, for pairs whose learning rates follow the rule."""
    found = []
    for (size, lr), (other_size, other_lr) in combinations(sorted(cells), 2):
        if other_size == size or not math.isfinite(cells[size, lr]):
            continue
        wanted = lr * (other_size / size) ** power
        if abs(other_lr / wanted - 1) < SAME_RATE:
            found.append(cells[other_size, other_lr] - cells[size, lr])
    return found


def _standing_out(kept: tuple[Kept, ...], spread: float) -> str:
    if len(kept) < 2 or not math.isfinite(kept[0].size):
        return ""
    margin = 0.01 if math.isnan(spread) else 2 * spread / math.sqrt(kept[0].pairs)
    return kept[0].rule if kept[1].size - kept[0].size > margin else ""


def _exponent(best: Mapping[float, float]) -> float:
    if len(best) < 2:
        return math.nan
    return float(np.polyfit(np.log(list(best)), np.log(list(best.values())), 1)[0])


@dataclass(frozen=True)
class _Sweep:
    """The largest set of runs that differ only in learning rate and batch size."""

    costs: Floats
    rates: Floats
    sizes: Floats
    groups: Ints

    @classmethod
    def of(cls, design: Design, factor: Factor, costs: Floats) -> _Sweep | None:
        rate = design.factor("lr")
        if rate is None or rate.values is None or factor.values is None or rate is factor or (rate.values <= 0).any():
            return None
        strata = design.strata(rate, factor)
        own = (strata == np.bincount(strata).argmax()) & ~np.isnan(costs)
        return cls(costs[own], rate.values[own], factor.values[own], design.groups[own])

    def best(self, costs: Floats) -> dict[float, float]:
        """By batch size, the best learning rate."""
        sizes, codes = np.unique(self.sizes, return_inverse=True)
        return {float(sizes[code]): rate for code, rate in best_rates(costs, self.rates, codes).items()}

    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the exponent, resampling runs within each configuration."""
        generator = np.random.default_rng(SEED)
        members = [np.flatnonzero(self.groups == group) for group in np.unique(self.groups)]
        found = []
        for _ in range(RESAMPLES):
            drawn = self.costs.copy()
            for own in members:
                drawn[own] = self.costs[generator.choice(own, len(own))]
            exponent = _exponent(self.best(drawn))
            if not math.isnan(exponent):
                found.append(exponent)
        if len(found) < RESAMPLES / 2:
            return math.nan, math.nan
        low, high = np.quantile(found, [0.025, 0.975])
        return float(low), float(high)
