"""The step of every row, from the column that counts them.

A count may start over in every epoch, come late in its block of lines, or be missing in most rows; epochs may have many
rows each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.anew import beginnings, begun_again, goes_on, is_trained_anew
from torchdoctor.sources.columns import Column, combined
from torchdoctor.sources.count_names import TOTAL
from torchdoctor.sources.logged import STEP_LIMIT, Clock
from torchdoctor.sources.words import is_measure, words_of

MOSTLY = 0.8
"""Share of cases above which a pattern holds: a log may be torn, or joined from two runs."""
EVENLY = 8
"""Fewest numbers for which even gaps between them cannot be chance."""
ROWS = "no column counts steps: rows are counted instead"


@dataclass(frozen=True)
class Time:
    """The step of every row."""

    clock: Clock
    steps: NDArray[np.int64]
    columns: tuple[str, ...] = ()
    """The columns that the steps come from."""
    context: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def by_count(
    count: Column, names: tuple[str, ...], columns: Mapping[str, Column], epoch_names: tuple[str, ...], rows: int
) -> Time:
    """Steps as they are counted; if the count starts over in every epoch, the epochs are joined end to end."""
    blocks = _of_blocks(count, columns, rows)
    steps = filled(count, rows) if blocks is None else blocks
    epochs = _epochs_of(combined(epoch_names, columns), count, rows) if epoch_names else None
    totals = columns.get(f"{names[0]}{TOTAL}")
    last = float(totals.values[-1]) if totals is not None and len(totals.values) else 0.0
    total = int(last) if 0 < last < STEP_LIMIT else 0
    if epochs is not None:
        borders = _at_borders(count, epochs)
    else:
        borders = float(_starts_over(count) and not is_trained_anew(columns, count))
    if not borders:
        return Time("step", as_steps(steps), names, {"max_steps": total} if total else {})
    note = f"{names[0]} starts over in every epoch: counting continues"
    if borders < 0.5:  # a count of the whole run falls back only where the run was resumed
        note = f"{names[0]} starts over where the run was resumed: counting continues"
    if epochs is None or borders < 0.5:
        return Time("step", as_steps(_unrolled(steps)), names, notes=(note,))
    length = max(total, int(count.values.max()) + int(count.values.min() < 1))
    begun = np.floor(epochs) - np.floor(float(epochs.min()))
    return Time(
        "step",
        as_steps(begun * length + steps),
        (*epoch_names, *names),
        {"steps_per_epoch": length},
        (f"{note}, {length} steps per epoch",),
    )


def _at_borders(count: Column, epochs: NDArray[np.float64]) -> float:
    """The share of borders between epochs at which a count falls back; 0 if it often falls back elsewhere.

    A count that falls back in the middle of an epoch belongs to a resumed run.
    """
    falls, begun = np.flatnonzero(np.diff(count.values) < 0), np.flatnonzero(np.diff(epochs[count.rows]) > 0)
    if not len(falls) or np.isin(falls, begun).mean() <= MOSTLY:
        return 0.0
    return float(np.isin(begun, falls).mean())


def _starts_over(count: Column) -> bool:
    """Whether a count starts over repeatedly at about the same number; used when no epochs are known."""
    falls = np.flatnonzero(np.diff(count.values) < 0)
    if len(falls) < 2:
        return False
    tops, starts = count.values[falls], count.values[falls + 1]
    return bool((np.abs(tops - np.median(tops)) <= 0.1 * np.median(tops)).all() and (starts <= starts.min() + 1).all())


def _epochs_of(epochs: Column, count: Column, rows: int) -> NDArray[np.float64]:
    """The epoch of every row: the one named last, or the next one if an epoch is named after its batches.

    >>> batches = Column(np.array([0, 1, 3, 4]), np.array([1.0, 2.0, 1.0, 2.0]))
    >>> _epochs_of(Column(np.array([2, 5]), np.array([1.0, 2.0])), batches, 6).tolist()
    [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    """
    falls = np.flatnonzero(np.diff(count.values) < 0)
    if not len(falls) or not len(epochs.rows):
        return filled(epochs, rows)
    if not count.rows[falls[0]] < epochs.rows[0] < count.rows[falls[0] + 1]:
        return filled(epochs, rows)
    goes_on = count.rows[-1] > epochs.rows[-1]  # the last epoch was not finished
    named = np.append(epochs.values, epochs.values[-1] + goes_on)
    return named[np.searchsorted(epochs.rows, np.arange(rows), side="left")]


def _of_blocks(count: Column, columns: Mapping[str, Column], rows: int) -> NDArray[np.float64] | None:
    """The count of every row if it comes late in each block of lines, after all measures; otherwise None.

    >>> count, loss = Column(np.array([1, 4]), np.array([10.0, 20.0])), Column(np.array([0, 3]), np.array([2.0, 1.0]))
    >>> _of_blocks(count, {"loss": loss}, 6).tolist()
    [10.0, 10.0, 10.0, 20.0, 20.0, 20.0]
    """
    at = count.rows
    found = [column.rows for name, column in columns.items() if is_measure(name) and 2 * len(column.rows) > len(at)]
    if len(at) < 2 or not found or any(len(each) != len(at) for each in found):
        return None
    first, last = np.min(found, axis=0), np.max(found, axis=0)
    if not (last < at).all() or not (first[1:] > at[:-1]).all():
        return None
    return count.values[np.maximum(np.searchsorted(first, np.arange(rows), side="right") - 1, 0)]


def _unrolled(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """A count that starts over, continued.

    >>> _unrolled(np.array([0.0, 1.0, 0.0, 1.0])).tolist(), _unrolled(np.array([50.0, 100.0, 50.0])).tolist()
    ([0.0, 1.0, 2.0, 3.0], [50.0, 100.0, 150.0])
    """
    falls = np.diff(steps) < 0
    lifts = np.where(falls, steps[:-1] + (steps[1:] < 1), 0.0)
    lifted: NDArray[np.float64] = steps + np.concatenate([[0.0], np.cumsum(lifts)])
    return lifted


def by_epoch(columns: Mapping[str, Column], names: tuple[str, ...], rows: int) -> Time:
    """The step of every row from epochs: these are the steps if each has one value; otherwise rows are counted."""
    column = combined(names, columns)
    epochs = filled(column, rows)
    whole = bool(np.array_equal(column.values, np.floor(column.values)))
    if len(column.values) == 0:
        return Time("row", by_rows(columns, rows), names)
    again = begun_again(epochs)
    if again and goes_on(columns, beginnings(epochs)):
        epochs, again = _unrolled(epochs), 0
    distinct = max(1, len(np.unique(epochs))) + again
    sizes = {name: len(found.rows) for name, found in columns.items() if name not in names}
    measured = {name: size for name, size in sizes.items() if is_measure(name)}
    most = max((measured or sizes).values(), default=0)
    if whole and (most <= 1.5 * distinct or _is_told_by_each_process(columns, column)):
        return Time("epoch", as_steps(epochs), names)
    steps = by_rows(columns, rows)
    span = float(np.max(epochs) - np.min(epochs)) + (1.0 if whole else 0.0)
    each = int(max(1, round((int(steps.max()) + 1) / span))) if span > 0 else None
    context = {"steps_per_epoch": each} if each else {}
    return Time("row", steps, names, context, (ROWS,))


def _is_told_by_each_process(columns: Mapping[str, Column], epochs: Column) -> bool:
    """Whether every process of a distributed run prints its losses: nearly the same ones, equally often per epoch.

    >>> rows = np.arange(12)
    >>> losses = {"loss": Column(rows[::2], np.array([9.0, 9.1, 5.0, 5.2, 4.0, 4.1]))}
    >>> losses["val_loss"] = Column(rows[1::2], losses["loss"].values + 1)
    >>> _is_told_by_each_process(losses, Column(rows, np.repeat([0.0, 1.0, 2.0], 4)))
    True
    """
    numbers = dict(zip(epochs.rows.tolist(), epochs.values.tolist(), strict=True))
    often: set[int] = set()
    losses = [found for name, found in columns.items() if is_measure(name) and "loss" in words_of(name)]
    for loss in losses:
        if len(loss.rows) < 4 or not set(loss.rows.tolist()) <= numbers.keys():
            return False
        named = np.array([numbers[row] for row in loss.rows.tolist()])
        begins = [loss.values[named == number] for number in np.unique(named)[:2]]
        often.update(map(len, begins))
        if len(begins) < 2 or not 4 * np.ptp(begins[0]) < abs(begins[0].mean() - begins[1].mean()):
            return False
    return len(losses) > 1 and len(often) == 1


def by_rows(columns: Mapping[str, Column], rows: int) -> NDArray[np.int64]:
    """If nothing counts steps: count the rows of the most frequent measure; other rows belong to the one before."""
    measures = [found for name, found in columns.items() if is_measure(name)] or [*columns.values()]
    fullest = max(measures, key=lambda found: len(found.rows), default=None)
    if fullest is None or len(fullest.rows) == rows:
        return np.arange(rows)
    counted = fullest.rows
    for other in measures:  # measures written before or after it
        if len(other.rows) >= EVENLY and len(np.unique(np.searchsorted(counted, other.rows))) * 2 < len(other.rows):
            counted = np.union1d(counted, other.rows)
    return np.maximum(np.searchsorted(counted, np.arange(rows), side="right") - 1, 0).astype(np.int64)


def filled(column: Column, rows: int) -> NDArray[np.float64]:
    """A value for every row: the last one given, or the first one before that."""
    places = np.searchsorted(column.rows, np.arange(rows), side="right") - 1
    return column.values[np.maximum(places, 0)] if len(column.values) else np.zeros(rows)


def as_steps(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Counted values as whole numbers."""
    return np.rint(np.clip(values, -1, STEP_LIMIT)).astype(np.int64)
