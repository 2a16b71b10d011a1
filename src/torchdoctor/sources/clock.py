"""Finds out what the rows of a log count: steps, epochs, or only rows.

>>> rows = np.arange(6)
>>> epoch, batch = Column(rows, np.repeat([1.0, 2.0], 3)), Column(rows, np.tile([0.0, 1.0, 2.0], 2))
>>> found = tell_time({"epoch": epoch, "batch": batch, "loss": Column(rows, np.linspace(3, 1, 6))}, 6)
>>> found.clock, found.steps.tolist(), found.columns
('step', [0, 1, 2, 3, 4, 5], ('epoch', 'batch'))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.errors import SourceError, did_you_mean
from torchdoctor.sources.anew import beginnings, begun_again, goes_on, is_trained_anew, loss_of
from torchdoctor.sources.logged import STEP_LIMIT, Clock
from torchdoctor.sources.words import SPLITS, is_measure, listed, taken_apart, words_of

COUNTS = listed("step steps iter iters iteration iterations it itr update updates nupdates timestep timesteps")
STEPS = listed("step steps timestep timesteps")
LOCAL = listed("batch minibatch")
ROUNDS = listed("episode episodes generation generations round rounds")
AROUND = listed("global trainer num n total current cur optimizer no number idx index id i the completed finished")
STAGES = AROUND | SPLITS.keys() | listed("end ended start started begin loop after at for of in results summary report")
"""Words that may stand before the word "epoch": "END TRAIN LOOP EPOCH 3"."""
EPOCHS = frozenset({"epoch", "epochs", "ep"})
GROUPS = SPLITS.keys() | listed("time progress counter counters trainer data log logs metrics payload record event")
"""Words under which loggers group their counts, or everything."""
MOSTLY = 0.8
CONSTANT = 0.9
"""Share of a single repeated number from which a column counts nothing: the last batch of every epoch."""
SELDOM = 4
"""How many times as often as its count a measure may be given; half as often if epochs come with each value."""
EVENLY = 8
"""Fewest numbers for which even gaps between them cannot be chance."""
EPOCH_SECONDS = 1e9
"""Numbers from here on are the time of day, in seconds or smaller units, not a count of steps."""
TOTAL = " of"
"""Added to the name of a count to name the column with its total."""
ROWS = "no column counts steps: rows are counted instead"


@dataclass(frozen=True)
class Column:
    """A sparse column of a table: its values, and the rows that have one."""

    rows: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Time:
    """The step of every row."""

    clock: Clock
    steps: NDArray[np.int64]
    columns: tuple[str, ...] = ()
    """The columns that the steps come from."""
    context: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


_Counted = tuple[tuple[str, ...], Column]
"""A count: the names of its columns, and their combined values."""


def tell_time(columns: Mapping[str, Column], rows: int, named: str | None = None) -> Time:
    """Choose the column that counts the rows; `named` is the user's choice."""
    if named is not None:
        if named not in columns:
            raise SourceError(f"--map step={named}: there is no such numeric column. {did_you_mean(named, columns)}")
        kind: Clock = "epoch" if is_epoch(named) else "step"
        return Time(kind, _whole(_filled(columns[named], rows)), (named,))
    columns = _told_apart(columns)
    named_epochs = [name for name in columns if is_epoch(name)]
    named_epochs.sort(key=lambda name: not _moves(columns[name]))  # "num_epochs: 30" may appear in every line
    epochs = _merged(named_epochs, columns)
    candidates = [(names, count) for names in _counts(columns) if _moves(count := _column_of(names, columns))]
    measured = _fullest(columns, candidates)
    most = max([measured, *(len(count.rows) for _, count in candidates)])
    seldom = SELDOM if len(_column_of(epochs, columns).rows if epochs else ()) < measured else SELDOM / 2
    often = [(names, count) for names, count in candidates if len(count.rows) * seldom >= most]
    if (
        epochs
        and _is_beside(columns, _column_of(epochs, columns))
        and _by_epoch(columns, epochs, rows).clock == "epoch"
    ):
        often = [(names, count) for names, count in often if _is_beside(columns, count, 0.0)]
    rising = [(names, count) for names, count in often if not _falls(count)]
    chosen = (rising or often)[:1]
    for names, count in chosen if epochs and not chosen else _of_the_loss(columns, candidates, chosen):
        return _by_count(count, names, columns, epochs, rows)
    if epochs:
        return _by_epoch(columns, epochs, rows)
    unknown = _unknown_count(columns)
    if unknown:
        return Time("step", _whole(_filled(columns[unknown], rows)), (unknown,))
    return Time("row", _row_steps(columns, rows), notes=(ROWS,))


def _told_apart(columns: Mapping[str, Column]) -> Mapping[str, Column]:
    """Columns with epoch and batch separated, if a slash joins them: "Batch 0/100", "Batch 0/200", "Batch 1/0"."""
    for name, count in columns.items():
        far = columns.get(name + TOTAL)
        if far is None or is_epoch(name) or any(map(is_epoch, columns)) or len(far.rows) != len(count.rows):
            continue
        if len(far.rows) >= EVENLY and (np.diff(far.values) != 0).mean() > 0.5:  # a total does not change so often
            return {**columns, "epoch": count, name: far, name + TOTAL: Column(far.rows[:0], far.values[:0])}
    return columns


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


@lru_cache(maxsize=4096)
def counts(name: str) -> bool:
    """Whether a name stands for a count of steps or epochs.

    >>> counts("global_step"), counts("epoch"), counts("step_time")
    (True, True, False)
    """
    return is_epoch(name) or _counts_with(COUNTS | LOCAL | ROUNDS, name)


@lru_cache(maxsize=4096)
def is_epoch(name: str) -> bool:
    """Whether a name stands for a count of epochs."""
    words = _words(name)
    return not EPOCHS.isdisjoint(words) and words <= EPOCHS | STAGES


def _counts(columns: Mapping[str, Column]) -> list[tuple[str, ...]]:
    """What may count steps, best first: counts of the whole run, then of an epoch. Counts that never share a row (one
    word in training lines, another in validation lines) are combined."""
    found = []
    for known in (COUNTS, LOCAL, ROUNDS):
        names = [name for name in columns if _counts_with(known, name)]
        most = max((len(columns[name].rows) for name in names), default=0)
        names.sort(key=lambda name: _preference(name, len(columns[name].rows), most))
        if names:
            found.append(_merged(names, columns))
            found += [(name,) for name in names[1:]]
    return found


def _preference(name: str, count: int, most: int) -> tuple[bool, bool, bool, int]:
    """Global steps first; of counts given about equally often, the one called a step."""
    words = words_of(name)
    return "global" not in words, count * 2 < most, STEPS.isdisjoint(words), -count


def _counts_with(known: frozenset[str], name: str) -> bool:
    words = _words(name)
    return not known.isdisjoint(words) and words <= COUNTS | LOCAL | ROUNDS | AROUND


def _words(name: str) -> set[str]:
    """The words of a name; of "time/total_timesteps" only those of the count."""
    group, _, own = name.rpartition("/")
    return set(words_of(own if group and GROUPS.issuperset(words_of(group)) else name)) - SPLITS.keys()


def _merged(names: Sequence[str], columns: Mapping[str, Column]) -> tuple[str, ...]:
    """The first of some columns, and those that fill rows it leaves empty and count the same way."""
    chosen: tuple[str, ...] = tuple(names[:1])
    for name in names[1:]:
        one, other = _column_of(chosen, columns), columns[name]
        together = _column_of((*chosen, name), columns)
        if len(other.rows) > 1 and not _moves(other):  # constant: the last batch of every validation
            continue
        if _are_whole(one.values) != _are_whole(other.values):  # "time for 1 epoch: 29.4 s"
            continue
        if not np.intersect1d(one.rows, other.rows).size and _falls(together) <= _falls(one) + _falls(other):
            chosen = (*chosen, name)
    return chosen


def _falls(column: Column) -> int:
    return int((np.diff(column.values) < 0).sum())


def _column_of(names: Sequence[str], columns: Mapping[str, Column]) -> Column:
    if len(names) == 1:
        found = columns[names[0]]
    else:
        rows = np.concatenate([columns[name].rows for name in names])
        values = np.concatenate([columns[name].values for name in names])
        order = np.argsort(rows, kind="stable")
        found = Column(rows[order], values[order])
    usable = np.isfinite(found.values) & (np.abs(found.values) < STEP_LIMIT)
    return found if usable.all() else Column(found.rows[usable], found.values[usable])


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


def _filled(column: Column, rows: int) -> NDArray[np.float64]:
    """A value for every row: the last one given, or the first one before that."""
    places = np.searchsorted(column.rows, np.arange(rows), side="right") - 1
    return column.values[np.maximum(places, 0)] if len(column.values) else np.zeros(rows)


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


def _whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(np.clip(values, -1, STEP_LIMIT)).astype(np.int64)


def _by_count(
    count: Column, names: tuple[str, ...], columns: Mapping[str, Column], epoch_names: tuple[str, ...], rows: int
) -> Time:
    """Steps as they are counted; if the count starts over in every epoch, the epochs are joined end to end."""
    blocks = _of_blocks(count, columns, rows)
    steps = _filled(count, rows) if blocks is None else blocks
    epochs = _epochs_of(_column_of(epoch_names, columns), count, rows) if epoch_names else None
    totals = columns.get(f"{names[0]}{TOTAL}")
    last = float(totals.values[-1]) if totals is not None and len(totals.values) else 0.0
    total = int(last) if 0 < last < STEP_LIMIT else 0
    if epochs is not None:
        borders = _at_borders(count, epochs)
    else:
        borders = float(_starts_over(count) and not is_trained_anew(columns, count))
    if not borders:
        return Time("step", _whole(steps), names, {"max_steps": total} if total else {})
    note = f"{names[0]} starts over in every epoch: counting continues"
    if borders < 0.5:  # a count of the whole run falls back only where the run was resumed
        note = f"{names[0]} starts over where the run was resumed: counting continues"
    if epochs is None or borders < 0.5:
        return Time("step", _whole(_unrolled(steps)), names, notes=(note,))
    length = max(total, int(count.values.max()) + int(count.values.min() < 1))
    begun = np.floor(epochs) - np.floor(float(epochs.min()))
    return Time(
        "step",
        _whole(begun * length + steps),
        (*epoch_names, *names),
        {"steps_per_epoch": length},
        (f"{note}, {length} steps per epoch",),
    )


def _epochs_of(epochs: Column, count: Column, rows: int) -> NDArray[np.float64]:
    """The epoch of every row: the one named last, or the next one if an epoch is named after its batches.

    >>> batches = Column(np.array([0, 1, 3, 4]), np.array([1.0, 2.0, 1.0, 2.0]))
    >>> _epochs_of(Column(np.array([2, 5]), np.array([1.0, 2.0])), batches, 6).tolist()
    [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    """
    falls = np.flatnonzero(np.diff(count.values) < 0)
    if not len(falls) or not len(epochs.rows):
        return _filled(epochs, rows)
    if not count.rows[falls[0]] < epochs.rows[0] < count.rows[falls[0] + 1]:
        return _filled(epochs, rows)
    goes_on = count.rows[-1] > epochs.rows[-1]  # the last epoch was not finished
    named = np.append(epochs.values, epochs.values[-1] + goes_on)
    return named[np.searchsorted(epochs.rows, np.arange(rows), side="left")]


def _unrolled(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """A count that starts over, continued.

    >>> _unrolled(np.array([0.0, 1.0, 0.0, 1.0])).tolist(), _unrolled(np.array([50.0, 100.0, 50.0])).tolist()
    ([0.0, 1.0, 2.0, 3.0], [50.0, 100.0, 150.0])
    """
    falls = np.diff(steps) < 0
    lifts = np.where(falls, steps[:-1] + (steps[1:] < 1), 0.0)
    lifted: NDArray[np.float64] = steps + np.concatenate([[0.0], np.cumsum(lifts)])
    return lifted


def _by_epoch(columns: Mapping[str, Column], names: tuple[str, ...], rows: int) -> Time:
    """The step of every row from epochs: these are the steps if each has one value; otherwise rows are counted."""
    column = _column_of(names, columns)
    epochs = _filled(column, rows)
    whole = bool(np.array_equal(column.values, np.floor(column.values)))
    if len(column.values) == 0:
        return Time("row", _row_steps(columns, rows), names)
    again = begun_again(epochs)
    if again and goes_on(columns, beginnings(epochs)):
        epochs, again = _unrolled(epochs), 0
    distinct = max(1, len(np.unique(epochs))) + again
    sizes = {name: len(found.rows) for name, found in columns.items() if name not in names}
    measured = {name: size for name, size in sizes.items() if is_measure(name)}
    most = max((measured or sizes).values(), default=0)
    if whole and (most <= 1.5 * distinct or _is_told_by_each_process(columns, column)):
        return Time("epoch", _whole(epochs), names)
    steps = _row_steps(columns, rows)
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


def _row_steps(columns: Mapping[str, Column], rows: int) -> NDArray[np.int64]:
    """Count the rows of the most frequent measure; other rows belong to the one before."""
    measures = [found for name, found in columns.items() if is_measure(name)] or [*columns.values()]
    fullest = max(measures, key=lambda found: len(found.rows), default=None)
    if fullest is None or len(fullest.rows) == rows:
        return np.arange(rows)
    counted = fullest.rows
    for other in measures:  # measures written before or after it
        if len(other.rows) >= EVENLY and len(np.unique(np.searchsorted(counted, other.rows))) * 2 < len(other.rows):
            counted = np.union1d(counted, other.rows)
    return np.maximum(np.searchsorted(counted, np.arange(rows), side="right") - 1, 0).astype(np.int64)
