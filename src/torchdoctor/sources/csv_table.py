"""Tables in text: cells separated by comma, semicolon, tab, bar or spaces; names in the first row.

Lightning's metrics.csv, Keras' CSVLogger, Ultralytics' results.csv with padded names, tables copied from a notebook or
a model card, and tables written by hand. `table_shape.py` finds out how a table is laid out; here its rows
become columns of numbers.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from torchdoctor.errors import SourceError
from torchdoctor.records import names_text
from torchdoctor.sources.cells import column, number
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.opening import ends_cleanly
from torchdoctor.sources.phases import is_phase_column, is_run, named_in_phase
from torchdoctor.sources.several import runs_of
from torchdoctor.sources.table import Table
from torchdoctor.sources.table_rows import PLAIN, rows_among, split
from torchdoctor.sources.table_shape import Shape, are_plain, bare_name, is_header, plain_names, shape_of
from torchdoctor.sources.tidy import Tidy, layout
from torchdoctor.sources.words import SPLITS, is_measure

CHUNK = 20_000
"""Rows converted to numbers at once."""
MONITOR = ("r", "l", "t")
"""Names that the monitor of gym and Stable-Baselines uses for reward, length and time of an episode."""
_EXPORTED = re.compile(r"(?P<run>.+?) - (?P<name>.+)\Z")
_TAGGED = re.compile(r"tag-(?P<tag>.+?)(?:\.csv.*)?\Z")


def recognises(path: Path) -> bool:
    """Whether the file begins with a row of names above rows of numbers."""
    return shape_of(path) is not None


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The run in a table; several if a web page's export placed them side by side."""
    shape = shape_of(path)
    if shape is None:
        raise SourceError(f"{path} is not a table: it has no row of names above rows of numbers.")
    if shape.across:
        return [_across(path, shape).logged(path, "CSV", wish)]
    table, kept = Table(), _Rows(shape, path)
    twice = [name for name, times in Counter(shape.names).items() if name and times > 1]
    if twice:
        table.notes.append(f"several columns are called {names_text(twice)}: the first of them is used")
    for line, text in _rows(path, shape, table):
        kept.add(line, text, table)
    kept.flush(table)
    if kept.ragged and not ends_cleanly(path):
        table.tear()
    table.blank = range(table.rows)
    tidied = kept.tidy.tables(table) if kept.tidy is not None else {}
    if tidied:
        return [each.logged(path, "CSV", wish, name=run) for run, each in tidied.items()]
    parts = runs_of(table, wish.mapping.values() if wish is not None else ())
    if len(parts) > 1:
        return [part.logged(path, "CSV", wish, name=name) for name, part in parts]
    return table.split(path, "CSV", wish, _EXPORTED)


class _Rows:
    """Rows waiting to be converted to columns."""

    def __init__(self, shape: Shape, path: Path) -> None:
        self.delimiter, self.comma, self.tag, self.stem = shape.delimiter, shape.comma, tag_of(path), bare_name(path)
        self.ragged = False
        """Whether the last row was too short."""
        self._waiting: list[str | Sequence[str]] = []
        self._words: tuple[Sequence[str], int] = ((), 0)
        """Words that may be names, and how many rows were waiting when they came."""
        found = layout(shape.names)
        self.tidy = Tidy(found) if found is not None else None
        """Set if each row holds a single value and its name."""
        self._name(shape.names)

    def _name(self, names: Sequence[str]) -> None:
        self.header = tuple(names)
        self.names = unique([self._told(name) for name in plain_names(names)])
        if tuple(name.lower() for name in names[:3]) == MONITOR:
            self.names[:3] = ["reward", "length", "elapsed"]
        if (self.tag or is_measure(self.stem)) and {name.lower() for name in names} == {"wall time", "step", "value"}:
            value = self.tag or self.stem  # TensorBoard's download, perhaps under another name
            self.names = [value if name.lower() == "value" else name for name in names]
        self.phase = next((place for place, name in enumerate(names) if is_phase_column(name)), None)

    def _told(self, name: str) -> str:
        """A name; if it only names the split, the file name is added because it says what was measured."""
        return f"{name} {self.stem}" if name.lower() in SPLITS and is_measure(self.stem) else name

    def add(self, line: int, text: str, table: Table) -> None:
        """Add one row."""
        self.ragged = False
        if len(self._waiting) >= CHUNK:
            self.flush(table)
        if self.delimiter in PLAIN and '"' not in text and text.count(self.delimiter) == len(self.header) - 1:
            self._waiting.append(text)
            return
        cells = split(text, self.delimiter)
        if len(cells) == len(self.header) + 1 and not cells[-1]:
            cells = cells[:-1]
        if len(cells) == len(self.header) or self._fits_anew(cells, table):
            self._waiting.append(cells)
            return
        if len(cells) > 1 and is_header(cells):
            if not {*self.header}.isdisjoint(filter(None, cells)):
                self.flush(table)
                self._name(cells)
                return
            self._words = (cells, len(self._waiting))
        table.skip(line)
        self.ragged = len(cells) < len(self.header)

    def _fits_anew(self, cells: Sequence[str], table: Table) -> bool:
        """Whether unknown words in the row above were names, because as many numbers follow."""
        words, place = self._words
        if len(cells) != len(words) or place != len(self._waiting) or not are_plain(cells):
            return False
        table.recant()
        self.flush(table)
        self._name(words)
        return True

    def flush(self, table: Table) -> None:
        """Convert the waiting rows to columns."""
        waiting, self._waiting = self._waiting, []
        if self.phase is None and self.tidy is None and self._all_numbers(waiting, table):
            return
        rows = [split(row, self.delimiter) if isinstance(row, str) else row for row in waiting]
        rows = [cells for cells in rows if tuple(cells) != self.header]
        if not rows:
            return
        if self.tidy is not None:
            for cells in rows:
                self.tidy.add(dict(zip(self.names, cells, strict=True)), self.comma)
            return
        if self.phase is not None:
            self._by_phase(rows, self.phase, table)
            return
        places = np.arange(table.rows, table.rows + len(rows))
        for name, cells in zip(self.names, zip(*rows, strict=True), strict=True):
            if not name.lower().startswith("unnamed") and name:
                values, there, _ = column(cells, self.comma)
                if is_run(name) and (name in table.words or not there.any()):  # "baseline", "resnet"
                    values, there = table.coded(name, cells), np.ones(len(cells), dtype=bool)
                table.extend(name, places[there], values[there])
        table.rows += len(rows)

    def _all_numbers(self, waiting: Sequence[str | Sequence[str]], table: Table) -> bool:
        """Convert the rows at once if they hold only numbers; returns whether they did."""
        texts = [row for row in waiting if isinstance(row, str)]
        if len(texts) < len(waiting) or "" in self.names:
            return False
        try:
            numbers = np.array(self.delimiter.join(texts).split(self.delimiter), dtype=np.float64)
        except ValueError:
            return False
        places = np.arange(table.rows, table.rows + len(texts))
        for name, values in zip(self.names, numbers.reshape(len(texts), -1).T, strict=True):
            table.extend(name, places, values)
        table.rows += len(texts)
        return True

    def _by_phase(self, rows: Sequence[Sequence[str]], phase: int, table: Table) -> None:
        """Rows in which one column says whether they belong to training or validation."""
        for cells in rows:
            found = {}
            for place, (name, cell) in enumerate(zip(self.names, cells, strict=True)):
                value = number(cell, self.comma) if place != phase else None
                if is_run(name) and (name in table.words or value is None):
                    value = float(table.coded(name, [cell])[0])
                if value is not None:
                    found[named_in_phase(name, cells[phase])] = value
            table.add(found)


def unique(names: Sequence[str]) -> list[str]:
    """Names, made unique.

    >>> unique(["loss", "loss"])
    ['loss', 'loss.1']
    """
    found: list[str] = []
    seen: set[str] = set()
    for name in names:
        other, count = name, 0
        while other and other in seen:
            count += 1
            other = f"{name}.{count}"
        seen.add(other)
        found.append(other)
    return found


def tag_of(path: Path) -> str | None:
    """The name of the only value in a file downloaded from TensorBoard's page: it is in the file name."""
    tagged = _TAGGED.search(path.name)
    return tagged["tag"] if tagged else None


def _across(path: Path, shape: Shape) -> Table:
    """A list of losses written as one row; the meaning of a second row is unknown."""
    table = Table()
    for place, (_, text) in enumerate(table.whole(path)):
        if place < len(shape.names):
            values, there, _ = column(split(text, shape.delimiter))
            table.extend(shape.names[place], np.flatnonzero(there), values[there])
            table.rows = max(table.rows, len(values))
    return table


def _rows(path: Path, shape: Shape, table: Table) -> Iterator[tuple[int, str]]:
    """The rows under the names."""
    return itertools.islice(rows_among(table.whole(path), shape.delimiter), shape.above, None)
