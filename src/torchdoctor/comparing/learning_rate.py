"""The effect of the learning rate: its best range, and whether the best value is at the edge of the sweep."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from torchdoctor.comparing.design import Design, Ints
from torchdoctor.comparing.shift import margin
from torchdoctor.comparing.summary import Floats

FEWEST = 3
NOISE = 0.02
"""Difference that counts as noise if no run was repeated with another seed: 2 % of the loss."""
FACTOR = 3.0
"""Factor to go beyond the edge of the sweep, if the sweep's own spacing does not give one."""


@dataclass(frozen=True)
class Rate:
    """One learning rate."""

    lr: float
    runs: int
    diverged: int
    regret: float
    """The median cost above the best run with the same other settings; infinite if most runs diverged."""


@dataclass(frozen=True)
class RateEffect:
    """The result of the sweep."""

    rates: tuple[Rate, ...]
    shape: str
    """"valley", "best at the lowest", "best at the highest", "best below divergence" or "flat"."""
    best: float
    low: float
    high: float
    """The range of tried learning rates whose regret is within noise of the best."""
    optimum: float
    """The minimum of a parabola through the best rate and its neighbors; NaN unless the shape is a valley."""
    noise: float
    noise_known: bool
    """Whether the noise was measured from repeated runs, or is a guess."""
    advice: str
    lowest: float = math.nan
    """The lowest rate tried; in a random search `rates` are only the medians of ranges."""
    highest: float = math.nan


def rate_effect(design: Design, costs: Floats, spread: float, favoured: str = "") -> RateEffect | None:
    """The effect of the learning rate; None if fewer than three were tried.

    `favoured` is the level that the test of this setting calls best. If the best rate depends on other settings, ranks
    and medians may disagree on it; then the range includes all rates between them.
    """
    factor = design.factor("lr")
    if factor is None or factor.values is None or len(factor.labels) < FEWEST:
        return None
    levels, codes, strata = np.unique(factor.values).tolist(), factor.codes, design.strata(factor)
    if factor.parted:  # a random search: neighboring rates are pooled
        strata = 0 * design.groups
        levels = [float(np.median(factor.values[codes == code])) for code in range(len(factor.labels))]
    regrets = regret(costs, strata, codes)
    rates = tuple(
        Rate(
            lr,
            int((codes == code).sum()),
            int(np.isposinf(costs[codes == code]).sum()),
            median(regrets[codes == code]),
        )
        for code, lr in enumerate(levels)
    )
    known = [rate for rate in rates if math.isfinite(rate.regret)]
    if len(known) < 2 or min(levels) <= 0:
        return None
    spare = len(design.groups) - design.configurations
    least = min(rate.runs for rate in rates)
    noise = NOISE if math.isnan(spread) else margin(spread, spare, least, least, len(rates) - 1)
    place = factor.labels.index(favoured) if favoured in factor.labels else None
    found = _described(rates, noise, not math.isnan(spread), place)
    beside = np.isin(strata, strata[(codes == levels.index(found.best)) & ~np.isnan(costs)])
    if len(np.unique(codes[beside])) < len(levels):  # some rate was only tried with other settings that differ too
        return None
    return replace(found, lowest=float(factor.values.min()), highest=float(factor.values.max()))


def regret(costs: Floats, strata: Ints, levels: Ints) -> Floats:
    """For each run, its cost above the best one of its stratum; NaN if the stratum has only one level.

    >>> regret(np.array([1.0, 3.0, 2.0, np.inf, 7.0]), np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 0])).tolist()
    [0.0, 2.0, 0.0, inf, nan]
    """
    found = np.full(len(costs), math.nan)
    for stratum in np.unique(strata):
        inside = (strata == stratum) & ~np.isnan(costs)
        if len(np.unique(levels[inside])) > 1 and np.isfinite(costs[inside]).any():
            found[inside] = costs[inside] - costs[inside].min()
    return found


def median(values: Floats) -> float:
    """The median, which may be infinite; NaN if there are no values."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return math.nan
    low, high = float(known[(len(known) - 1) // 2]), float(known[len(known) // 2])
    return high if math.isinf(high) else (low + high) / 2


def noise_of(spread: float) -> float:
    """The difference that two runs with different seeds stay below in 95 % of cases."""
    return NOISE if math.isnan(spread) else 2 * math.sqrt(2) * spread


def _described(rates: tuple[Rate, ...], noise: float, noise_known: bool, favoured: int | None) -> RateEffect:
    values = [rate.regret if math.isfinite(rate.regret) else math.inf for rate in rates]
    lowest = int(np.argmin(values))
    best = lowest if favoured is None or math.isinf(values[favoured]) else favoured
    near = [value <= values[lowest] + noise for value in values]
    first, last = min(best, lowest), max(best, lowest)
    low = next(place for place in range(first, -1, -1) if place == 0 or not near[place - 1])
    high = next(place for place in range(last, len(rates)) if place == len(rates) - 1 or not near[place + 1])
    shape = _shape(rates, low, high)
    return RateEffect(
        rates=rates,
        shape=shape,
        best=rates[best].lr,
        low=rates[low].lr,
        high=rates[high].lr,
        optimum=_bottom(rates, lowest) if shape == "valley" else math.nan,
        noise=noise,
        noise_known=noise_known,
        advice=_advice(rates, shape),
    )


def _shape(rates: tuple[Rate, ...], low: int, high: int) -> str:
    last = len(rates) - 1
    if low == 0 and high == last:
        return "flat"
    if low == 0:
        return "best at the lowest"
    if high == last:
        return "best at the highest"
    beyond = rates[high + 1]
    return "best below divergence" if beyond.diverged * 2 > beyond.runs else "valley"


def _advice(rates: tuple[Rate, ...], shape: str) -> str:
    """What to try next; empty if the sweep covers both sides of the best rate."""
    ratio = rates[1].lr / rates[0].lr if shape == "best at the lowest" else rates[-1].lr / rates[-2].lr
    step = min(ratio, 10.0) if ratio > 1 else FACTOR
    if shape == "best at the lowest":
        return f"try lower: {rates[0].lr / step:.2g}"
    if shape == "best at the highest":
        return f"try higher: {rates[-1].lr * step:.2g}"
    return ""


def _bottom(rates: tuple[Rate, ...], best: int) -> float:
    """The minimum of the parabola through three neighboring rates, on a logarithmic scale."""
    if not 0 < best < len(rates) - 1:
        return math.nan
    around = rates[best - 1 : best + 2]
    if not all(math.isfinite(rate.regret) for rate in around):
        return math.nan
    x = np.log([rate.lr for rate in around])
    bend, slope, _ = np.polyfit(x - x[1], [rate.regret for rate in around], 2)
    if bend <= 0:
        return math.nan
    return float(np.exp(x[1] + np.clip(-slope / (2 * bend), x[0] - x[1], x[2] - x[1])))


def best_rates(costs: Floats, rates: Floats, by: Ints) -> dict[int, float]:
    """For each level of another setting, the learning rate with the lowest cost, if it lies inside the sweep."""
    found = {}
    for level in np.unique(by):
        own = (by == level) & ~np.isnan(costs)
        tried = np.unique(rates[own])
        if len(tried) < FEWEST:
            continue
        sweep = tuple(Rate(float(lr), 1, 0, median(costs[own & (rates == lr)])) for lr in tried)
        best = int(np.argmin([rate.regret for rate in sweep]))
        if 0 < best < len(sweep) - 1:
            bottom = _bottom(sweep, best)
            if not math.isnan(bottom):  # next to diverged runs there is no parabola to find the best rate with
                found[int(level)] = bottom
    return found
