"""A table that is being read: rows go in, columns of numbers come out.

>>> table = Table()
>>> table.add({"epoch": 0.0, "loss": 2.0})
>>> table.add({"epoch": 1.0, "loss": 1.0, "val_loss": 1.5})
>>> logged = table.logged(Path("a.jsonl"), "JSON Lines")
>>> logged.clock, {name: points.values.tolist() for name, points in logged.points.items()}
('epoch', {'loss': [2.0, 1.0], 'val_loss': [1.5]})
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources import plain_yaml
from torchdoctor.sources.clock import tell_time
from torchdoctor.sources.columns import Column
from torchdoctor.sources.count_names import TOTAL
from torchdoctor.sources.emptied import filled_up
from torchdoctor.sources.logged import NAME_LENGTH, NAMES_LIMIT, Logged, Points, Wish
from torchdoctor.sources.opening import BROKEN, TOO_MUCH, TORN, ZEROS, lines
from torchdoctor.sources.words import is_measure, taken_apart

VALUES_LIMIT = 30_000_000
"""Most numbers kept from one file."""
DEPTH = 6
"""Levels of nesting whose names are joined."""


class Table:
    """Rows that have arrived, stored by column."""

    def __init__(self) -> None:
        self.rows = 0
        self.skipped = 0
        self.first_skipped: int | None = None
        self.torn = False
        self.notes: list[str] = []
        self.blank: Sequence[int] = []
        """Rows whose cells may be empty: all rows of a grid of cells, or those with null."""
        self.words: dict[str, dict[str, int]] = {}
        """The numbers that stand for words in columns that tell runs apart."""
        self.emptied = False
        """Whether NaN at its end stands for cells that were empty."""
        self._columns: dict[str, tuple[array[int], array[float]]] = {}
        self._left = VALUES_LIMIT
        self._refused = False

    def whole(self, path: Path) -> Iterator[tuple[int, str]]:
        """The lines of a file; too long ones are skipped, and an incomplete end is noted."""
        for line, text in lines(path):
            if not text.startswith("\0"):
                yield line, text
            elif text == TORN:
                self.torn = True
                self.notes.append(f"{path.name} is compressed and cut off: only the readable part was read")
            elif text == BROKEN:
                self.notes.append(
                    f"{path.name} is compressed and damaged: its checksum does not match or it cannot be unpacked to "
                    "its end, so what was read may hold wrong numbers"
                )
            elif text.startswith(ZEROS):
                first = text.removeprefix(ZEROS)
                self.notes.append(f"{path.name} holds zero bytes, the first in line {first}: data may be missing there")
            elif text == TOO_MUCH:
                self.notes.append(f"{path.name} is too long: only its first part was read")
            else:
                self.skip(line)

    def skip(self, line: int) -> None:
        """Count a line that could not be read."""
        self.skipped += 1
        if self.first_skipped is None:
            self.first_skipped = line

    def empty(self) -> Table:
        """A table without rows, with the same notes and counts of unreadable lines."""
        other = Table()
        other.skipped, other.first_skipped, other.torn = self.skipped, self.first_skipped, self.torn
        other.notes, other.words = list(self.notes), self.words
        return other

    def coded(self, name: str, cells: Sequence[str]) -> NDArray[np.float64]:
        """Numbers that stand for the words in a column: the first word is 0, the next new one 1."""
        known = self.words.setdefault(name, {})
        return np.array([known.setdefault(cell[:NAME_LENGTH], len(known)) for cell in cells], dtype=np.float64)

    def tear(self) -> None:
        """The line skipped last is cut off at the end of the file: it is incomplete, not damaged."""
        self.torn = True
        self.recant()

    def recant(self) -> None:
        """Undo the last skip: the line could be read after all."""
        self.skipped -= 1
        self.first_skipped = self.first_skipped if self.skipped else None

    def add(self, row: Mapping[str, float]) -> None:
        """Add one row of values by name."""
        for name, value in row.items():
            column = self._column(name)
            if column is not None and self._left > 0:
                self._left -= 1
                column[0].append(self.rows)
                column[1].append(value)
        self.rows += 1

    def extend(self, name: str, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add many values of one column; `rows` says where they are."""
        column = self._column(name)
        if column is not None and self._left >= len(rows):
            self._left -= len(rows)
            column[0].frombytes(rows.astype(np.int64).tobytes())
            column[1].frombytes(values.astype(np.float64).tobytes())

    def keep(self, wanted: Callable[[str, int, int], bool]) -> None:
        """Drop unwanted columns, by name, number of values, and the largest number that any column has."""
        most = max((len(rows) for rows, _ in self._columns.values()), default=0)
        self._columns = {name: found for name, found in self._columns.items() if wanted(name, len(found[0]), most)}

    def _column(self, name: str) -> tuple[array[int], array[float]] | None:
        column = self._columns.get(name)
        if column is None:
            if len(self._columns) >= NAMES_LIMIT or len(name) > NAME_LENGTH:
                self._refused = True
                return None
            column = self._columns[name] = (array("q"), array("d"))
        return column

    def logged(
        self,
        path: Path,
        form: str,
        wish: Wish | None = None,
        config: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> Logged:
        """The run in these rows; `name` if the file holds several."""
        columns, note = filled_up(self.columns(), self.blank)
        self.notes += [note] if note else []
        logged = self._logged(path, name or path.name, form, wish, columns, config)
        return replace(logged, context={**logged.context, "emptied": True}) if note or self.emptied else logged

    def split(self, path: Path, form: str, wish: Wish | None, exported: re.Pattern[str]) -> list[Logged]:
        """The runs in these rows, if columns are named by run and value (`exported` separates these)."""
        columns = self.columns()
        apart = {name: found for name in columns if (found := exported.match(name))}
        runs = list(dict.fromkeys(found["run"] for found in apart.values()))
        if len(apart) < len(columns) - 2 or not runs:
            return [self.logged(path, form, wish)]
        shared = {name: column for name, column in columns.items() if name not in apart}
        logged = []
        for run in runs:
            own = {match["name"]: columns[name] for name, match in apart.items() if match["run"] == run}
            own = {name: column for name, column in own.items() if not name.endswith(("__MIN", "__MAX"))}
            logged.append(self._logged(path, run, form, wish, {**shared, **own}))
        return logged

    def cut(self, borders: Sequence[int]) -> list[Table]:
        """Tables of the rows between the borders; this table if there are none."""
        return self.parted(np.searchsorted(borders, np.arange(self.rows), side="right")) if borders else [self]

    def parted(self, groups: NDArray[np.int64]) -> list[Table]:
        """A table for each group of rows; `groups` gives the number of each row's group."""
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], np.arange(int(groups.max(initial=0)) + 2))
        places = np.empty(self.rows, dtype=np.int64)
        places[order] = np.arange(self.rows)
        parts = [self.empty() for _ in starts[1:]]
        for name, column in self.columns().items():
            at = places[column.rows]
            by = np.argsort(at, kind="stable")
            ends = np.searchsorted(at[by], starts)
            for part, first, start, end in zip(parts, starts, ends, ends[1:], strict=False):
                if end > start:
                    part.extend(name, at[by[start:end]] - first, column.values[by[start:end]])
        blank = places[np.array(self.blank, dtype=np.int64)]
        for part, first, end in zip(parts, starts, starts[1:], strict=False):
            part.rows = int(end - first)
            part.blank = np.sort(blank[(blank >= first) & (blank < end)] - first).tolist()
        return parts

    def columns(self) -> dict[str, Column]:
        """The columns with at least one number."""
        return {
            name: Column(np.frombuffer(rows, dtype=np.int64), np.frombuffer(values, dtype=np.float64))
            for name, (rows, values) in self._columns.items()
            if len(rows)
        }

    def _logged(
        self,
        path: Path,
        name: str,
        form: str,
        wish: Wish | None,
        columns: Mapping[str, Column],
        config: Mapping[str, Any] | None = None,
    ) -> Logged:
        time = tell_time(columns, self.rows, wish.mapping.get("step") if wish is not None else None)
        points = {
            key: Points(time.steps[column.rows], column.values)
            for key, column in columns.items()
            if key not in time.columns and not key.endswith(TOTAL)
        }
        clock, notes = time.clock, [*self.notes, *time.notes]
        if clock == "row" and _evaluated_in_every_row(points):
            clock, notes = "epoch", [*self.notes, "no column counts: rows are epochs, because each has a validation"]
        if self._left <= 0:
            notes.append(f"{path.name} holds more than {VALUES_LIMIT:,} numbers: the rest was not read")
        if self._refused:
            notes.append(f"names beyond the first {NAMES_LIMIT:,} or longer than {NAME_LENGTH} characters are left out")
        return Logged(
            path=path,
            name=name,
            format=form,
            points=points,
            config=config or plain_yaml.beside(path.parent),
            context=time.context,
            clock=clock,
            notes=tuple(notes),
            skipped=self.skipped,
            first_skipped=self.first_skipped,
            torn=self.torn,
        )


def _evaluated_in_every_row(points: Mapping[str, Points]) -> bool:
    """Whether training and validation values were always written together, as at the end of an epoch."""
    trained, evaluated = 0, 0
    for name, series in points.items():
        part = taken_apart(name, 0)
        if is_measure(name):
            trained = max(trained, len(series) if part.split in ("", "train") else 0)
            evaluated = max(evaluated, len(series) if part.split in ("val", "test") else 0)
    return 1 < trained == evaluated


def flat(value: Any, name: str = "", depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts by their joined names.

    >>> dict(flat({"step": 3, "train": {"loss": 0.5, "note": "x"}}))
    {'step': 3, 'train/loss': 0.5, 'train/note': 'x'}
    """
    if isinstance(value, dict):
        if depth > 0:
            for key, inner in value.items():
                yield from flat(inner, f"{name}/{key}" if name else str(key), depth - 1)
    else:
        yield name, value
