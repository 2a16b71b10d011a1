"""A run that was read: what its file says about it, and its records, which can be read repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchdoctor.records import SCHEMA, Record
from torchdoctor.stretch import Stretch

Piece = Record | Stretch


@dataclass(frozen=True)
class Run:
    """A finished or growing run. Iterating reads the file again, piece by piece: memory stays bounded."""

    path: Path
    header: Mapping[str, Any]
    """The header of the latest session; empty if the file has none."""
    step: int
    """The last training step, -1 if there is none."""
    skipped: int = 0
    """Lines without a usable record."""
    first_skipped: int | None = None
    """The number of the first such line, counted from 1."""
    torn: bool = False
    """Whether the last line is cut off: the writer was killed, or is still writing."""
    unit: str = "line"
    """What the file consists of: lines, or records."""
    sessions: int = 1
    """How many times the run was started with this file."""
    remarks: tuple[str, ...] = ()
    """Other notes for the reader: columns that were guessed, steps that came twice."""
    open: Callable[[], Iterator[Piece]] = field(default=lambda: iter(()), repr=False)
    """Begins to read the content of the file, in order."""

    @property
    def pieces(self) -> Iterator[Piece]:
        """Records and stretches of records in order, checked, with numbers restored: the input of an examination."""
        return self.open()

    @property
    def records(self) -> Iterator[Record]:
        """The records in order, one by one."""
        for piece in self.open():
            if isinstance(piece, Stretch):
                yield from piece.records()
            else:
                yield piece

    def __iter__(self) -> Iterator[Record]:
        return self.records

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader about the file itself."""
        name = self.path.name
        found = list(self.remarks)
        if self.skipped:
            lines = f"{self.unit} is" if self.skipped == 1 else f"{self.unit}s are"
            found.append(
                f"{self.skipped} unreadable {lines} left out of {name}; the first is {self.unit} {self.first_skipped}"
            )
        schema = self.header.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            found.append(
                f"{name} was written by a later version (schema {schema}, known is {SCHEMA}): update torchdoctor"
            )
        if self.torn:
            found.append(f"the last {self.unit} of {name} is cut off: the run was killed or is still running")
        return tuple(found)
