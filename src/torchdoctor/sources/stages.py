"""Parts of a printed log that are separate runs: pretraining, then fine-tuning, each with its own loss name.

>>> table = Table()
>>> for epoch in range(1, 9):
...     table.add({"epoch": float(epoch), "loss": 7.0})
>>> for epoch in range(1, 9):
...     table.add({"epoch": float(epoch), "train loss": 1.0 / epoch})
>>> [part.rows for part in stages(table)]
[8, 8]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from torchdoctor.sources.columns import Column
from torchdoctor.sources.count_names import counts
from torchdoctor.sources.table import Table
from torchdoctor.sources.words import is_measure, taken_apart

FEWEST = 8
"""Fewest values of a loss that make a stage."""


def stages(table: Table) -> list[Table]:
    """The table, cut where one loss ends, another begins, and the count starts over."""
    return table.cut([*_borders(table.columns())])


def _borders(columns: Mapping[str, Column]) -> Iterator[int]:
    losses = sorted((found for name, found in columns.items() if _is_trained(name, found)), key=_first)
    counted = max((found for name, found in columns.items() if counts(name)), key=_size, default=None)
    end = -1
    for earlier, later in zip(losses, losses[1:], strict=False):
        end = max(end, int(earlier.rows[-1]))
        if counted is None or _first(later) <= end:
            continue
        border = _begins_anew(counted, end, _first(later))
        if border is not None and not any(_lasts(name, found, border) for name, found in columns.items()):
            yield border


def _size(column: Column) -> int:
    return len(column.rows)


def _first(column: Column) -> int:
    return int(column.rows[0])


def _is_trained(name: str, column: Column) -> bool:
    part = taken_apart(name, 0)
    return _size(column) >= FEWEST and part.is_loss and part.split in ("", "train")


def _begins_anew(count: Column, end: int, start: int) -> int | None:
    """The row of the first count after a loss has ended, if it is lower than the count before."""
    place = int(np.searchsorted(count.rows, end, side="right"))
    if not 0 < place < len(count.rows) or count.rows[place] > start:
        return None
    return int(count.rows[place]) if count.values[place] < count.values[place - 1] else None


def _lasts(name: str, column: Column, border: int) -> bool:
    """Whether a measure is given before and after: then it is one run that printed other values later."""
    return is_measure(name) and bool(column.rows[0] < border <= column.rows[-1])
