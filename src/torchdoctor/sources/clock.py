"""Finds out what the rows of a log count: steps, epochs, or only rows.

>>> rows = np.arange(6)
>>> epoch, batch = Column(rows, np.repeat([1.0, 2.0], 3)), Column(rows, np.tile([0.0, 1.0, 2.0], 2))
>>> found = tell_time({"epoch": epoch, "batch": batch, "loss": Column(rows, np.linspace(3, 1, 6))}, 6)
>>> found.clock, found.steps.tolist(), found.columns
('step', [0, 1, 2, 3, 4, 5], ('epoch', 'batch'))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchdoctor.errors import SourceError, did_you_mean
from torchdoctor.sources.anew import loss_of
from torchdoctor.sources.columns import Column, combined, union
from torchdoctor.sources.count_names import COUNTS, LOCAL, ROUNDS, TOTAL, counts_with, is_epoch, preference
from torchdoctor.sources.logged import Clock
from torchdoctor.sources.row_steps import EVENLY, MOSTLY, ROWS, Time, as_steps, by_count, by_epoch, by_rows, filled
from torchdoctor.sources.words import is_measure, taken_apart

CONSTANT = 0.9
"""Share of a single repeated number from which a column counts nothing: the last batch of every epoch."""
SELDOM = 4
"""How many times as often as its count a measure may be given; half as often if epochs come with each value."""
EPOCH_SECONDS = 1e9
"""Numbers from here on are the time of day, in seconds or smaller units, not a count of steps."""
_Counted = tuple[tuple[str, ...], Column]
"""A count: the names of its columns, and their combined values."""


def tell_time(columns: Mapping[str, Column], rows: int, named: str | None = None) -> Time:
    """Choose the column that counts the rows; `named` is the user's choice."""
    if named is not None:
        if named not in columns:
            raise SourceError(f"--map step={named}: there is no such numeric column. {did_you_mean(named, columns)}")
        kind: Clock = "epoch" if is_epoch(named) else "step"
        return Time(kind, as_steps(filled(columns[named], rows)), (named,))
    columns = _told_apart(columns)
    named_epochs = [name for name in columns if is_epoch(name)]
    named_epochs.sort(key=lambda name: not _moves(columns[name]))  # "num_epochs: 30" may appear in every line
    epochs = _merged(named_epochs, columns)
    candidates = [(names, count) for names in _counts(columns) if _moves(count := combined(names, columns))]
    measured = _fullest(columns, candidates)
    most = max([measured, *(len(count.rows) for _, count in candidates)])
    seldom = SELDOM if len(combined(epochs, columns).rows if epochs else ()) < measured else SELDOM / 2
    often = [(names, count) for names, count in candidates if len(count.rows) * seldom >= most]
    if epochs and _is_beside(columns, combined(epochs, columns)) and by_epoch(columns, epochs, rows).clock == "epoch":
        often = [(names, count) for names, count in often if _is_beside(columns, count, 0.0)]
    rising = [(names, count) for names, count in often if not _falls(count)]
    chosen = (rising or often)[:1]
    for names, count in chosen if epochs and not chosen else _of_the_loss(columns, candidates, chosen):
        return by_count(count, names, columns, epochs, rows)
    if epochs:
        return by_epoch(columns, epochs, rows)
    unknown = _unknown_count(columns)
    if unknown:
        return Time("step", as_steps(filled(columns[unknown], rows)), (unknown,))
    return Time("row", by_rows(columns, rows), notes=(ROWS,))


def _told_apart(columns: Mapping[str, Column]) -> Mapping[str, Column]:
    """Columns with epoch and batch separated, if a slash joins them: "Batch 0/100", "Batch 0/200", "Batch 1/0"."""
    for name, count in columns.items():
        far = columns.get(name + TOTAL)
        if far is None or is_epoch(name) or any(map(is_epoch, columns)) or len(far.rows) != len(count.rows):
            continue
        if len(far.rows) >= EVENLY and (np.diff(far.values) != 0).mean() > 0.5:  # a total does not change so often
            return {**columns, "epoch": count, name: far, name + TOTAL: Column(far.rows[:0], far.values[:0])}
    return columns


def _fullest(columns: Mapping[str, Column], counted: Sequence[tuple[tuple[str, ...], Column]]) -> int:
    """How often the most frequent measure is given: a count that is given far less often does not count it."""
    known = {name for names, _ in counted for name in names}
    sizes = [len(found.rows) for name, found in columns.items() if name not in known and is_measure(name)]
    return max(sizes, default=0)


def _is_beside(columns: Mapping[str, Column], count: Column, share: float = 0.99) -> bool:
    """Whether a count appears in more than a share of the rows with measures: "Update[90]: rate 0.01" stands alone."""
    rows = [found.rows for name, found in columns.items() if is_measure(name)]
    measured = union(rows) if rows else np.zeros(0, np.int64)
    return len(measured) > 0 and bool(np.isin(measured, count.rows).mean() > share)


def _of_the_loss(
    columns: Mapping[str, Column], candidates: Sequence[_Counted], chosen: Sequence[_Counted]
) -> Sequence[_Counted]:
    """The count next to every loss, if the chosen one is next to none and counts something later.

    >>> early, late = np.arange(9), np.arange(9, 99)
    >>> step, loss, chunk = Column(early, early * 500.0), Column(early, 1.0 / (early + 1)), Column(late, late * 10.0)
    >>> tell_time({"step": step, "loss": loss, "chunk": chunk, "bpb": Column(late, 9.0 / late)}, 99).columns
    ('step',)
    """
    loss = loss_of(columns)
    if loss is None or len(loss.rows) < EVENLY or any(np.isin(loss.rows, count.rows).any() for _, count in chosen):
        return chosen
    return [each for each in candidates if np.isin(loss.rows, each[1].rows).all()][:1] or chosen


def _unknown_count(columns: Mapping[str, Column]) -> str:
    """A column whose values count something, whatever its name: "Snapshot 2000 saved, loss: 2.5".

    >>> rows = np.arange(9)
    >>> _unknown_count({"snapshot": Column(rows, rows * 500.0), "loss": Column(rows, 1.0 / (rows + 1))})
    'snapshot'
    """
    measures = {name: found for name, found in columns.items() if is_measure(name)}
    longest = max(measures.values(), key=lambda found: len(found.rows), default=None)
    if longest is None or len(longest.rows) < EVENLY:
        return ""
    full = {taken_apart(name, 0).split for name, found in measures.items() if len(found.rows) == len(longest.rows)}
    if "val" in full and len(full) > 1:  # training and validation in every row: the rows are epochs
        return ""
    for name, found in columns.items():
        if is_measure(name) or not np.array_equal(found.rows, longest.rows) or not _are_whole(found.values):
            continue
        gaps = np.diff(found.values)
        if 0 <= found.values[0] < EPOCH_SECONDS and (gaps > 1).all() and (gaps == np.median(gaps)).mean() > MOSTLY:
            return name
    return ""


def _counts(columns: Mapping[str, Column]) -> list[tuple[str, ...]]:
    """What may count steps, best first: counts of the whole run, then of an epoch. Counts that never share a row (one
    word in training lines, another in validation lines) are combined."""
    found = []
    for known in (COUNTS, LOCAL, ROUNDS):
        names = [name for name in columns if counts_with(known, name)]
        most = max((len(columns[name].rows) for name in names), default=0)
        names.sort(key=lambda name: preference(name, len(columns[name].rows), most))
        if names:
            found.append(_merged(names, columns))
            found += [(name,) for name in names[1:]]
    return found


def _merged(names: Sequence[str], columns: Mapping[str, Column]) -> tuple[str, ...]:
    """The first of some columns, and those that fill rows it leaves empty and count the same way."""
    chosen: tuple[str, ...] = tuple(names[:1])
    for name in names[1:]:
        one, other = combined(chosen, columns), columns[name]
        together = combined((*chosen, name), columns)
        if len(other.rows) > 1 and not _moves(other):  # constant: the last batch of every validation
            continue
        if _are_whole(one.values) != _are_whole(other.values):  # "time for 1 epoch: 29.4 s"
            continue
        if not np.intersect1d(one.rows, other.rows).size and _falls(together) <= _falls(one) + _falls(other):
            chosen = (*chosen, name)
    return chosen


def _falls(column: Column) -> int:
    return int((np.diff(column.values) < 0).sum())


def _moves(column: Column) -> bool:
    """Whether a column counts at all: whole numbers that are not nearly always the same."""
    values = column.values
    if not len(values) or not _are_whole(values):
        return False
    if len(values) < EVENLY:
        return len(values) == 1 or bool((np.diff(values) != 0).any())
    return bool(np.unique(values, return_counts=True)[1].max() <= CONSTANT * len(values))


def _are_whole(values: NDArray[np.float64]) -> bool:
    return len(values) == 0 or bool((values == np.floor(values)).mean() > 0.95)
