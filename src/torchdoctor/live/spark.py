"""Curves made of characters: they fit in a terminal, and no spike is lost.

>>> print(spark([(step, 0.0, float(step), float(step)) for step in range(8)], 8))
▁▂▃▄▅▆▇█
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from torchdoctor.pictures import EXTRAORDINARY, Bucket, is_flat

BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN = " _.-=+*%#"
"""For terminals that support only ASCII."""
HUGE = 1e100
LOG_SPAN = 30.0
"""Ratio of highest to lowest value above which the scale is logarithmic."""


def columns(buckets: Sequence[Bucket], width: int, first: int, last: int) -> list[float | None]:
    """One value per column from the first step to the last; None if there is none.

    >>> columns([(0, 1.0, 1.0, 1.0), (9, 2.0, 2.0, 2.0)], 3, 0, 9)
    [1.0, None, 2.0]
    """
    gathered: list[list[Bucket]] = [[] for _ in range(width)]
    span = max(last - first, 1)
    for step, low, mean, high in buckets:
        bucket = (step, _drawable(low), _drawable(mean), _drawable(high))
        place = min(max((bucket[0] - first) * width // (span + 1), 0), width - 1)
        gathered[place].append(bucket)
    means = [sum(item[2] for item in group) / len(group) if group else None for group in gathered]
    rises = [
        max(item[3] for item in group) - mean if mean is not None else 0.0
        for group, mean in zip(gathered, means, strict=True)
    ]
    usual = median([rise for rise, mean in zip(rises, means, strict=True) if mean is not None] or [0.0])
    return [
        mean + rise if mean is not None and rise > EXTRAORDINARY * usual and rise > 0.1 * abs(mean) else mean
        for mean, rise in zip(means, rises, strict=True)
    ]


def _drawable(value: float) -> float:
    """A value whose sums and differences are finite."""
    return min(max(value, -HUGE), HUGE)


def spark(buckets: Sequence[Bucket], width: int, *, plain: bool = False) -> str:
    """A curve in a single row."""
    return plot(buckets, width, 1, plain=plain)[0]


def plot(
    buckets: Sequence[Bucket],
    width: int,
    height: int,
    *,
    span: tuple[int, int] | None = None,
    log: bool = False,
    plain: bool = False,
) -> list[str]:
    """A curve in several rows, top row first; over `span` of steps, or over its own.

    >>> for row in plot([(step, 0.0, float(step), float(step)) for step in range(8)], 8, 2):
    ...     print(row.rstrip())
        ▂▄▆█
    ▁▃▅▇████
    """
    if not buckets:
        return [" " * width] * height
    first, last = span or (buckets[0][0], buckets[-1][0])
    if span is None:
        width = min(width, len(buckets))
    signs = PLAIN if plain else BLOCKS
    rows = [[" "] * width for _ in range(height)]
    for place, share in enumerate(_shares(_filled(columns(buckets, width, first, last)), log=log)):
        if share is not None:
            eighths = 1 + round(share * (8 * height - 1))
            for row in range(height):
                rows[height - 1 - row][place] = signs[min(max(eighths - 8 * row, 0), 8)]
    return ["".join(row) for row in rows]


def _shares(values: Sequence[float | None], *, log: bool) -> list[float | None]:
    """The height of each value between the lowest and the highest; on a logarithmic scale if the range is wide."""
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    bend = math.log if low > 0 and (log or high / low > LOG_SPAN) else float
    if is_flat(low, high):
        return [None if value is None else 0.5 for value in values]
    low, high = bend(low), bend(high)
    return [None if value is None else (bend(value) - low) / (high - low) for value in values]


def _filled(values: list[float | None]) -> list[float | None]:
    """Values repeated until the next one, for curves that were logged rarely."""
    filled: list[float | None] = []
    for value in values:
        filled.append(value if value is not None else filled[-1] if filled else None)
    return filled


def marks(steps: Sequence[tuple[int, str]], width: int, first: int, last: int) -> list[tuple[int, str]]:
    """The columns in which something began, each with the style of the last one there."""
    places: dict[int, str] = {}
    for step, style in steps:
        if first <= step <= last:
            places[min((step - first) * width // (max(last - first, 1) + 1), width - 1)] = style
    return sorted(places.items())
