"""The outline of a whole run: each vital in at most 1,000 buckets that keep every extreme."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Steps = NDArray[np.int64]


class Outline:
    """A whole run in at most `capacity` buckets, each with its lowest, mean and highest value.

    When all buckets are full, neighboring ones are merged, so no extreme is ever lost.

    >>> outline = Outline(capacity=4)
    >>> for step in range(100):
    ...     outline.add(step, 50.0 if step == 37 else 1.0)
    >>> max(bucket[3] for bucket in outline.buckets()), len(outline.buckets()) <= 5
    (50.0, True)
    """

    __slots__ = (
        "_capacity",
        "_count",
        "_high",
        "_highs",
        "_low",
        "_lows",
        "_means",
        "_settled",
        "_start",
        "_starts",
        "_stride",
        "_top",
        "_total",
    )

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity = capacity + capacity % 2
        self._stride = 1
        # columns instead of tuples, because iterating over 1,000 tuples misses the cache
        self._starts = array("q")
        self._lows, self._means, self._highs = array("d"), array("d"), array("d")
        self._settled: tuple[int, int, Array] = (0, 0, np.zeros(0))
        self._top = -math.inf
        self._clear()

    def _clear(self) -> None:
        self._count, self._start, self._total = 0, 0, 0.0
        self._low, self._high = math.inf, -math.inf

    def add(self, step: int, value: float) -> None:
        """Insert one finite value."""
        if self._count == 0:
            self._start = step
        self._count += 1
        self._total += value
        if value < self._low:
            self._low = value
        if value > self._high:
            self._high = value
        self._close()

    def extend(self, steps: Steps, values: Array) -> None:
        """Insert several finite values; the same as adding each."""
        position = 0
        while position < len(values):
            whole = min((len(values) - position) // self._stride, self._capacity - len(self._means))
            if self._count == 0 and whole:
                end = position + whole * self._stride
                self._fill(steps[position : end : self._stride], values[position:end].reshape(whole, self._stride))
                position = end
                continue
            end = min(position + self._stride - self._count, len(values))
            if self._count == 0:
                self._start = int(steps[position])
            part = values[position:end]
            # added in order, because `sum` rounds differently
            self._total = float(np.add.accumulate(np.concatenate(((self._total,), part)))[-1])
            self._low, self._high = min(self._low, float(part.min())), max(self._high, float(part.max()))
            self._count += part.size
            position = end
            self._close()

    def _fill(self, starts: Steps, rows: Array) -> None:
        """Append whole buckets, one per row of values."""
        if rows.shape[1] == 1:
            lows = means = highs = rows[:, 0]
        else:
            means = np.add.accumulate(rows, axis=1)[:, -1] / rows.shape[1]
            lows, highs = rows.min(axis=1), rows.max(axis=1)
        self._starts.frombytes(starts.tobytes())
        self._lows.frombytes(lows.tobytes())
        self._means.frombytes(means.tobytes())
        self._highs.frombytes(highs.tobytes())
        self._top = max(self._top, float(highs.max()))
        if len(self._means) >= self._capacity:
            self._merge()

    def _close(self) -> None:
        if self._count >= self._stride:
            self._starts.append(self._start)
            self._lows.append(self._low)
            self._means.append(self._total / self._count)
            self._highs.append(self._high)
            self._top = max(self._top, self._high)
            self._clear()
            if len(self._means) >= self._capacity:
                self._merge()

    def _merge(self) -> None:
        lows, means, highs = (np.array(column).reshape(-1, 2) for column in (self._lows, self._means, self._highs))
        self._starts = self._starts[::2]
        self._lows = array("d", lows.min(axis=1).tobytes())
        self._means = array("d", (means[:, 0] / 2 + means[:, 1] / 2).tobytes())
        self._highs = array("d", highs.max(axis=1).tobytes())
        self._stride *= 2

    @property
    def highest(self) -> float:
        """The highest value of all."""
        return max(self._top, self._high)

    @property
    def start(self) -> int:
        """The first step of all."""
        return self._starts[0] if self._starts else self._start

    def reached(self, value: float) -> int:
        """The first step of the first bucket that reaches a value; that of the latest bucket if none does."""
        return next(
            (start for start, high in zip(self._starts, self._highs, strict=True) if high >= value), self._start
        )

    def before(self, step: int) -> int:
        """How many of `buckets` begin before a step; steps must not decrease."""
        return bisect_left(self._starts, step) + (self._count > 0 and self._start < step)

    def means(self) -> Array:
        """The means of `buckets`."""
        rest = [self._total / self._count] if self._count else []
        return np.array(self._means + array("d", rest))

    def settled(self) -> Array:
        """The means of the full buckets except the latest few: the same array object until 16 more are full.

        It depends only on the number of values, not on the time of the call, so results computed from it can be cached
        as long as the array object is the same.
        """
        full = len(self._means)
        size = full - full % 16 if full >= 32 else full
        stride, known, levels = self._settled
        if (stride, known) != (self._stride, size):
            levels = np.array(self._means[:size])
            self._settled = self._stride, size, levels
        return levels

    @property
    def stride(self) -> int:
        """Number of values in a full bucket."""
        return self._stride

    @property
    def steady(self) -> int:
        """How many values can be added before `settled` returns another array."""
        full = len(self._means)
        size = min(full - full % 16 + 16, self._capacity) if full >= 32 else full + 1
        return (size - full) * self._stride - self._count - 1

    def columns(self) -> tuple[Steps, Array, Array, Array]:
        """The same as `buckets`, as columns: first steps, lowest, means, highest.

        >>> outline = Outline()
        >>> outline.extend(np.array([4, 5]), np.array([2.5, 2.0]))
        >>> [column.tolist() for column in outline.columns()]
        [[4, 5], [2.5, 2.0], [2.5, 2.0], [2.5, 2.0]]
        """
        rest = self._count > 0
        means = [self._total / self._count] if rest else []
        return (
            np.array(self._starts + array("q", [self._start][:rest])),
            np.array(self._lows + array("d", [self._low][:rest])),
            np.array(self._means + array("d", means)),
            np.array(self._highs + array("d", [self._high][:rest])),
        )

    def buckets(self) -> list[tuple[int, float, float, float]]:
        """(first step, lowest, mean, highest), oldest first, the unfinished bucket included."""
        full = list(zip(self._starts, self._lows, self._means, self._highs, strict=True))
        if self._count:
            full.append((self._start, self._low, self._total / self._count, self._high))
        return full
