"""Tables in text: cells separated by comma, semicolon, tab, bar or spaces; names in the first row.

Lightning's metrics.csv, Keras' CSVLogger, Ultralytics' results.csv with padded names, tables copied from a notebook or
a model card, and tables written by hand.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchdoctor.errors import SourceError
from torchdoctor.records import names_text
from torchdoctor.sources.cells import ABSENT, column, number
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.opening import beginning, ends_cleanly, uncoloured
from torchdoctor.sources.phases import is_phase_column, is_run, named_in_phase
from torchdoctor.sources.quoted import rows_from, whole_rows
from torchdoctor.sources.several import runs_of
from torchdoctor.sources.table import Table
from torchdoctor.sources.tidy import Tidy, layout
from torchdoctor.sources.words import LOSS, SPLITS, is_measure, taken_apart, words_of

CHUNK = 20_000
"""Rows converted to numbers at once."""
PROBE, WIDE = 40, 2**21
"""Rows that are examined, and characters if these are long."""
PREAMBLE = 5
"""Lines among which the row of names must be."""
EPOCH_SECONDS = 1e9
"""Rising numbers from here on are the time of day."""
ACROSS = 8
"""Numbers in a row from which on the row is a series."""
COUNTING = 0.8
"""Share of its rows in which a count must rise; it may fall where a run was resumed."""
MONITOR = ("r", "l", "t")
"""Names that the monitor of gym and Stable-Baselines uses for reward, length and time of an episode."""
SPACES = "  "
"""Stands for two or more spaces."""
LOOSE = (" - ", " ")
"""Separators of unnamed numbers in files whose name says log: numpy.savetxt writes one space."""
LOGS = LOSS | {"log", "logs", "history", "metrics"}
PLAIN = (",", "\t", ";")
DELIMITERS = (*PLAIN, "|", SPACES)
_SPACES = re.compile(r"\s{2,}|\t")
_CUT = re.compile(r"[\s,;|]+")
_SAID = re.compile(r"(?i)loss\w{0,12}['\"]?\s?[:=]\s?(?:nan|inf|\d)")
_DATED = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?!\d)")
_PRINTED = re.compile(r"[A-Za-z]\s*[:=]\s*[-+]?\d[\d.e+-]*\Z")
_STRUCTURE = re.compile(r"[\[\]{}:=\"']")
RULE = re.compile(r"[\s|:+=-]+\Z")
_EXPORTED = re.compile(r"(?P<run>.+?) - (?P<name>.+)\Z")
_TAGGED = re.compile(r"tag-(?P<tag>.+?)(?:\.csv.*)?\Z")


def recognises(path: Path) -> bool:
    """Whether the file begins with a row of names above rows of numbers."""
    return _shape(path) is not None


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The run in a table; several if a web page's export placed them side by side."""
    shape = _shape(path)
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


@dataclass(frozen=True)
class _Shape:
    delimiter: str
    names: list[str]
    comma: bool
    """Whether numbers use a decimal comma."""
    above: int
    """Lines before the first row of numbers."""
    across: bool = False
    """Whether a row is a series, with all its values side by side."""


class _Rows:
    """Rows waiting to be converted to columns."""

    def __init__(self, shape: _Shape, path: Path) -> None:
        self.delimiter, self.comma, self.tag, self.stem = shape.delimiter, shape.comma, tag_of(path), _stem(path)
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
        if len(cells) != len(words) or place != len(self._waiting) or not _are_plain(cells):
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


def plain_names(names: Sequence[str]) -> list[str]:
    """Names with spaCy's symbols for epochs and steps replaced by words."""
    signs = {"E": "epoch", "#": "step"} if {"E", "#"} <= set(names) else {}
    return [signs.get(name, name) for name in names]


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


def _first_rows(path: Path) -> dict[str, list[str]]:
    """The first rows by delimiter, which decides what one row is if cells hold line breaks."""
    text = beginning(path)
    if text.count("\n") < 3:  # thousands of columns
        text = beginning(path, WIDE)
    lines = text.splitlines()[: PROBE * 2]
    found = dict.fromkeys((*DELIMITERS, *LOOSE, "_"), _told_rows(lines))
    if any(line.count('"') % 2 for line in lines):
        many = beginning(path, WIDE).splitlines()
        for delimiter in PLAIN:
            rows = itertools.islice(whole_rows(iter(enumerate(many)), delimiter), PROBE * 2)
            found[delimiter] = _told_rows([text for _, text in rows])
    return found


def _told_rows(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if _tells(line)][:PROBE]


def _shape(path: Path) -> _Shape | None:
    """The layout of a file; None if it is not a table. There may be a comment above the names, or no names."""
    found = _first_rows(path)
    lines = found[SPACES]
    printed = any(map(_SAID.search, lines))  # bars in a logger's output are not a table's
    for above in range(min(PREAMBLE, len(lines) - 1)):
        if above and _SAID.search(lines[above - 1]):  # a printed log that contains a table
            return None
        for delimiter in PLAIN if printed else DELIMITERS:
            rows = found[delimiter]
            if above > len(rows) - 2:
                continue
            body = [split(row, delimiter) for row in rows[above + 1 :]]
            names = _as_wide(split(rows[above], delimiter), body, delimiter == SPACES)
            comma = delimiter != "," and any("," in cell for cells in body for cell in cells)
            named = sum(map(bool, names))
            if (
                (named > 1 or delimiter == SPACES or _is_indexed(names))
                and (is_header(names) or _has_thresholds(names, body))
                and _are_numbers(names, body, comma)
            ):
                return _Shape(delimiter, names, comma, above + 1)
    return _without_names(found, path)


def _as_wide(names: list[str], body: Sequence[Sequence[str]], spaced: bool = False) -> list[str]:
    """The names without an empty one after a trailing delimiter, if most rows end without it.

    If `spaced`, with one for the index, over which a printed DataFrame has no name.

    >>> _as_wide(["epoch", "loss", ""], [["0", "2.1"], ["1", "1.8"]])
    ['epoch', 'loss']
    >>> _as_wide(["epoch", "loss"], [["0", "1", "2.1"], ["1", "2", "1.8"]], spaced=True)
    ['', 'epoch', 'loss']
    """
    shorter = sum(len(cells) == len(names) - 1 for cells in body)
    longer = sum(len(cells) == len(names) + 1 and cells[0].isdigit() for cells in body)
    if spaced and 2 * longer > len(body) and any(map(is_measure, names)):
        return ["", *names]
    return names[:-1] if not names[-1] and 2 * shorter > len(body) else names


def _is_indexed(names: Sequence[str]) -> bool:
    """Whether there is one loss or metric next to an unnamed index, as pandas writes a series."""
    return len(names) == 2 and not names[0] and is_measure(names[1])


def _without_names(found: Mapping[str, Sequence[str]], path: Path) -> _Shape | None:
    """Columns of nothing but numbers; a comment gives their names, or the file name that of one if it says loss."""
    comments = _comments(path)
    loose = LOOSE if path.suffix and not LOGS.isdisjoint(words_of(_stem(path))) else ()  # MLflow's have no suffix
    for delimiter in (*DELIMITERS, *(LOOSE if comments else loose), "_"):  # "1_1.8458"
        body = [split(row, delimiter) for row in found[delimiter]]
        width = len(body[0]) if body else 0
        if len(body) > 2 and all(len(cells) == width and _are_plain(cells) for cells in body[:-1]):
            told = (split(text, by) for text in comments for by in (delimiter, " "))
            names = next((cells for cells in told if len(cells) == width and is_header(cells)), None)
            if names or loose or delimiter not in LOOSE:
                return _Shape(delimiter, names or _guessed(_stem(path), body[:-1]), False, 0)
        if 0 < len(body) <= 2 and width >= ACROSS and _are_plain(body[0]):
            stem = _stem(path)
            return _Shape(delimiter, [stem, "column 2"], False, 0, across=True) if is_measure(stem) else None
    return None


def _comments(path: Path) -> list[str]:
    """The comments at the beginning that may name columns, as numpy.savetxt and DeePMD write them."""
    first = beginning(path, 4096).lstrip().splitlines()
    comments = (line.lstrip("# \t") for line in itertools.takewhile(lambda line: line.startswith("#"), first))
    return [text for text in comments if sum(map(is_measure, _CUT.split(text)))]


def _stem(path: Path) -> str:
    """The file name without its format suffixes."""
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


def _across(path: Path, shape: _Shape) -> Table:
    """A list of losses written as one row; the meaning of a second row is unknown."""
    table = Table()
    for place, (_, text) in enumerate(table.whole(path)):
        if place < len(shape.names):
            values, there, _ = column(split(text, shape.delimiter))
            table.extend(shape.names[place], np.flatnonzero(there), values[there])
            table.rows = max(table.rows, len(values))
    return table


def _guessed(stem: str, body: Sequence[Sequence[str]]) -> list[str]:
    """Names for unnamed columns: counts and times first, then one named like the file."""
    names = [f"column {place + 1}" for place in range(len(body[0]))]
    if not taken_apart(stem, 0).is_loss:
        return names
    for place, cells in enumerate(zip(*body, strict=True)):
        values = [number(cell) or 0.0 for cell in cells]
        if place + 1 < len(names) and len(values) > 2 and _are_epochs(values):
            names[place] = "epoch"
            continue
        rises = [one < other for one, other in itertools.pairwise(values)]
        rising = len(values) > 2 and sum(rises) >= COUNTING * len(rises)
        if (
            place + 1 == len(names)
            or not rising
            or (values[0] < EPOCH_SECONDS and not all(map(float.is_integer, values)))
        ):
            names[place] = stem
            break
        names[place] = "timestamp" if values[0] >= EPOCH_SECONDS else "step"
    return names


def _are_epochs(values: Sequence[float]) -> bool:
    """Whether these are whole numbers that stay or rise by one, such as the epoch of each of many batches.

    >>> _are_epochs([1.0, 1.0, 1.0, 2.0, 2.0]), _are_epochs([0.0, 1.0, 2.0]), _are_epochs([4.0, 3.0, 3.0])
    (True, False, False)
    """
    steps = {other - one for one, other in itertools.pairwise(values)}
    return 0.0 in steps and steps <= {0.0, 1.0} and all(map(float.is_integer, values))


def _are_plain(cells: Sequence[str]) -> bool:
    return all(number(cell) is not None for cell in cells if cell) and any(cells)


def is_header(cells: Sequence[str]) -> bool:
    """Whether cells are names: words, and no numbers as in a line of printed text."""
    named = [cell for cell in cells if cell]
    return bool(named) and all(
        number(cell) is None
        and cell.lower() not in ("nan", "none")
        and "%|" not in cell  # a tqdm bar
        and not _DATED.match(cell)  # a logger's line
        and not _PRINTED.search(cell)
        for cell in named
    )


def _has_thresholds(names: Sequence[str], body: Sequence[Sequence[str]]) -> bool:
    """Whether some names are numbers, such as counts within 1, 25 and 200 km, rather than rows that name their values.

    >>> _has_thresholds(["epoch", "loss", "1", "25"], [["0", "1.02", "0.0", "0.1"]])
    True
    >>> _has_thresholds(["epoch", "1", "loss", "0.9"], [["epoch", "2", "loss", "0.8"]])
    False
    """
    words = [place for place, name in enumerate(names) if name and number(name) is None]
    figures = [name for name in names if number(name) is not None]
    if not figures or len(words) < len(figures) or len(set(figures)) < len(figures) or number(names[0]) is not None:
        return False
    told = [names[place] for place in words]
    again = any(place < len(cells) and cells[place] == names[place] for cells in body for place in words)
    plain = is_header(told) and not any(_STRUCTURE.search(word) for word in told)  # not a cut document or a list
    return plain and any(map(is_measure, told)) and not again


def _are_numbers(names: Sequence[str], body: Sequence[Sequence[str]], comma: bool) -> bool:
    body = body[:-1] if len(body) > 1 else body  # the last may be cut off
    fitting = [cells for cells in body if len(cells) == len(names)]
    if len(fitting) < 0.6 * len(body) or not fitting:
        return False
    filled = [cell for cells in fitting for cell in cells if cell.lower() not in ABSENT]
    numbers = sum(1 for cell in filled if number(cell, comma) is not None)
    return numbers >= max(1.0, 0.3 * len(filled))


def _rows(path: Path, shape: _Shape, table: Table) -> Iterator[tuple[int, str]]:
    """The rows under the names."""
    return itertools.islice(_told(table.whole(path), shape.delimiter), shape.above, None)


def _told(lines: Iterator[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, str]]:
    """The rows with content. Logs may have a million rows, so only those with quotes are examined closely."""
    quoted = delimiter in PLAIN
    for line, text in lines:
        stripped = text.strip()
        if quoted and '"' in text:
            yield from (row for row in rows_from((line, text), lines, delimiter) if _tells(row[1]))
        elif stripped and stripped[0] != "#" and not (stripped[0] in "|-+=" and RULE.match(stripped)):
            yield line, text


def _tells(text: str) -> bool:
    stripped = text.strip()
    return stripped[:1] not in ("", "#") and not RULE.match(stripped)


def split(text: str, delimiter: str) -> list[str]:
    """The cells of a row.

    >>> split('a, "b, c" ,d', ","), split("| 1 | 2 |", "|")
    (['a', 'b, c', 'd'], ['1', '2'])
    """
    if "\x1b" in text:
        text = uncoloured(text)
    if delimiter == SPACES:
        return _SPACES.split(text.strip())
    if delimiter == "|":
        text = text.strip().strip("|")
    if delimiter == " ":
        return text.split()
    if '"' in text and len(delimiter) == 1:
        try:
            return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter, skipinitialspace=True))]
        except (csv.Error, StopIteration):
            pass
    return [cell.strip() for cell in text.split(delimiter)]
