"""Columns of a table whose cells may be empty, as the clock reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.logged import STEP_LIMIT


@dataclass(frozen=True)
class Column:
    """A sparse column of a table: its values, and the rows that have one."""

    rows: NDArray[np.int64]
    values: NDArray[np.float64]


def union(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All numbers of some columns, each once, in order; sorted equal columns are returned as they are.

    >>> union([np.array([1, 2, 5]), np.array([2, 3])]).tolist()
    [1, 2, 3, 5]
    """
    first = rows[0]
    if all(np.array_equal(first, other) for other in rows[1:]) and bool((first[1:] > first[:-1]).all()):
        return first
    numbers = np.sort(np.concatenate(rows), kind="stable")
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])] if len(numbers) else numbers


def combined(names: Sequence[str], columns: Mapping[str, Column]) -> Column:
    """One column, or several whose values fill each other's gaps, without numbers that cannot be a step.

    >>> train, val = Column(np.array([0, 2]), np.array([1.0, 2.0])), Column(np.array([1, 3]), np.array([1.0, np.nan]))
    >>> combined(("step", "val_step"), {"step": train, "val_step": val}).values.tolist()
    [1.0, 1.0, 2.0]
    """
    if len(names) == 1:
        found = columns[names[0]]
    else:
        rows = np.concatenate([columns[name].rows for name in names])
        values = np.concatenate([columns[name].values for name in names])
        order = np.argsort(rows, kind="stable")
        found = Column(rows[order], values[order])
    usable = np.isfinite(found.values) & (np.abs(found.values) < STEP_LIMIT)
    return found if usable.all() else Column(found.rows[usable], found.values[usable])
