"""A stretch of a run: many training steps that measured the same vitals, as columns.

What a million records would cost as dicts, a few arrays do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.records import Record


@dataclass(frozen=True)
class Stretch:
    """Steps in ascending order, and each vital's value at all of them; a value may be non-finite, none is missing.

    >>> stretch = Stretch(np.array([4, 5]), {"loss": np.array([2.5, 2.0])})
    >>> list(stretch.records())[1]
    {'type': 'vitals', 'step': 5, 'vitals': {'loss': 2.0}}
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Stretch:
        """The stretch that records of the same vitals make."""
        steps = np.array([record["step"] for record in records], dtype=np.int64)
        names = records[0]["vitals"]
        columns = {name: np.array([record["vitals"][name] for record in records], dtype=np.float64) for name in names}
        return cls(steps, columns)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, part: slice) -> Stretch:
        return Stretch(self.steps[part], {name: values[part] for name, values in self.columns.items()})

    def record(self, position: int) -> Record:
        """One of the steps as a record of its own."""
        vitals = {name: float(values[position]) for name, values in self.columns.items()}
        return {"type": "vitals", "step": int(self.steps[position]), "vitals": vitals}

    def records(self) -> Iterator[Record]:
        """Each step as a record of its own."""
        names = tuple(self.columns)
        rows = zip(*(values.tolist() for values in self.columns.values()), strict=True)
        for step, row in zip(self.steps.tolist(), rows, strict=True):
            yield {"type": "vitals", "step": step, "vitals": dict(zip(names, row, strict=True))}
