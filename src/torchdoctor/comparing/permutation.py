"""Whether a setting matters at all, by a permutation test, without assumptions about the distribution of scores.

If a setting has no effect, shuffling its levels among runs that are equal in everything else changes nothing. So the
levels are shuffled thousands of times, and the p-value is the share of shuffles that separate the runs at least as
well as the real assignment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.comparing.design import Ints
from torchdoctor.comparing.summary import Floats

DEALS = 4999
AT_ONCE = 2_000_000
"""Maximum number of values in a batch of shuffles held in memory."""


@dataclass(frozen=True)
class Trial:
    """Units (runs or configurations) with their ranks, levels and strata, ready to shuffle."""

    ranks: Floats
    """For each unit, its rank in its stratum, from -1 to 1; ties share one rank."""
    levels: Ints
    strata: Ints

    @property
    def sizes(self) -> Ints:
        """The number of units of each level."""
        return np.bincount(self.levels)

    def smallest_p(self) -> float:
        """The p-value of the clearest possible outcome; with few units even that is large.

        >>> round(trial(np.arange(6.0), np.repeat([0, 1], 3), np.zeros(6, dtype=int)).smallest_p(), 3)
        0.1
        """
        return math.exp(min(0.0, _symmetry(self.sizes) - self.log_deals()))

    def log_deals(self) -> float:
        """The logarithm of the number of different shuffles."""
        total = 0.0
        for stratum in range(int(self.strata.max(initial=-1)) + 1):
            counts = np.bincount(self.levels[self.strata == stratum])
            total += math.lgamma(counts.sum() + 1) - sum(math.lgamma(count + 1) for count in counts)
        return total

    def p_value(self, generator: np.random.Generator, deals: int = DEALS) -> float:
        """The share of shuffles, counting the real assignment as one, that separate the levels at least as well."""
        real = float(self._separation(self.levels[None, :])[0]) * (1 - 1e-9)
        order = np.argsort(self.strata, kind="stable")
        levels, strata, ranks = self.levels[order], self.strata[order], self.ranks[order]
        beaten = 0
        batch = max(1, AT_ONCE // max(1, len(levels)))
        for start in range(0, deals, batch):
            count = min(batch, deals - start)
            keys = generator.random((count, len(levels))) + strata  # sorted: shuffled within each stratum
            dealt = levels[np.argsort(keys, axis=1)]
            beaten += int((_separation(dealt, ranks, len(self.sizes)) >= real).sum())
        return (1 + beaten) / (1 + deals)

    def explained(self) -> float:
        """The share of the variance of ranks that the levels explain beyond chance, from 0 to 1."""
        total = float((self.ranks**2).sum())
        levels = int((self.sizes > 0).sum())
        spare = len(self.ranks) - int(self.strata.max(initial=0)) - levels
        if total <= 0 or spare < 1:
            return math.nan
        between = float(self._separation(self.levels[None, :])[0])
        return max(0.0, (between - (levels - 1) * (total - between) / spare) / total)

    def _separation(self, levels: Ints) -> Floats:
        return _separation(levels, self.ranks, len(self.sizes))


def trial(costs: Floats, levels: Ints, strata: Ints) -> Trial:
    """Ranks within strata; units whose stratum has only one level say nothing about this setting and are left out."""
    keep = np.isfinite(costs) | np.isposinf(costs)
    telling = np.zeros(len(costs), dtype=bool)
    for stratum in np.unique(strata[keep]):
        inside = keep & (strata == stratum)
        telling |= inside & (len(np.unique(levels[inside])) > 1)
    _, dense = np.unique(strata[telling], return_inverse=True)
    ranks = np.zeros(int(telling.sum()))
    for stratum in range(int(dense.max(initial=-1)) + 1):
        inside = dense == stratum
        ranks[inside] = _centred_ranks(costs[telling][inside])
    return Trial(ranks, levels[telling], dense)


def _centred_ranks(values: Floats) -> Floats:
    """Ranks from -1 to 1; equal values get the mean of their ranks.

    >>> _centred_ranks(np.array([5.0, 1.0, np.inf, np.inf])).round(2).tolist()
    [-0.2, -0.6, 0.4, 0.4]
    """
    ordered = np.sort(values)
    first, last = np.searchsorted(ordered, values), np.searchsorted(ordered, values, side="right")
    return (first + last + 1) / (len(values) + 1) - 1


def _separation(levels: Ints, ranks: Floats, count: int) -> Floats:
    """For each row of levels, the sum of squares between levels."""
    total = np.zeros(len(levels))
    for level in range(count):
        here = levels == level
        sizes = here.sum(axis=1)
        total += (here @ ranks) ** 2 / np.maximum(sizes, 1)
    return total


def _symmetry(sizes: Ints) -> float:
    """The logarithm of the number of ways to rename levels of equal size, which does not change the separation."""
    _, alike = np.unique(sizes[sizes > 0], return_counts=True)
    return float(sum(math.lgamma(count + 1) for count in alike))


def holm(p_values: list[float]) -> list[float]:
    """The p-values corrected for multiple tests, so that they bound the chance of even one false alarm.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found = [1.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = highest
    return found
