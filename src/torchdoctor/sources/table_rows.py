"""Which lines of a text are rows of a table, and what their cells are.

>>> rows = rows_among(iter([(1, "# a comment"), (2, "| 1 | 2 |"), (3, "|---|---|")]), "|")
>>> [split(text, "|") for _, text in rows]
[['1', '2']]
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from torchdoctor.sources.opening import uncoloured
from torchdoctor.sources.quoted import rows_from

PLAIN = (",", "\t", ";")
"""Delimiters of files in which cells may be quoted."""
SPACES = "  "
"""Stands for two or more spaces."""
_SPACES = re.compile(r"\s{2,}|\t")
RULE = re.compile(r"[\s|:+=-]+\Z")
"""A line drawn under the names or between rows."""


def rows_among(lines: Iterator[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, str]]:
    """The rows with content. Logs may have a million rows, so only those with quotes are examined closely."""
    quoted = delimiter in PLAIN
    for line, text in lines:
        stripped = text.strip()
        if quoted and '"' in text:
            yield from (row for row in rows_from((line, text), lines, delimiter) if tells(row[1]))
        elif stripped and stripped[0] != "#" and not (stripped[0] in "|-+=" and RULE.match(stripped)):
            yield line, text


def tells(text: str) -> bool:
    """Whether a line has content: it is neither empty nor a comment nor a line drawn under the names."""
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
