"""Rows of a table whose quoted cells contain line breaks: a generated sample, a prompt, a message.

A row continues after its line if a quote is open there and a later line closes it. A single quote that is never closed
is an ordinary character: the lines after it are rows of their own.

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
"""Characters of the longest row of several lines: the csv module does not accept longer cells."""

Line = tuple[int, str]


def whole_rows(lines: Iterator[Line], delimiter: str) -> Iterator[Line]:
    """Lines, with those of one row joined under the first one's number. Each line is read at most twice."""
    for line in lines:
        if '"' in line[1]:
            yield from rows_from(line, lines, delimiter)
        else:
            yield line


def rows_from(first: Line, lines: Iterator[Line], delimiter: str) -> Iterator[Line]:
    """The rows that begin with a line, including lines fetched in vain to find the end of its quote."""
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
    """Fetch the lines that may belong to a row that begins with this one; returns whether the last closes its quote.

    A line with an odd number of quotes is always the last one fetched.
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
    """Whether lines form one row: quotes are in valid places, and most of the lines are not rows by themselves."""
    try:
        (cells,) = csv.reader([row], delimiter=delimiter, skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        return False
    broken = next(place for place, cell in enumerate(cells) if "\n" in cell)
    numbers = [place for place, cell in enumerate(cells) if number(cell) is not None]
    before = [place for place in numbers if place < broken]
    inside = others if before else others[:-1]  # the last line ends like any row
    alone = sum(_reads_as_row(text.split(delimiter), len(cells), before or numbers) for text in inside)
    return 2 * alone <= len(inside)


def _reads_as_row(cells: Sequence[str], width: int, counted: Sequence[int]) -> bool:
    return len(cells) == width and all(number(cells[place].strip('" ')) is not None for place in counted)
