"""One vital over a run: its recent past exactly, the whole of it in outline, in constant memory and O(1) a value.

Non-finite values never enter a statistic: they are counted apart.

>>> series = Series()
>>> for step, loss in enumerate([4.0, 3.0, float("nan"), 2.0]):
...     series.add(step, loss)
>>> series.latest, series.values.tolist(), series.nonfinite
(2.0, [4.0, 3.0, 2.0], 1)
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Steps = NDArray[np.int64]

CAPACITY = 1024
"""How many recent values of a vital are kept exactly."""
REFRESH = 8
"""How many insertions a robust baseline lives at least: sorting at each step would cost more than the gauges."""
YOUNG = 256
"""Up to here a vital changes quickly; later, four times as many steps are a small part of what a window spans."""
TINY = 1e-30


OLDEST = 512
"""How many insertions a baseline lives at most, which it does in runs of more than 131,072 steps: what it is computed
from must still be among the values that are kept."""


def lifetime(count: int) -> int:
    """How many insertions a baseline lives, when so many values are known: a small part of what came before.

    >>> [lifetime(count) for count in (100, 1000, 16_384, 16_385, 1_000_000)]
    [8, 32, 32, 64, 512]
    """
    if count < YOUNG:
        return REFRESH
    return max(4 * REFRESH, min(1 << (count - 1).bit_length() >> 9, OLDEST))


@dataclass(frozen=True, slots=True)
class Baseline:
    """A robust centre and spread (MAD scaled to a normal's σ) of the values before the current one."""

    centre: float
    spread: float
    count: int
    recent: float = 0.0
    """The median of the newest quarter: where the vital is now, when it drifts."""
    noise: float = 0.0
    """The spread about the line through the medians of both halves: what is left when a drift is taken out."""
    jitter: float = 0.0
    """The spread from one value to the next: a curve of any shape drops out, and independent noise remains."""

    def __bool__(self) -> bool:
        return self.count > 0


NO_BASELINE = Baseline(0.0, 0.0, 0)


class Outline:
    """A whole run in at most `capacity` buckets, each with its lowest, mean and highest value.

    When the buckets are full, neighbours are merged, so that no extreme ever disappears.

    >>> outline = Outline(capacity=4)
    >>> for step in range(100):
    ...     outline.add(step, 50.0 if step == 37 else 1.0)
    >>> max(bucket[3] for bucket in outline.buckets()), len(outline.buckets()) <= 5
    (50.0, True)
    """

    __slots__ = (
        "_buckets",
        "_capacity",
        "_count",
        "_high",
        "_low",
        "_means",
        "_settled",
        "_start",
        "_stride",
        "_top",
        "_total",
    )

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity = capacity + capacity % 2
        self._stride = 1
        self._buckets: list[tuple[int, float, float, float]] = []
        self._means = array("d")
        """Those of the buckets once more, side by side: going through a thousand tuples misses every cache."""
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
        """Insert finite values one by one, in one go."""
        position = 0
        while position < len(values):
            whole = min((len(values) - position) // self._stride, self._capacity - len(self._buckets))
            if self._count == 0 and whole:
                end = position + whole * self._stride
                self._fill(steps[position : end : self._stride], values[position:end].reshape(whole, self._stride))
                position = end
                continue
            end = min(position + self._stride - self._count, len(values))
            if self._count == 0:
                self._start = int(steps[position])
            part = values[position:end]
            # one after the other: `sum` rounds differently
            self._total = float(np.add.accumulate(np.concatenate(((self._total,), part)))[-1])
            self._low, self._high = min(self._low, float(part.min())), max(self._high, float(part.max()))
            self._count += part.size
            position = end
            self._close()

    def _fill(self, starts: Steps, rows: Array) -> None:
        """Append whole buckets, a row of values each."""
        if rows.shape[1] == 1:
            lows = means = highs = rows[:, 0].tolist()
        else:
            means = (np.add.accumulate(rows, axis=1)[:, -1] / rows.shape[1]).tolist()
            lows, highs = rows.min(axis=1).tolist(), rows.max(axis=1).tolist()
        self._buckets.extend(zip(starts.tolist(), lows, means, highs, strict=True))
        self._means.extend(means)
        self._top = max(self._top, *highs)
        if len(self._buckets) >= self._capacity:
            self._merge()

    def _close(self) -> None:
        if self._count >= self._stride:
            mean = self._total / self._count
            self._buckets.append((self._start, self._low, mean, self._high))
            self._means.append(mean)
            self._top = max(self._top, self._high)
            self._clear()
            if len(self._buckets) >= self._capacity:
                self._merge()

    def _merge(self) -> None:
        starts, lows, _, highs = zip(*self._buckets[::2], strict=True)
        _, other_lows, _, other_highs = zip(*self._buckets[1::2], strict=True)
        means = np.array(self._means)
        merged = ((means[::2] + means[1::2]) / 2).tolist()
        lowest, highest = map(min, lows, other_lows), map(max, highs, other_highs)
        self._buckets = list(zip(starts, lowest, merged, highest, strict=True))
        self._means = array("d", merged)
        self._stride *= 2

    @property
    def highest(self) -> float:
        """The highest value of all."""
        return max(self._top, self._high)

    def means(self) -> Array:
        """The means of `buckets`."""
        rest = [self._total / self._count] if self._count else []
        return np.array(self._means + array("d", rest))

    def settled(self) -> Array:
        """The means of the full buckets but for the latest few: the same array until sixteen more are full.

        It depends on the number of values alone, not on when it is asked for, so that what is concluded from it may
        be kept for as long as the array is the same.
        """
        full = len(self._buckets)
        size = full - full % 16 if full >= 32 else full
        stride, known, levels = self._settled
        if (stride, known) != (self._stride, size):
            levels = np.array(self._means[:size])
            self._settled = self._stride, size, levels
        return levels

    def buckets(self) -> list[tuple[int, float, float, float]]:
        """(first step, lowest, mean, highest), oldest first, the unfinished bucket included."""
        if self._count == 0:
            return list(self._buckets)
        return [*self._buckets, (self._start, self._low, self._total / self._count, self._high)]


class Series:
    """One vital: the last `CAPACITY` finite values with their steps, and the outline of the whole run."""

    __slots__ = (
        "_baselines",
        "_end",
        "_outline",
        "_outlined",
        "_steps",
        "_values",
        "count",
        "first",
        "latest",
        "memo",
        "lowest",
        "nonfinite",
        "nonfinite_steps",
        "step",
    )

    def __init__(self) -> None:
        self._steps = np.zeros(2 * CAPACITY, dtype=np.int64)
        self._values = np.zeros(2 * CAPACITY, dtype=np.float64)
        self._end = 0
        self._baselines: dict[tuple[int, bool], tuple[int, Baseline]] = {}
        self.count = 0
        """Finite values ever added."""
        self.step = -1
        """The step of the latest value, finite or not."""
        self.latest = math.nan
        """The latest value, finite or not."""
        self.first = math.nan
        """The first finite value."""
        self.lowest = math.inf
        """The lowest finite value of the whole run."""
        self.nonfinite = 0
        self.nonfinite_steps: deque[int] = deque(maxlen=64)
        self._outline = Outline()
        self._outlined = 0
        """Where the values begin that are not in the outline yet."""
        self.memo: tuple[Array, object] | None = None
        """Something concluded from `outline.settled()`, kept while that is the same array."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __len__(self) -> int:
        return min(self.count, CAPACITY)

    def add(self, step: int, value: float) -> None:
        """Insert one value."""
        self.step, self.latest = step, value
        if not math.isfinite(value):
            self.nonfinite += 1
            self.nonfinite_steps.append(step)
            return
        if self.count == 0:
            self.first = value
        if value < self.lowest:
            self.lowest = value
        end = self._end
        if end == 2 * CAPACITY:
            end = self._make_room()
        self._steps[end] = step
        self._values[end] = value
        self._end = end + 1
        self.count += 1

    def extend(self, steps: Steps, values: Array, lowest: float | None = None) -> None:
        """Insert up to `CAPACITY` finite values, the lowest of which may be known; the same as adding each."""
        size = len(values)
        if not size:
            return
        self.step, self.latest = int(steps[-1]), float(values[-1])
        if self.count == 0:
            self.first = float(values[0])
        self.lowest = min(self.lowest, float(values.min()) if lowest is None else lowest)
        end = self._end
        if end + size > 2 * CAPACITY:
            end = self._make_room()
        self._steps[end : end + size] = steps
        self._values[end : end + size] = values
        self._end = end + size
        self.count += size

    def _make_room(self) -> int:
        """Move the newest values to the front: seldom, so that insertion is O(1) and windows are contiguous views."""
        self.outline  # noqa: B018  what is moved over must be in it
        start, self._end = self._end - CAPACITY, CAPACITY
        self._steps[:CAPACITY] = self._steps[start : start + CAPACITY]
        self._values[:CAPACITY] = self._values[start : start + CAPACITY]
        self._outlined = CAPACITY
        return CAPACITY

    @property
    def outline(self) -> Outline:
        """The whole run; values go into it many at a time, when somebody looks."""
        start, end = self._outlined, self._end
        if start < end:
            self._outline.extend(self._steps[start:end], self._values[start:end])
            self._outlined = end
        return self._outline

    @property
    def steady(self) -> int:
        """How many values may come, all of them to be held against `upcoming` as it is now."""
        span = lifetime(self.count + 1)
        left = span - self.count % span
        return min(left, YOUNG - 1 - self.count) if self.count < YOUNG - 1 else left

    @property
    def values(self) -> Array:
        """The recent finite values, oldest first (a view: do not write, do not keep)."""
        return self._values[self._end - len(self) : self._end]

    @property
    def steps(self) -> Steps:
        """The steps of `values`."""
        return self._steps[self._end - len(self) : self._end]

    def last(self, n: int) -> Array:
        """At most the last n finite values, oldest first."""
        return self._values[max(self._end - n, self._end - len(self)) : self._end]

    def since(self, step: int) -> Array:
        """The kept finite values at or after a step."""
        return self.values[int(np.searchsorted(self.steps, step)) :]

    def baseline(self, window: int = 50, *, log: bool = False) -> Baseline:
        """Median and scaled MAD of up to `window` finite values before the latest one; of their logarithms if `log`.

        Recomputed every `REFRESH` insertions at a position that depends on the count alone, so that live and
        replayed runs see the same numbers whenever they ask.

        >>> series = Series()
        >>> for step, loss in enumerate([*range(40, 8, -1), 9]):
        ...     series.add(step, float(loss))
        >>> base = series.baseline()
        >>> base.count, base.centre, base.recent, round(base.spread, 1), base.noise
        (32, 24.5, 12.5, 11.9, 0.0)
        """
        return self._baseline(self.count, window, log)

    def upcoming(self, window: int = 50, *, log: bool = False) -> Baseline:
        """What `baseline` will be when the next value has come: that value has no part in it."""
        return self._baseline(self.count + 1, window, log)

    def _baseline(self, count: int, window: int, log: bool) -> Baseline:
        """The baseline that a value is held against, which is the latest of so many."""
        span = lifetime(count)
        known = (count - 1) // span * span if count else 0
        cached = self._baselines.get((window, log))
        if cached is not None and cached[0] == known:
            return cached[1]
        stop = self._end - (self.count - known)
        values = self._values[max(stop - window, self._end - len(self), 0) : stop] if known else self._values[:0]
        if values.size == 0:
            fresh = NO_BASELINE
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                fresh = _baseline(np.log(np.abs(values) + TINY) if log else values)
        self._baselines[(window, log)] = (known, fresh)
        return fresh


def _baseline(values: Array) -> Baseline:
    count = values.size
    centre = median(values)
    spread = 1.4826 * median(np.abs(values - centre))
    half = count // 2
    if half < 2:
        return Baseline(centre, spread, count, centre, spread, spread)
    left, right = median(values[:half]), median(values[half:])
    residuals = values - np.arange(count) * ((right - left) * 2 / count)
    residuals -= median(residuals)
    changes = values[1:] - values[:-1]
    return Baseline(
        centre=centre,
        spread=spread,
        count=count,
        recent=median(values[-max(8, count // 4) :]),
        noise=1.4826 * median(np.abs(residuals)),
        jitter=1.4826 / 2**0.5 * median(np.abs(changes)),
    )


def median(values: Array | Sequence[float]) -> float:
    """np.median of a row of numbers in an eighth of the time; NaN of none, and where one is NaN.

    >>> median([3.0, 1.0, 2.0, 10.0]), median([]), median([1.0, math.nan])
    (2.5, nan, nan)
    """
    ordered = np.array(values)
    ordered.sort()
    size = ordered.size
    if not size or ordered[-1] != ordered[-1]:
        return math.nan
    middle = size // 2
    return float(ordered[middle]) if size % 2 else float(ordered[middle - 1] + ordered[middle]) / 2


EMPTY = Series()
"""What an unknown vital looks like; never written to."""


class TensorSeries:
    """A per-tensor vital at the sampled steps: the last 64 rows, in the order of `Chart.tensors`."""

    def __init__(self) -> None:
        self.rows: deque[tuple[int, Array]] = deque(maxlen=64)

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def step(self) -> int:
        """The latest sampled step, -1 if there is none."""
        return self.rows[-1][0] if self.rows else -1

    @property
    def latest(self) -> Array:
        """The latest row; NaN where a tensor had no value."""
        return self.rows[-1][1] if self.rows else np.zeros(0)

    def matrix(self, n: int = 64) -> Array:
        """The last n rows of the same width as the latest, oldest first."""
        width = self.latest.size
        rows = [row for _, row in self.rows if row.size == width][-n:]
        return np.stack(rows) if rows else np.zeros((0, 0))
