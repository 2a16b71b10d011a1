"""Recognises a table in text: how its cells are separated, and what its columns are called.

The names stand in one of the first lines, or in a comment above the numbers. If there are none, the columns are named
after what their numbers look like and what the file is called.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.sources.cells import ABSENT, number
from torchdoctor.sources.clock import EPOCH_SECONDS
from torchdoctor.sources.opening import beginning
from torchdoctor.sources.quoted import whole_rows
from torchdoctor.sources.table_rows import PLAIN, SPACES, split, tells
from torchdoctor.sources.words import LOSS, is_measure, taken_apart, words_of

PROBE, WIDE = 40, 2**21
"""Rows that are examined, and characters if these are long."""
PREAMBLE = 5
"""Lines among which the row of names must be."""
ACROSS = 8
"""Numbers in a row from which on the row is a series."""
COUNTING = 0.8
"""Share of its rows in which a count must rise; it may fall where a run was resumed."""
LOOSE = (" - ", " ")
"""Separators of unnamed numbers in files whose name says log: numpy.savetxt writes one space."""
LOGS = LOSS | {"log", "logs", "history", "metrics"}
DELIMITERS = (*PLAIN, "|", SPACES)
_CUT = re.compile(r"[\s,;|]+")
_SAID = re.compile(r"(?i)loss\w{0,12}['\"]?\s?[:=]\s?(?:nan|inf|\d)")
_DATED = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?!\d)")
_PRINTED = re.compile(r"[A-Za-z]\s*[:=]\s*[-+]?\d[\d.e+-]*\Z")
_STRUCTURE = re.compile(r"[\[\]{}:=\"']")


@dataclass(frozen=True)
class Shape:
    """How the rows of a table are to be read."""

    delimiter: str
    names: list[str]
    comma: bool
    """Whether numbers use a decimal comma."""
    above: int
    """Lines before the first row of numbers."""
    across: bool = False
    """Whether a row is a series, with all its values side by side."""


def shape_of(path: Path) -> Shape | None:
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
                return Shape(delimiter, names, comma, above + 1)
    return _without_names(found, path)


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
    return [line for line in lines if tells(line)][:PROBE]


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


def are_plain(cells: Sequence[str]) -> bool:
    """Whether cells hold nothing but numbers, and at least one."""
    return all(number(cell) is not None for cell in cells if cell) and any(cells)


def _without_names(found: Mapping[str, Sequence[str]], path: Path) -> Shape | None:
    """Columns of nothing but numbers; a comment gives their names, or the file name that of one if it says loss."""
    comments = _comments(path)
    loose = LOOSE if path.suffix and not LOGS.isdisjoint(words_of(bare_name(path))) else ()  # MLflow's have no suffix
    for delimiter in (*DELIMITERS, *(LOOSE if comments else loose), "_"):  # "1_1.8458"
        body = [split(row, delimiter) for row in found[delimiter]]
        width = len(body[0]) if body else 0
        if len(body) > 2 and all(len(cells) == width and are_plain(cells) for cells in body[:-1]):
            told = (split(text, by) for text in comments for by in (delimiter, " "))
            names = next((cells for cells in told if len(cells) == width and is_header(cells)), None)
            if names or loose or delimiter not in LOOSE:
                return Shape(delimiter, names or _guessed(bare_name(path), body[:-1]), False, 0)
        if 0 < len(body) <= 2 and width >= ACROSS and are_plain(body[0]):
            stem = bare_name(path)
            return Shape(delimiter, [stem, "column 2"], False, 0, across=True) if is_measure(stem) else None
    return None


def _comments(path: Path) -> list[str]:
    """The comments at the beginning that may name columns, as numpy.savetxt and DeePMD write them."""
    first = beginning(path, 4096).lstrip().splitlines()
    comments = (line.lstrip("# \t") for line in itertools.takewhile(lambda line: line.startswith("#"), first))
    return [text for text in comments if sum(map(is_measure, _CUT.split(text)))]


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


def plain_names(names: Sequence[str]) -> list[str]:
    """Names with spaCy's symbols for epochs and steps replaced by words."""
    signs = {"E": "epoch", "#": "step"} if {"E", "#"} <= set(names) else {}
    return [signs.get(name, name) for name in names]


def bare_name(path: Path) -> str:
    """The file name without its format suffixes."""
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name
