"""The content of a foreign log before its names are understood: what every format's module returns.

>>> logged = Logged(Path("a.csv"), "a", "csv", {"train_loss": Points.of([0, 10], [2.5, 2.0])})
>>> logged.points["train_loss"].steps.tolist()
[0, 10]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchdoctor.errors import SourceError

Clock = Literal["step", "epoch", "row"]

NAMES_LIMIT = 10_000
"""Most names in one log; the rest is left out, and a note says so."""
NAME_LENGTH = 256
STEP_LIMIT = 10**12


class NoLogError(SourceError):
    """A table of something else, without any of the values that a run is judged by."""


@dataclass(frozen=True)
class Points:
    """One series as it was written: steps may repeat, or go back where a run was resumed; NaN is a value."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, steps: Iterable[int], values: Iterable[float]) -> Points:
        """From plain numbers."""
        return cls(np.array(list(steps), dtype=np.int64), np.array(list(values), dtype=np.float64))

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class Logged:
    """One run of a log."""

    path: Path
    """The file or folder that it was read from."""
    name: str
    """A name that distinguishes it from other runs of the same place; the file name if there is one."""
    format: str
    """The kind of log, in words for a report: "CSV", "TensorBoard", ..."""
    points: Mapping[str, Points]
    """The series by the names under which they were logged, each in the order of the file."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters, flat, as given in the log itself."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Other known facts: ``steps_per_epoch``, ``max_steps``, ``batch_size``, ``epochs``."""
    clock: Clock = "step"
    """What the steps count."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: what was guessed or left out."""
    skipped: int = 0
    """Lines or records that could not be read."""
    first_skipped: int | None = None
    """The number of the first unreadable line or record, counted from 1."""
    torn: bool = False
    """Whether the last line or record is cut off: the writer was killed, or is still writing."""
    unit: str = "line"
    """What is counted: lines or records."""


@dataclass(frozen=True)
class Wish:
    """What the user says about a log."""

    mapping: Mapping[str, str] = field(default_factory=dict)
    """Our name of a vital → the name in the log."""
    pattern: str | None = None
    """A regular expression for lines of text, with named groups."""
