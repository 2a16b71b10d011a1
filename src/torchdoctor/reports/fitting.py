"""Tables that fit a terminal: the columns that matter most stay, long names lose their middle.

>>> columns = [Column("run", ["a-very-long-name-of-a-run", "b"], 0), Column("loss", ["0.5", "0.25"], 1),
...            Column("roughness", ["12 %", "9 %"], 9)]
>>> kept, dropped = fitted(columns, 24)
>>> [column.name for column in kept], dropped, kept[0].values[0]
(['run', 'loss'], ['roughness'], 'a-very-l…-of-a-run')
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from torchdoctor.reports.wording import printable

GAP = 2
"""Blanks between columns."""
LEAST = 16
"""Characters of a run's name that are kept, however narrow the table."""


class Column(NamedTuple):
    """One column: its head, its cells, and how much it matters, the smallest number most."""

    name: str
    values: Sequence[str]
    importance: int

    @property
    def width(self) -> int:
        """Characters that it takes."""
        return max(len(printable(cell)) for cell in (self.name, *self.values))


def fitted(columns: Sequence[Column], width: int) -> tuple[list[Column], list[str]]:
    """The columns that fit, the first with its names abridged where they must be, and the names of the others."""
    first, *rest = columns
    least = min(first.width, max(LEAST, width // 3))
    by_importance = sorted(rest, key=lambda column: column.importance)
    while by_importance and least + sum(GAP + column.width for column in by_importance) > width:
        by_importance.pop()
    kept = [column for column in rest if column in by_importance]
    left = width - sum(GAP + column.width for column in kept)
    names = abridged([printable(name) for name in first.values], max(left, LEAST))
    return [first._replace(values=names), *kept], [column.name for column in rest if column not in by_importance]


def abridged(names: Sequence[str], width: int) -> list[str]:
    """Names of at most so many characters: without their middle, or their beginning where the end tells them apart.

    >>> abridged(["study_0__wmt__trial_1", "study_0__wmt__trial_4"], 12)
    ['study…rial_1', 'study…rial_4']
    >>> abridged(["wmt_a_and_more", "wmt_b_and_more"], 9)
    ['wmt_…more', 'wmt_ (2)']
    """
    head = (width - 1) // 2
    tail = width - 1 - head
    middle = [name if len(name) <= width else f"{name[:head]}…{name[-tail:]}" for name in names]
    if len(set(middle)) == len(set(names)):
        return middle
    ends = [name if len(name) <= width else f"…{name[1 - width :]}" for name in names]
    if len(set(ends)) == len(set(names)):
        return ends
    seen: dict[str, str] = {}
    told: list[str] = []
    for place, (name, short) in enumerate(zip(names, middle, strict=True), 1):
        if short in told and name not in seen:
            mark = f" ({place})"
            short = f"{name[: max(width - len(mark) - 1, 1)]}{mark}"
        told.append(seen.setdefault(name, short))
    return told


def folded(text: str, width: int, indent: int = 0) -> list[str]:
    """A sentence in lines of at most so many characters; a line that is indented already stays so."""
    own = len(text) - len(text.lstrip())
    lead = " " * (indent + own)
    return textwrap.wrap(
        text.strip(),
        max(width, 40),
        initial_indent=lead,
        subsequent_indent=f"{lead}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
