"""Several runs in one table: those of a column or a printed heading (folds, seeds, trials), or one after another.

>>> table = Table()
>>> for fold in (1.0, 2.0):
...     for epoch in range(4):
...         table.add({"fold": fold, "epoch": float(epoch), "loss": 2.0 / (1 + epoch)})
>>> [(name, part.rows) for name, part in runs_of(table)]
[('fold 1', 4), ('fold 2', 4)]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.anew import goes_on, loss_of
from torchdoctor.sources.clock import tell_time
from torchdoctor.sources.columns import Column
from torchdoctor.sources.phases import RUNS, is_run
from torchdoctor.sources.stages import stages
from torchdoctor.sources.table import Table
from torchdoctor.sources.words import REWARD, is_measure, taken_apart, words_of

MOST, MOST_UNNAMED = 1000, 20
"""Most runs of one table, and if no column names them: of a longer row of attempts the last is judged."""
FEW = 3
"""Average values of a measure per run that a table needs, and the fewest of an unnamed run."""
WHOLE = 0.5
"""Share of the longest unnamed run that another must have; a shorter one was broken off, and the next replaces it."""
EARLY = 0.25
"""Share of the first run's steps within which the other runs must begin: a resumed run begins later."""
ANEW = "the count starts over in this log: each part is judged as a run of its own"


def runs_of(table: Table, kept: Collection[str] = (), *, printed: bool = False) -> list[tuple[str, Table]]:
    """The runs in a table with their names, without the columns that name them, except those in `kept`.

    The name is empty if there is only one run. A printed log is also cut into its stages.
    """
    named = _named(table, [name for name in table.columns() if is_run(name) and name not in kept])
    table.keep(lambda name, *_: name not in table.words)
    found = []
    for name, part in named or [("", table)]:
        parts = [piece for each in _one_after_another(part) for piece in (stages(each) if printed else [each])]
        words = [f"part {place} of {len(parts)}" for place in range(1, len(parts) + 1)] if len(parts) > 1 else [""]
        found += [(", ".join(filter(None, (name, word))), piece) for word, piece in zip(words, parts, strict=True)]
    return found


def _named(table: Table, names: Iterable[str]) -> list[tuple[str, Table]]:
    """The runs that columns name, each a block of rows, or mixed; empty if these columns do not tell runs apart."""
    columns = table.columns()
    measure = _main(columns)
    names = [name for name in names if 1 < len(np.unique(columns[name].values)) <= MOST]
    if measure is None or not names:
        return []
    keys = np.stack([_filled(columns[name], measure, table.rows) for name in names])
    values, groups = np.unique(keys, axis=1, return_inverse=True)
    groups = groups.reshape(-1)
    changed = np.concatenate([[False], np.diff(groups) != 0])
    blocks = np.cumsum(changed)
    for numbers in (blocks, groups) if blocks[-1] < MOST else (groups,):
        own = [int(groups[row]) for row in np.unique(numbers, return_index=True)[1]]
        parts = [(place, part) for place, part in zip(own, table.parted(numbers), strict=True) if _main(part.columns())]
        if _begin_anew([part for _, part in parts]):
            called = [_called(table, names, values[:, place]) for place, _ in parts]
            for _, part in parts:
                part.keep(lambda name, *_: name not in names)
            return [*zip(_once(called), (part for _, part in parts), strict=True)]
    return []


def _main(columns: Mapping[str, Column]) -> Column | None:
    """The loss, or the measure that is given most often."""
    measures = [found for name, found in columns.items() if is_measure(name) or taken_apart(name, 0).has(REWARD)]
    return loss_of(columns) or max(measures, key=lambda found: len(found.rows), default=None)


def _filled(column: Column, measure: Column, rows: int) -> NDArray[np.float64]:
    """The run of every row: the one named last, or the next one if runs are named at their ends."""
    at_the_end = measure.rows[0] < column.rows[0] and measure.rows[-1] < column.rows[-1]
    if at_the_end:
        places = np.searchsorted(column.rows, np.arange(rows), side="left")
    else:
        places = np.searchsorted(column.rows, np.arange(rows), side="right") - 1
    filled: NDArray[np.float64] = column.values[np.clip(places, 0, len(column.values) - 1)]
    return filled


def _begin_anew(parts: Sequence[Table]) -> bool:
    """Whether there are several parts, long enough, which count from about the same step on."""
    sizes = [len(found.rows) for part in parts if (found := _main(part.columns())) is not None]
    if len(sizes) < 2 or sum(sizes) < FEW * len(sizes):
        return False
    steps = [tell_time(part.columns(), part.rows).steps for part in parts]
    latest = steps[0].min() + EARLY * (steps[0].max() - steps[0].min())
    return all(part.min() <= latest for part in steps[1:])


def _called(table: Table, names: Sequence[str], values: Iterable[float]) -> str:
    """The name of a run: "fold 2", "seed 42, fold 0", "run baseline"."""
    return ", ".join(
        f"{next(word for word in words_of(name) if word in RUNS)} {_text(table.words.get(name, {}), value)}"
        for name, value in zip(names, values, strict=True)
    )


def _text(words: Mapping[str, int], value: float) -> str:
    return next((word for word, code in words.items() if code == value), f"{value:.15g}")


def _once(names: Iterable[str]) -> Iterator[str]:
    """Names, with a number if they are repeated.

    >>> [*_once(["fold 0", "fold 1", "fold 0"])]
    ['fold 0', 'fold 1', 'fold 0 (2)']
    """
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def _one_after_another(table: Table) -> list[Table]:
    """The table, cut where its steps go back to their beginning and the loss begins anew as well.

    >>> table = Table()
    >>> for step in [0, 10, 20, 30] * 2:
    ...     table.add({"step": float(step), "loss": 3.0 / (1 + step)})
    >>> [part.rows for part in _one_after_another(table)]
    [4, 4]
    """
    columns = table.columns()
    loss = loss_of(columns)
    if loss is None:
        return [table]
    steps = tell_time(columns, table.rows).steps
    begun = np.flatnonzero((np.diff(steps) < 0) & (steps[1:] <= steps[0])) + 1
    if not 0 < len(begun) < MOST_UNNAMED:
        return [table]
    places = np.searchsorted(loss.rows, begun)
    sizes = np.diff([0, *places, len(loss.rows)])
    borders = [
        int(border)
        for place, border in enumerate(begun)
        if sizes[place] >= max(FEW, WHOLE * sizes.max())
        and sizes[place + 1] >= FEW
        and not _goes_on(loss, places, place)
    ]
    if borders:
        table.notes.append(ANEW)
    return table.cut(borders)


def _goes_on(loss: Column, places: NDArray[np.int64], place: int) -> bool:
    """Whether the loss goes on behind a border."""
    start, end = ([0, *places, len(loss.rows)][at] for at in (place, place + 2))
    part = Column(np.arange(end - start), loss.values[start:end])
    return goes_on({"loss": part}, places[place : place + 1] - start)
