"""Tables printed among other lines, with their names above them: Ultralytics', spaCy's, those of a model card.

>>> table = PrintedTable()
>>> table.read("      Epoch    GPU_mem   box_loss   cls_loss  Instances"), table.read("an epoch begins")
({}, None)
>>> table.read("       1/80      2.31G      2.101        3.2         41: 100%|###| 9/9 [00:01<00:00]")
{'Epoch': 1.0, 'Epoch of': 80.0, 'GPU_mem': 2480343613.44, 'box_loss': 2.101, 'cls_loss': 3.2, 'Instances': 41.0}
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchdoctor.sources.cells import number
from torchdoctor.sources.count_names import TOTAL, counts
from torchdoctor.sources.table_rows import RULE, SPACES, split
from torchdoctor.sources.table_shape import is_header, plain_names
from torchdoctor.sources.words import is_measure, words_of

LENGTH = 2000
"""Characters of the longest line that may belong to a table."""
MOST_NAMES = 100
MOST_TABLES = 8
DETECTOR = frozenset({"box", "obj", "cls"})
_SAID = re.compile(r"\s*(?:\d{4}-\d\d-\d\d )?(?:\d\d:\d\d:\d\d[.,\d]* )?\s?\[?(?:INFO|DEBUG)\]?\s?[:|-]?(?=\s{2})")
"""A logger's prefix before a row."""
_MEAN_PRECISION = re.compile(r"mAP@0?\.5(:0?\.95)?(?![\d.])")
_BAR = re.compile(r"\s*:?\s+(\d{1,3})%\s?[|\u2501\u2500].*")
LOOSE = frozenset({"epoch", "step "})
_PHASED = re.compile(r"(?i)\b(train|training|valid|validation|val|test) (loss|acc|accuracy)\b")
_CELL = re.compile(r"(?i)-?[\d.]+(?:e[-+]?\d+)?%?\Z|\d+:[\d:]+\Z|nan\Z|inf\Z|none\Z|#na#\Z")
_FRAME = str.maketrans("\u2502\u2503\u2551", "|||")
_OF = re.compile(r"(\d+)/(\d+)\Z")
_SENTENCE = re.compile(r"[=;!?]|:(?!-)(?<!-:)|\.\s|(?<![\w-])\d")
"""What a row of names never contains."""


class PrintedTable:
    """Reads lines, and remembers the names printed last."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._delimiter = SPACES
        self._first = False
        """Whether the next row is the first one under its names."""
        self._earlier: dict[int, tuple[list[str], str]] = {}
        """Names of earlier tables, by their number: training rows continue after those of validation."""
        self._loose: list[str] = []
        """Names of a table with single spaces between its cells, as after copying from a page."""

    def read(self, line: str) -> dict[str, float] | None:
        """The numbers of a row by name, empty for a row of names; None if the line does not belong to a table."""
        if len(line) > LENGTH:
            return None
        line = line.translate(_FRAME) if not line.isascii() else line
        if not ("  " in line or "|" in line or "\t" in line):
            return self._loosely(line)
        return self._spaced(_MEAN_PRECISION.sub(_precision, line) if "@" in line else line)

    def _spaced(self, line: str) -> dict[str, float] | None:
        line = line[said.end() :] if (said := _SAID.match(line)) else line
        bar = _BAR.search(line) if "%" in line else None
        text = line[: bar.start()] if bar else line
        if _SENTENCE.search(text) is None and self._begins(text):
            return {}
        if not self._names:
            return None
        if RULE.match(text):
            return {}
        cells, names = self._cells(text), self._names
        if len(cells) != len(names):
            names, delimiter = self._earlier.get(len(cells), ([], ""))
            if delimiter != self._delimiter:
                return None
        row = _row(names, cells)
        if len(row) * 2 < len(cells):
            return None
        first = self._first and names is self._names
        of_all = first or number(cells[0]) is not None or _OF.match(cells[0]) is not None
        self._first = False
        return row if of_all and (bar is None or bar[1] == "100") else {}

    def _loosely(self, line: str) -> dict[str, float] | None:
        """The same for a table copied from a page or a mail.

        >>> table = PrintedTable()
        >>> table.read("epoch train loss valid_loss accuracy time"), table.read("0 nan 0.7 0.5 00:12")
        ({}, {'epoch': 0.0, 'train loss': nan, 'valid_loss': 0.7, 'accuracy': 0.5})
        """
        if line[:1] in "eEsS" and line[:5].lower() in LOOSE and _SENTENCE.search(line) is None:
            names = _PHASED.sub(r"\1\t\2", line.strip()).split(" ")
            if 2 < len(names) <= MOST_NAMES and is_header(names) and sum(map(is_measure, names)) > 1:
                self._loose = [name.replace("\t", " ") for name in names]
                return {}
        cells = line.split() if self._loose and line[:1].isdigit() else []
        if len(cells) != len(self._loose) or not cells or not all(map(_CELL.match, cells)):
            return None
        return _row(self._loose, cells)

    def _begins(self, text: str) -> bool:
        """Whether a line is a row of names that include a measure."""
        for delimiter in ("|", "\t", SPACES):
            cells = [cell for cell in split(text, delimiter) if cell]
            if 2 < len(cells) <= MOST_NAMES and is_header(cells):
                names = _of_a_detector(plain_names(cells))
                counted = any(map(counts, names))
                summed = counted and any(words_of(name) == ("total",) for name in names)  # box, obj, cls, total
                measured = summed or any(map(is_measure, names))
                if measured and (counted or len(cells) > 4):
                    self._names, self._delimiter, self._first = names, delimiter, True
                    if len(self._earlier) < MOST_TABLES:
                        self._earlier[len(names)] = (names, delimiter)
                    return True
        return False

    def _cells(self, text: str) -> list[str]:
        cells = split(text, self._delimiter)
        if self._delimiter == SPACES and len(cells) != len(self._names):
            cells = text.split()
        return cells


def _of_a_detector(names: list[str]) -> list[str]:
    """The names over a table; if the parts of a detector's loss are not named as such (YOLOv5), "_loss" is added.

    >>> _of_a_detector(["Epoch", "gpu_mem", "box", "obj", "cls", "labels", "img_size"])
    ['Epoch', 'gpu_mem', 'box_loss', 'obj_loss', 'cls_loss', 'labels', 'img_size']
    """
    given = {name.lower() for name in names}
    if not given >= DETECTOR or "total" in given:
        return names
    return [f"{name}_loss" if name.lower() in DETECTOR else name for name in names]


def _precision(found: re.Match[str]) -> str:
    return "mAP50-95" if found[1] else "mAP50"


def _row(names: Sequence[str], cells: Sequence[str]) -> dict[str, float]:
    row: dict[str, float] = {}
    for name, cell in zip(names, cells, strict=True):
        of = _OF.match(cell) if counts(name) else None
        value = number(of[1] if of else cell)
        if value is not None:
            row[name] = value
        if of:
            row[name + TOTAL] = float(of[2])
    return row
