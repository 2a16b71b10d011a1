"""Tables that are printed among other lines, their names above them: Ultralytics', spaCy's, those of a model card.

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
from torchdoctor.sources.clock import TOTAL, counts
from torchdoctor.sources.csv_table import RULE, SPACES, is_header, plain_names, split
from torchdoctor.sources.words import is_measure

LENGTH = 2000
"""Characters of the longest line that may be of a table."""
MOST_NAMES = 100
_BAR = re.compile(r"\s*:?\s+(\d{1,3})%\s?[|\u2501\u2500].*")
_FRAME = str.maketrans("\u2502\u2503\u2551", "|||")
_OF = re.compile(r"(\d+)/(\d+)\Z")
_SENTENCE = re.compile(r"[=;!?]|:(?!-)(?<!-:)|\.\s|(?<![\w-])\d")
"""What is in no row of names."""


class PrintedTable:
    """Reads lines, and remembers the names that were printed last."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._delimiter = SPACES
        self._first = False
        """Whether the next row is the first under its names."""

    def read(self, line: str) -> dict[str, float] | None:
        """The numbers of a row by name, none of a row of names; None where the line is of no table."""
        if not line.isascii():
            line = line.translate(_FRAME)
        if len(line) > LENGTH or not ("  " in line or "|" in line or "\t" in line):
            return None
        bar = _BAR.search(line) if "%" in line else None
        text = line[: bar.start()] if bar else line
        if _SENTENCE.search(text) is None and self._begins(text):
            return {}
        if not self._names:
            return None
        if RULE.match(text):
            return {}
        cells = self._cells(text)
        if len(cells) != len(self._names):
            return None
        row = _row(self._names, cells)
        if len(row) * 2 < len(cells):
            return None
        of_all = self._first or number(cells[0]) is not None or _OF.match(cells[0]) is not None
        self._first = False
        return row if of_all and (bar is None or bar[1] == "100") else {}

    def _begins(self, text: str) -> bool:
        """Whether a line is a row of names, one of which is measured."""
        for delimiter in ("|", "\t", SPACES):
            cells = [cell for cell in split(text, delimiter) if cell]
            if 2 < len(cells) <= MOST_NAMES and is_header(cells):
                names = plain_names(cells)
                if any(map(is_measure, cells)) and (any(map(counts, names)) or len(cells) > 4):
                    self._names, self._delimiter, self._first = names, delimiter, True
                    return True
        return False

    def _cells(self, text: str) -> list[str]:
        cells = split(text, self._delimiter)
        if self._delimiter == SPACES and len(cells) != len(self._names):
            cells = text.split()
        return cells


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
