"""Reads boxes that RL libraries print: a name and a number per line between two rules, with the step count last.

>>> box = Box()
>>> [box.gathered(text, row) for text, row in (
...     ("-----------------", {}), ("| reward | -20.3 |", {"reward": -20.3}), ("| steps  | 9000  |", {"steps": 9e3}),
...     ("-----------------", {}))]
[{}, {}, {}, {'reward': -20.3, 'steps': 9000.0}]
"""

from __future__ import annotations

import re

MOST = 200
"""Most lines of a box."""
_RULE = re.compile(r"\s*-{8,}\s*\Z")
_LINE = re.compile(r"\s*\|\s*[^|]{1,80}\|\s*[^|]{0,40}\|\s*\Z")


class Box:
    """Follows the lines of a log, and makes one row of a box, whose step count comes after its values."""

    def __init__(self) -> None:
        self._open = False
        self._rows: list[dict[str, float]] = []

    def gathered(self, text: str, row: dict[str, float]) -> dict[str, float]:
        """The row of a line; empty inside a box, and the row of the whole box where it closes."""
        if "|" not in text and "-" not in text:
            self._open = False
            return row
        if _RULE.match(text):
            whole = self._whole()
            self._open, self._rows = True, []
            return whole
        if not self._open or not _LINE.match(text) or len(self._rows) >= MOST:
            self._open = False
            return row
        self._rows.append(row)
        return {}

    def _whole(self) -> dict[str, float]:
        return {name: value for row in self._rows for name, value in row.items()} if self._open else {}
