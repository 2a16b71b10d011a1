"""The runs as an experiment: which settings vary, over which levels, and which runs repeat the same settings."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.comparing.hyperparameters import Value
from torchdoctor.comparing.summary import HUGE, Floats, Summary
from torchdoctor.records import number_text

Ints = NDArray[np.int64]

SEED = re.compile(r"(^|[._/ -])(seed|seeds|random_state|rng|replicate|repeat|fold)($|[._/ -])", re.IGNORECASE)
IDENTIFIER = re.compile(
    r"(^|[._/ -])(name|id|uuid|dir|folder|path|file|output|time|timestamp|date|created|started|host|hostname|user|pid|"
    r"port|version|versions|commit|git|rank|url|entity|project|notes|tags|description|log|logging|logdir)($|[._/ -])",
    re.IGNORECASE,
)
"""Settings that identify a run, but do not affect its training."""
MOST_LEVELS = 12
"""Numeric settings with more values than this are split into ranges."""
PARTS = 4
ABSENT = "not given"
ENOUGH = 3
"""Settings that must be recorded if there is no seed, for equal settings to count as repetitions."""
PREFERRED = ("lr", "batch_size", "parameters", "optimizer", "scheduler", "weight_decay", "model")


@dataclass(frozen=True, eq=False)
class Factor:
    """A setting that differs between runs, or several that always change together."""

    names: tuple[str, ...]
    labels: tuple[str, ...]
    """Its levels as text, ascending if they are numbers."""
    codes: Ints
    """For each run, the index of its level in `labels`."""
    values: Floats | None = None
    """For each run, the number itself, if all levels are numbers."""
    parted: bool = False
    """Whether the levels are ranges rather than single values."""

    @property
    def name(self) -> str:
        """The first of its names, used for all."""
        return self.names[0]

    def means(self, wanted: str) -> bool:
        """Whether this setting has that name."""
        return wanted in self.names


@dataclass(frozen=True)
class Design:
    """What varies between runs."""

    factors: tuple[Factor, ...]
    constant: tuple[str, ...]
    """Settings that all runs share."""
    seeds: tuple[str, ...]
    """Seeds that differ."""
    identifiers: tuple[str, ...]
    """Settings that differ, but only identify the run."""
    groups: Ints
    """For each run, the number of its configuration: runs with the same number differ only in their seeds."""
    told: bool = True
    """Whether the logs record enough settings; if not, no run counts as a repetition of another."""

    @property
    def configurations(self) -> int:
        """The number of configurations."""
        return int(self.groups.max()) + 1 if len(self.groups) else 0

    @property
    def replicated(self) -> bool:
        """Whether any configuration was run more than once."""
        return self.configurations < len(self.groups)

    def factor(self, name: str) -> Factor | None:
        """The factor of a setting."""
        return next((item for item in self.factors if item.means(name)), None)

    def strata(self, *apart: Factor) -> Ints:
        """For each run, the number of its stratum: runs of a stratum have equal settings apart from these."""
        others = [item.values if item.values is not None else item.codes for item in self.factors if item not in apart]
        return numbered(list(zip(*(item.tolist() for item in others), strict=True))) if others else 0 * self.groups


def design(summaries: Sequence[Summary]) -> Design:
    """Sort the settings of runs into factors, constants, seeds and identifiers.

    >>> runs = [Summary(str(seed), "", 10, {"lr": lr, "seed": seed, "momentum": 0.9})
    ...         for seed, lr in enumerate((0.1, 0.1, 0.3))]
    >>> found = design(runs)
    >>> [(item.name, item.labels) for item in found.factors], found.seeds, found.constant, found.groups.tolist()
    ([('lr', ('0.1', '0.3'))], ('seed',), ('momentum',), [0, 0, 1])
    """
    names = list(dict.fromkeys(name for summary in summaries for name in summary.settings))
    constant, seeds, identifiers = [], [], []
    factors: dict[tuple[int, ...], Factor] = {}
    for name in sorted(names, key=_preference):
        values = [_rounded(summary.settings.get(name)) for summary in summaries]
        if len(set(values)) == 1:
            constant.append(name)
        elif SEED.search(name):
            seeds.append(name)
        elif IDENTIFIER.search(name) or _all_differ_in_words(values):
            identifiers.append(name)
        else:
            exact = tuple(numbered(values).tolist())
            known = factors.get(exact)
            made = _factor(name, values)
            factors[exact] = made if known is None else _joined(known, name)
    told = any(SEED.search(name) for name in names) or len(constant) + len(factors) >= ENOUGH
    groups = numbered(list(zip(*factors, strict=True))) if factors else np.zeros(len(summaries), dtype=np.int64)
    if not told:
        groups = np.arange(len(summaries))
    return Design(tuple(factors.values()), tuple(constant), tuple(seeds), tuple(identifiers), groups, told)


def _preference(name: str) -> tuple[int, str]:
    return PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), name


def _rounded(value: Value) -> Value:
    """Rounded, so that numbers that differ by rounding are equal; non-finite numbers as text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not abs(value) < HUGE:
        return str(value)[:40]
    return float(f"{value:.6g}")


def _all_differ_in_words(values: Sequence[Value]) -> bool:
    return len(values) > 2 and len(set(values)) == len(values) and any(isinstance(value, str) for value in values)


def numbered(keys: Sequence[Hashable]) -> Ints:
    """A number for each key, in order of first appearance."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def _joined(factor: Factor, name: str) -> Factor:
    return Factor((*factor.names, name), factor.labels, factor.codes, factor.values, factor.parted)


def _factor(name: str, values: Sequence[Value]) -> Factor:
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) == len(values):
        array = np.array(numbers)
        levels = np.unique(array)
        if len(levels) > MOST_LEVELS:
            return _parted(name, array)
        labels = tuple(value_text(level) for level in levels)
        return Factor((name,), labels, np.searchsorted(levels, array), array)
    order: list[Any] = sorted(set(values), key=lambda value: (value is None, isinstance(value, str), value))
    codes = np.array([order.index(value) for value in values], dtype=np.int64)
    return Factor((name,), tuple(value_text(level) for level in order), codes)


def _parted(name: str, values: Floats) -> Factor:
    edges: Floats = np.unique(np.quantile(values, np.linspace(0, 1, PARTS + 1)))
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    labels = []
    for part in range(len(edges) - 1):
        inside = values[codes == part]
        labels.append(f"{value_text(inside.min())} to {value_text(inside.max())}" if len(inside) else "")
    return Factor((name,), tuple(labels), codes, values, parted=True)


def value_text(value: Any) -> str:
    """A level as text."""
    if value is None:
        return ABSENT
    if isinstance(value, float | np.floating):
        number = float(value)
        return f"{int(number):,}" if number.is_integer() and abs(number) < 1e15 else number_text(number)
    return str(value)
