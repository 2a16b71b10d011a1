"""Measures that are empty up to the end of a table while its rows go on: NaN, as pandas, orjson and others write it.

>>> steps, rows = Column(np.arange(9), np.arange(9.0)), np.arange(5)
>>> filled, note = filled_up({"step": steps, "loss": Column(rows, 5.0 - rows)}, range(9))
>>> filled["loss"].values.tolist()
[5.0, 4.0, 3.0, 2.0, 1.0, nan, nan, nan, nan]
>>> note
'loss is empty in the last 4 rows, but step goes on: read as NaN'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchdoctor.records import names_text
from torchdoctor.sources.columns import Column, union
from torchdoctor.sources.count_names import counts
from torchdoctor.sources.words import is_measure

FEWEST = 3
"""Rows without a measure at the end, after as many with one, that are no accident."""
USUAL = 0.9
"""Share of the rows with measures in which another column must be filled to go with them."""


def filled_up(columns: Mapping[str, Column], blank: Sequence[int]) -> tuple[dict[str, Column], str]:
    """The columns with NaN where all measures are empty to the end, and a note on it; `blank` may be such rows.

    Many tables are sparse, or padded with empty rows. Nothing is missing if measures were left out for half as long
    before, if no count goes on, or if a column is filled that did not go with the measures.
    """
    measures = {name: column for name, column in columns.items() if is_measure(name)}
    if not measures or not len(blank):
        return dict(columns), ""
    rows = union([column.rows for column in measures.values()])
    late = np.arange(rows[-1] + 1, blank.stop) if isinstance(blank, range) else np.array(blank)
    late = late[late > rows[-1]]
    gap = int(np.diff(rows, prepend=-1).max()) - 1
    if min(len(rows), len(late)) < FEWEST or len(late) <= 2 * gap:
        return dict(columns), ""
    others = {name: column for name, column in columns.items() if name not in measures and column.rows[-1] > rows[-1]}
    if not all(np.isin(rows, column.rows).mean() >= USUAL for column in others.values()):
        return dict(columns), ""
    going = [name for name, column in others.items() if _goes_on(name, column, int(rows[-1]))]
    going.sort(key=counts, reverse=True)
    late = late[np.isin(late, others[going[0]].rows)] if going else late[:0]
    if len(late) < FEWEST:
        return dict(columns), ""
    often = {name: column for name, column in measures.items() if 2 * len(column.rows) > len(rows)}
    verb = "are" if len(often) > 1 else "is"
    note = f"{names_text([*often])} {verb} empty in the last {len(late)} rows, but {going[0]} goes on: read as NaN"
    return {**columns, **{name: _lengthened(column, late) for name, column in often.items()}}, note


def _goes_on(name: str, column: Column, last: int) -> bool:
    """Whether a column rises after a row, or counts something."""
    values, before = column.values[column.rows > last], column.values[column.rows <= last]
    if counts(name):
        return len(np.unique(values)) >= FEWEST
    return bool((values[1:] > values[:-1]).all()) and float(values[0]) > float(before.max())


def _lengthened(column: Column, late: NDArray[np.int64]) -> Column:
    return Column(np.concatenate([column.rows, late]), np.concatenate([column.values, np.full(len(late), np.nan)]))
