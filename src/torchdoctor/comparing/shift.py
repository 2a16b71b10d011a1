"""How much one level differs from another, with an exact interval that assumes no distribution.

The estimate is the median of all differences between a run of one level and a run of the other within a stratum
(Hodges and Lehmann). The interval is taken from the same sorted differences, at the positions that the exact
distribution of the rank-sum test gives.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from torchdoctor.comparing.design import Ints
from torchdoctor.comparing.summary import Floats

EXACT = 4000
"""Pairs up to which the exact distribution is computed; with more, the normal approximation is used."""


class Shift(NamedTuple):
    """A difference of costs with its interval; the ends are infinite if there are too few runs to bound them."""

    estimate: float
    low: float
    high: float


def shift(first: Floats, second: Floats, first_strata: Ints, second_strata: Ints, alpha: float) -> Shift:
    """How much higher the costs of `first` are than those of `second`.

    >>> zeros = np.zeros(5, dtype=int)
    >>> shift(np.arange(5) + 1.0, np.arange(5) / 10, zeros, zeros, 0.05)
    Shift(estimate=2.8, low=0.8, high=4.8)
    """
    parts = []
    sizes = []
    for stratum in np.intersect1d(first_strata, second_strata):
        mine, other = first[first_strata == stratum], second[second_strata == stratum]
        if not (np.isfinite(mine).any() or np.isfinite(other).any()):
            continue  # all diverged: nothing to learn about their difference
        with np.errstate(invalid="ignore"):
            parts.append(np.nan_to_num(np.subtract.outer(mine, other), nan=0.0, posinf=np.inf, neginf=-np.inf).ravel())
        sizes.append((len(mine), len(other)))
    if not parts:
        return Shift(math.nan, -math.inf, math.inf)
    differences = np.sort(np.concatenate(parts))
    middle = len(differences) // 2
    estimate = float(differences[middle])
    if len(differences) % 2 == 0 and differences[middle - 1] != estimate:
        estimate = float((differences[middle - 1] + estimate) / 2)
    out = _left_out(tuple(sorted(sizes)), alpha)
    if out < 0:
        return Shift(estimate, -math.inf, math.inf)
    return Shift(estimate, float(differences[out]), float(differences[-1 - out]))


@cache
def _left_out(sizes: tuple[tuple[int, int], ...], alpha: float) -> int:
    """How many of the lowest and of the highest differences the interval leaves out; -1 if the interval is infinite.

    >>> _left_out(((3, 3),), 0.05), _left_out(((5, 5),), 0.05), _left_out(((3, 3), (3, 3)), 0.05)
    (-1, 2, 2)
    """
    pairs = sum(mine * other for mine, other in sizes)
    if pairs > EXACT:
        spread = math.sqrt(sum(mine * other * (mine + other + 1) / 12 for mine, other in sizes))
        return int(max(-1, math.floor(pairs / 2 - normal_quantile(1 - alpha / 2) * spread - 0.5)))
    chances = np.ones(1)
    for mine, other in sizes:
        chances = np.convolve(chances, _rank_sum(mine, other))
    below = np.cumsum(chances)
    return int(np.searchsorted(below, alpha / 2, side="right")) - 1


@cache
def _rank_sum(mine: int, other: int) -> Floats:
    """The probability of each number of pairs in which the first is larger, if there is no difference.

    >>> _rank_sum(2, 2).tolist()
    [0.16666666666666666, 0.16666666666666666, 0.3333333333333333, 0.16666666666666666, 0.16666666666666666]
    """
    ways = np.zeros(mine * other + 1)
    ways[0] = 1.0
    for size in range(1, mine + 1):  # the Gaussian binomial coefficient, factor by factor
        top = other + size
        ways[top:] = ways[top:] - ways[:-top] if top <= mine * other else ways[top:]
        for place in range(size, len(ways)):
            ways[place] += ways[place - size]
    chances: Floats = ways / ways.sum()
    return chances


def margin(spread: float, spare: int, mine: int, other: int, others: int) -> float:
    """The difference that medians of repeated runs stay below in 95 % of cases if only seeds differ.

    `spread` between seeds was estimated from `spare` runs beyond the first of each configuration. One median, of `mine`
    runs, is the best; it is compared with `others` medians of `other` runs each.

    >>> round(margin(0.02, 15, 4, 4, 4), 3)
    0.049
    """
    normal = normal_quantile(1 - 0.05 / 2 / max(1, others))
    reach = normal + (normal**3 + normal) / (4 * max(1, spare))  # with few runs the spread itself is uncertain
    # The standard error of a median of few values is about 25 % larger than that of their mean.
    return 1.25 * reach * spread * math.sqrt(1 / max(1, mine) + 1 / max(1, other))


def normal_quantile(share: float) -> float:
    """The value below which this share of a standard normal distribution lies.

    >>> round(normal_quantile(0.975), 3)
    1.96
    """
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)
