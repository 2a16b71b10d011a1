"""Tables with one value per row: one column names the measure, another holds its value.

>>> from pathlib import Path
>>> tidy = Tidy(layout(["metric", "step", "value"]))
>>> for name, step, value in (("loss", 0, 2.5), ("loss", 9, 2.0), ("lr", 9, 0.1)):
...     tidy.add({"metric": name, "step": step, "value": value})
>>> logged = tidy.tables()[""].logged(Path("a.csv"), "CSV")
>>> {name: (points.steps.tolist(), points.values.tolist()) for name, points in logged.points.items()}
{'loss': ([0, 9], [2.5, 2.0]), 'lr': ([9], [0.1])}
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchdoctor.sources.cells import number
from torchdoctor.sources.columns import union
from torchdoctor.sources.count_names import counts, is_epoch
from torchdoctor.sources.logged import NAMES_LIMIT
from torchdoctor.sources.phases import is_phase_column, named_in_phase
from torchdoctor.sources.table import Table
from torchdoctor.sources.words import is_measure, listed, words_of

NAMES = listed("metric key tag name variable series measure scalar quantity")
VALUES = listed("value metricvalue y")
RUNS = listed("run runid runname experiment trial")
MOST_RUNS = 1000


class Layout(NamedTuple):
    """The columns of such a table by role."""

    name: str
    value: str
    clock: str | None
    phase: str | None
    run: str | None


def layout(columns: Sequence[str]) -> Layout | None:
    """The columns by role; None if a table is not of this kind.

    >>> layout(["metricName", "metricValue", "epoch"])
    Layout(name='metricName', value='metricValue', clock='epoch', phase=None, run=None)
    >>> layout(["step", "loss", "value"])
    """
    name = next((column for column in columns if _is(column, NAMES, "name")), None)
    value = next((column for column in columns if column != name and _is(column, VALUES, "value")), None)
    if name is None or value is None or any(is_measure(column) for column in columns if column not in (name, value)):
        return None
    found = sorted((column for column in columns if counts(column)), key=is_epoch)
    return Layout(
        name,
        value,
        found[0] if found else None,
        next((column for column in columns if column != name and is_phase_column(column)), None),
        next((column for column in columns if "".join(words_of(column)) in RUNS), None),
    )


def _is(column: str, known: frozenset[str], last: str) -> bool:
    words = words_of(column)
    if len(words) == 2 and words[0] in ("metric", "scalar", "tag"):  # metricName, metric_value
        return words[1] == last
    return len(words) == 1 and words[0] in known


class Tidy:
    """Values that have arrived, by run and name."""

    def __init__(self, columns: Layout) -> None:
        self.columns = columns
        self._series: dict[str, dict[str, tuple[array[float], array[float]]]] = {}
        self._empty: dict[str, array[float]] = {}
        """By run, the steps at which a name has no value."""

    def add(self, row: Mapping[str, Any], comma: bool = False) -> None:
        """Add one value, if the row has one."""
        name, cell = row.get(self.columns.name), row.get(self.columns.value)
        value = _number(cell, comma)
        if not isinstance(name, str) or not name:
            return
        if self.columns.phase is not None:
            name = named_in_phase(name, row.get(self.columns.phase))
        run = str(row.get(self.columns.run) or "")[:80] if self.columns.run is not None else ""
        step = _number(row.get(self.columns.clock), comma) if self.columns.clock is not None else None
        if value is None:
            if cell in (None, "") and step is not None:
                self._empty.setdefault(run, array("d")).append(step)
            return
        if run not in self._series and len(self._series) >= MOST_RUNS:
            return
        names = self._series.setdefault(run, {})
        if name not in names and len(names) >= NAMES_LIMIT:
            return
        steps, values = names.setdefault(name, (array("d"), array("d")))
        steps.append(float(len(steps)) if step is None else step)
        values.append(value)

    def tables(self, read: Table | None = None) -> dict[str, Table]:
        """The table of every run, one row per step; notes on unreadable lines are taken from `read`."""
        found = {}
        for run, names in self._series.items():
            table = Table() if read is None else read.empty()
            empty = np.unique(np.frombuffer(self._empty.get(run, array("d"))))
            steps = union([*(np.frombuffer(steps) for steps, _ in names.values()), empty])
            steps, empty = steps[np.isfinite(steps)], empty[np.isfinite(empty)]
            table.blank = np.searchsorted(steps, empty).tolist()
            table.rows = len(steps)
            if self.columns.clock is not None:
                table.extend(self.columns.clock, np.arange(len(steps)), steps)
            for name, (at, values) in names.items():
                there = np.isfinite(np.frombuffer(at))
                places = np.searchsorted(steps, np.frombuffer(at)[there])
                table.extend(name, places, np.frombuffer(values)[there])
            found[run] = table
        return found


def _number(cell: object, comma: bool) -> float | None:
    if isinstance(cell, str):
        return number(cell, comma) if len(cell) < 64 else None
    if type(cell) is float:
        return cell
    return float(cell) if type(cell) is int and abs(cell) < 10**300 else None
