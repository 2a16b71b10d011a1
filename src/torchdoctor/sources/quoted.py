"""Rows of a table whose quoted cells hold line breaks: a sample that was generated, a prompt, a message.

A row goes on behind its line where a quote stands open there and is closed by a later line. A quote that stands alone
is a sign like any other: the lines behind it are rows of their own.

>>> list(whole_rows(iter([(1, '7,"two'), (2, 'lines",x'), (3, "8,one,y")]), ","))
[(1, '7,"two\\nlines",x'), (3, '8,one,y')]
>>> list(whole_rows(iter([(1, '7,"inch'), (2, "8,foot"), (3, '9,"inch')]), ","))
[(1, '7,"inch'), (2, '8,foot'), (3, '9,"inch')]
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Sequence

from torchdoctor.sources.cells import number

LIMIT = 2**17
"""Characters of the longest row of several lines: a cell that is longer the csv module does not take."""

Line = tuple[int, str]


def whole_rows(lines: Iterator[Line], delimiter: str) -> Iterator[Line]:
    """Lines, those of one row as one that keeps the first one's number. Each is looked at twice at most."""
    for line in lines:
        if '"' in line[1]:
            yield from rows_from(line, lines, delimiter)
        else:
            yield line


def rows_from(first: Line, lines: Iterator[Line], delimiter: str) -> Iterator[Line]:
    """The rows that begin with a line, and where its quote opens nothing with those fetched to find that out."""
    waiting = deque([first])
    while waiting:
        line = waiting.popleft()
        if not _is_open(line[1]):
            yield line
            continue
        if _fetch(line, waiting, lines):
            others = [text for _, text in waiting]
            row = "\n".join([line[1], *others])
            if _is_row(row, others, delimiter):
                waiting.clear()
                line = line[0], row
        yield line


def _is_open(text: str) -> bool:
    return text.count('"') % 2 == 1


def _fetch(line: Line, waiting: deque[Line], lines: Iterator[Line]) -> bool:
    """Let the lines wait that may belong to a row that begins with this one; whether the last closes its quote.

    Nothing waits behind a line of an odd quote: it was the last that was fetched.
    """
    size = len(line[1])
    while size < LIMIT:
        another = next(lines, None)
        if another is None:
            return False
        waiting.append(another)
        size += len(another[1])
        if _is_open(another[1]):
            return True
    return False


def _is_row(row: str, others: Sequence[str], delimiter: str) -> bool:
    """Whether lines together are one row: its quotes are where they belong, and most of the lines are no rows alone."""
    try:
        (cells,) = csv.reader([row], delimiter=delimiter, skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        return False
    broken = next(place for place, cell in enumerate(cells) if "\n" in cell)
    numbers = [place for place, cell in enumerate(cells) if number(cell) is not None]
    before = [place for place in numbers if place < broken]
    inside = others if before else others[:-1]  # the last ends as a row does
    alone = sum(_reads_as_row(text.split(delimiter), len(cells), before or numbers) for text in inside)
    return 2 * alone <= len(inside)


def _reads_as_row(cells: Sequence[str], width: int, counted: Sequence[int]) -> bool:
    return len(cells) == width and all(number(cells[place].strip('" ')) is not None for place in counted)
