"""A stretch of a run: many training steps with the same vitals, stored as columns.

A few arrays need far less time and memory than a million dicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.records import Record

WORTHWHILE = 3
"""Number of records from which a stretch is cheaper."""


@dataclass(frozen=True)
class Stretch:
    """Steps in ascending order with the values of each vital; values may be non-finite, but none is missing.

    >>> stretch = Stretch(np.array([4, 5]), {"loss": np.array([2.5, 2.0])})
    >>> list(stretch.records())[1]
    {'type': 'vitals', 'step': 5, 'vitals': {'loss': 2.0}}
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]
    finite: bool = False
    """Whether all values are known to be finite."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> Stretch:
        """A stretch of records that have the same vitals."""
        steps = np.array([record["step"] for record in records], dtype=np.int64)
        names = records[0]["vitals"]
        columns = {name: np.array([record["vitals"][name] for record in records], dtype=np.float64) for name in names}
        return cls(steps, columns)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, part: slice) -> Stretch:
        return Stretch(self.steps[part], {name: values[part] for name, values in self.columns.items()}, self.finite)

    def record(self, position: int) -> Record:
        """One step as a record."""
        vitals = {name: float(values[position]) for name, values in self.columns.items()}
        return {"type": "vitals", "step": int(self.steps[position]), "vitals": vitals}

    def records(self) -> Iterator[Record]:
        """Each step as a record."""
        names = tuple(self.columns)
        rows = zip(*(values.tolist() for values in self.columns.values()), strict=True)
        for step, row in zip(self.steps.tolist(), rows, strict=True):
            yield {"type": "vitals", "step": step, "vitals": dict(zip(names, row, strict=True))}


class Rows:
    """Collects records in order; vitals with finite numbers only become stretches.

    >>> rows = Rows()
    >>> rows.extend(4, {"loss": [2.5, 2.0]})
    >>> rows.add([{"type": "vitals", "step": 6, "vitals": {"loss": 1.5}}, {"type": "note", "step": 6, "text": ""}])
    >>> [len(piece) if isinstance(piece, Stretch) else piece["type"] for piece in rows.taken()]
    [3, 'note']
    """

    def __init__(self) -> None:
        self._pieces: list[Record | Stretch] = []
        self._steps: list[int] = []
        self._columns: dict[str, list[float]] = {}

    def extend(self, step: int, columns: Mapping[str, list[float]]) -> None:
        """Add consecutive steps that start at `step`, with finite values only."""
        size = len(next(iter(columns.values())))
        if self._steps and list(self._columns) == list(columns):
            for name, values in columns.items():
                self._columns[name] += values
        else:
            self._close()
            self._columns = dict(columns)
        self._steps += range(step, step + size)

    def add(self, records: Iterable[Record]) -> None:
        """Add decoded records."""
        for record in records:
            vitals = record.get("vitals")
            if record["type"] != "vitals" or not vitals or not all(map(math.isfinite, vitals.values())):
                self._close()
                self._pieces.append(record)
            else:
                self.extend(record["step"], {name: [value] for name, value in vitals.items()})

    def taken(self) -> list[Record | Stretch]:
        """Return what was collected, and start anew."""
        self._close()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _close(self) -> None:
        if not self._steps:
            return
        columns = {name: np.array(values, dtype=np.float64) for name, values in self._columns.items()}
        stretch = Stretch(np.array(self._steps, dtype=np.int64), columns, finite=True)
        self._pieces += [stretch] if len(stretch) >= WORTHWHILE else stretch.records()
        self._steps, self._columns = [], {}
