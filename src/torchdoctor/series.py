"""One vital over a run: recent values exactly, the whole run in outline, in constant memory and O(1) time per value.

Non-finite values never enter a statistic; they are counted separately.

>>> series = Series()
>>> for step, loss in enumerate([4.0, 3.0, float("nan"), 2.0]):
...     series.add(step, loss)
>>> series.latest, series.values.tolist(), series.nonfinite
(2.0, [4.0, 3.0, 2.0], 1)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.outline import Outline

Array = NDArray[np.float64]
Steps = NDArray[np.int64]

CAPACITY = 1024
"""Number of recent values of a vital that are kept exactly."""
REFRESH = 8
"""Minimum number of insertions for which a baseline is reused: sorting at every step would be too expensive."""
YOUNG = 256
"""Number of values from which a baseline is reused four times as long: vitals change quickly only at first."""
MATURE = 1024
"""Number of values above which a baseline is reused for a whole block of steps, which is then judged at once."""
TINY = 1e-30


OLDEST = 512
"""Maximum number of insertions for which a baseline is reused, reached after 131,072 values: the values that it is
computed from must still be stored."""


def lifetime(count: int) -> int:
    """The number of insertions for which a baseline is reused, given the count of values: a small share of it.

    >>> [lifetime(count) for count in (100, 1024, 1025, 32_768, 32_769, 1_000_000)]
    [8, 32, 64, 64, 128, 512]
    """
    if count < YOUNG:
        return REFRESH
    if count <= MATURE:
        return 4 * REFRESH
    return max(8 * REFRESH, min(1 << (count - 1).bit_length() >> 9, OLDEST))


@dataclass(frozen=True, slots=True)
class Baseline:
    """Robust center and spread (MAD, scaled to the σ of a normal distribution) of the values before the current one."""

    centre: float
    spread: float
    count: int
    recent: float = 0.0
    """The median of the latest quarter: the current level of a drifting vital."""
    noise: float = 0.0
    """The spread around the line through the medians of both halves: the spread without a drift."""
    jitter: float = 0.0
    """The spread of differences between neighboring values: independent noise without any trend."""

    def __bool__(self) -> bool:
        return self.count > 0


NO_BASELINE = Baseline(0.0, 0.0, 0)


class Series:
    """One vital: the last `CAPACITY` finite values with their steps, and the outline of the whole run."""

    __slots__ = (
        "_baselines",
        "_end",
        "_derived",
        "_outline",
        "_outlined",
        "_steps",
        "_values",
        "_written",
        "broken_since",
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
        self._end = self._written = 0
        """The end of the visible values, and the end of the stored ones."""
        self._derived: dict[Callable[[Array], Array], tuple[int, Array]] = {}
        self._baselines: dict[tuple[int, bool], tuple[int, int, Baseline]] = {}
        """For each window, the range of counts for which a baseline is valid, and the baseline."""
        self.count = 0
        """Number of finite values ever added."""
        self.step = -1
        """The step of the latest value, finite or not."""
        self.latest = math.nan
        """The latest value, finite or not."""
        self.first = math.nan
        """The first finite value."""
        self.lowest = math.inf
        """The lowest finite value of the whole run."""
        self.nonfinite = 0
        self.broken_since = -1
        """The first step of the latest run of values that are not finite; -1 if all are."""
        self.nonfinite_steps: deque[int] = deque(maxlen=64)
        self._outline = Outline()
        self._outlined = 0
        """The start of the values that are not yet in the outline."""
        self.memo: tuple[Array, object] | None = None
        """A result computed from `outline.settled()`, valid while that is the same array."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __len__(self) -> int:
        return min(self.count, CAPACITY)

    def add(self, step: int, value: float) -> None:
        """Insert one value; a smaller step than the latest is raised to it, so that steps can be searched."""
        if step < self.step:
            step = self.step
        before, self.step, self.latest = self.latest, step, value
        if not math.isfinite(value):
            if math.isfinite(before) or not self.nonfinite:
                self.broken_since = step
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
        elif end < self._written:
            self._forget(end)
        self._steps[end] = step
        self._values[end] = value
        self._end = self._written = end + 1
        self.count += 1

    def extend(self, steps: Steps, values: Array, lowest: float | None = None) -> None:
        """Insert up to `CAPACITY` finite values, the same as adding each; `lowest` is their lowest, if known."""
        size = values.size
        if not size:
            return
        if steps.item(0) < self.step:
            steps = np.maximum(steps, self.step)
        self.step, self.latest = steps.item(-1), values.item(-1)
        if self.count == 0:
            self.first = values.item(0)
        if lowest is None:
            lowest = values.min().item()
        if lowest < self.lowest:
            self.lowest = lowest
        self._end = self._write(steps, values)
        self.count += size

    def _write(self, steps: Steps, values: Array) -> int:
        """Store finite values after the visible ones; returns their end."""
        end, size = self._end, values.size
        if end + size > 2 * CAPACITY:
            end = self._make_room()
        elif end < self._written:
            self._forget(end)
        self._written = end + size
        self._steps[end : self._written] = steps
        self._values[end : self._written] = values
        return self._written

    def _forget(self, end: int) -> None:
        """Forget derived numbers of stored values that never became visible."""
        self._derived = {key: (min(known, end), column) for key, (known, column) in self._derived.items()}

    def _make_room(self) -> int:
        """Move the newest values to the front; this is rare, so insertion is O(1) and windows are contiguous views."""
        self.outline  # noqa: B018  values about to be overwritten must be in it
        start, self._end = self._end - CAPACITY, CAPACITY
        self._steps[:CAPACITY] = self._steps[start : start + CAPACITY]
        self._values[:CAPACITY] = self._values[start : start + CAPACITY]
        self._outlined = self._written = CAPACITY
        self._derived.clear()
        return CAPACITY

    @property
    def outline(self) -> Outline:
        """The outline of the whole run; pending values enter it on access."""
        start, end = self._outlined, self._end
        if start < end:
            self._outline.extend(self._steps[start:end], self._values[start:end])
            self._outlined = end
        return self._outline

    @property
    def steady(self) -> int:
        """How many coming values are compared with the present `upcoming` baseline."""
        span = lifetime(self.count + 1)
        left = span - self.count % span
        return min(left, YOUNG - 1 - self.count) if self.count < YOUNG - 1 else left

    @property
    def values(self) -> Array:
        """The recent finite values, oldest first (a view: do not modify or keep it)."""
        return self._values[self._end - len(self) : self._end]

    @property
    def steps(self) -> Steps:
        """The steps of `values`."""
        return self._steps[self._end - len(self) : self._end]

    def last(self, n: int) -> Array:
        """At most the last n finite values, oldest first."""
        return self._values[max(self._end - n, self._end - len(self)) : self._end]

    def derived(self, function: Callable[[Array], Array], reach: int) -> Array:
        """A number for each of `values`, computed from it and the `reach` values before; cached."""
        known, column = self._derived.get(function, (-1, self._values))
        if known < 0:
            known, column = 0, np.zeros(2 * CAPACITY)
        if known < self._end:
            start = max(known - reach, 0)
            column[known : self._written] = function(self._values[start : self._written])[known - start :]
            self._derived[function] = self._written, column
        return column[self._end - len(self) : self._end]

    def since(self, step: int) -> Array:
        """The stored finite values at or after a step."""
        return self.values[int(np.searchsorted(self.steps, step)) :]

    def baseline(self, window: int = 50, *, log: bool = False) -> Baseline:
        """Median and scaled MAD of up to `window` finite values before the latest one; of their logarithms if `log`.

        Recomputed after `lifetime` insertions, at positions that depend on the count alone, so that live and replayed
        runs get the same numbers whenever they ask.

        >>> series = Series()
        >>> for step, loss in enumerate([*range(40, 8, -1), 9]):
        ...     series.add(step, float(loss))
        >>> base = series.baseline()
        >>> base.count, base.centre, base.recent, round(base.spread, 1), base.noise
        (32, 24.5, 12.5, 11.9, 0.0)
        """
        return self._baseline(self.count, window, log)

    def upcoming(self, window: int = 50, *, log: bool = False) -> Baseline:
        """The `baseline` after the next value, which does not depend on that value."""
        return self._baseline(self.count + 1, window, log)

    def _baseline(self, count: int, window: int, log: bool) -> Baseline:
        """The baseline with which the value number `count` is compared."""
        cached = self._baselines.get((window, log))
        if cached is not None and cached[0] < count <= cached[1]:
            return cached[2]
        span = lifetime(count)
        known = (count - 1) // span * span if count else 0
        last = known + span if count >= YOUNG else min(known + span, YOUNG - 1)
        stop = self._end - (self.count - known)
        values = self._values[max(stop - window, self._end - len(self), 0) : stop] if known else self._values[:0]
        if values.size == 0:
            fresh = NO_BASELINE
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                fresh = _baseline(np.log(np.abs(values) + TINY) if log else values)
        self._baselines[(window, log)] = (known, last, fresh)
        return fresh


class Coming:
    """Coming values of a series: stored all at once, then made visible part by part.

    >>> series = Series()
    >>> coming = Coming(series, np.arange(3), np.array([4.0, math.nan, 2.0]))
    >>> coming.let_in(2)
    >>> series.values.tolist(), series.nonfinite, series.step
    ([4.0], 1, 1)
    """

    __slots__ = ("_come", "_counts", "_end", "_lowest", "_series", "_steps", "_values")

    def __init__(self, series: Series, steps: Steps, values: Array) -> None:
        if steps.item(0) < series.step:
            steps = np.maximum(steps, series.step)
        finite = np.isfinite(values)
        self._counts: list[int] | None = None
        kept = values
        if not finite.all():
            self._counts = np.cumsum(finite).tolist()
            steps_kept, kept = steps[finite], values[finite]
        else:
            steps_kept = steps
        series._end = series._write(steps_kept, kept) - len(kept)
        self._series, self._end, self._come = series, series._end, 0
        self._steps: list[int] = steps.tolist()
        self._values: list[float] = values.tolist()
        self._lowest: list[float] = np.minimum.accumulate(kept).tolist()

    def let_in(self, size: int) -> None:
        """Make the first `size` values visible; never fewer than before."""
        series, counts = self._series, self._counts
        known = size if counts is None else counts[size - 1]
        here = self._end + known
        if here > series._end:
            if series.count == 0:
                series.first = float(series._values[self._end])
            series.count += here - series._end
            series._end = here
            series.lowest = min(series.lowest, self._lowest[known - 1])
        if counts is not None:
            came = range(self._come, size)
            missing = [self._steps[place] for place in came if not math.isfinite(self._values[place])]
            before = series.latest
            for place in came if missing else ():
                if not math.isfinite(self._values[place]) and (math.isfinite(before) or series.broken_since < 0):
                    series.broken_since = self._steps[place]
                before = self._values[place]
            series.nonfinite += len(missing)
            series.nonfinite_steps.extend(missing)
        series.step, series.latest = self._steps[size - 1], self._values[size - 1]
        self._come = size


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
    """The same as np.median for one row of numbers, eight times as fast; NaN if there are none or one is NaN.

    >>> median([3.0, 1.0, 2.0, 10.0]), median([]), median([1.0, math.nan])
    (2.5, nan, nan)
    """
    ordered = np.array(values)
    ordered.sort()
    size = ordered.size
    if not size or ordered[-1] != ordered[-1]:
        return math.nan
    middle = size // 2
    return float(ordered[middle]) if size % 2 else float(ordered[middle - 1] / 2 + ordered[middle] / 2)


def scatter(values: Array) -> float:
    """The median absolute deviation, scaled to the σ of a normal distribution.

    >>> round(scatter(np.array([1.0, 2.0, 3.0, 4.0, 100.0])), 2)
    1.48
    """
    return 1.4826 * median(np.abs(values - median(values)))


EMPTY = Series()
"""The series of an unknown vital; never written to."""


class TensorSeries:
    """A per-tensor vital at the sampled steps: the last 64 rows, in the order of `Chart.tensors`."""

    def __init__(self) -> None:
        self.rows: deque[tuple[int, Array]] = deque(maxlen=64)
        self._stacked: tuple[tuple[int, Array], Array] | None = None
        """The latest row when the rows were last stacked, and the stack: several detectors ask for the same one."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def step(self) -> int:
        """The latest sampled step, -1 if there is none."""
        return self.rows[-1][0] if self.rows else -1

    @property
    def latest(self) -> Array:
        """The latest row; NaN if a tensor had no value."""
        return self.rows[-1][1] if self.rows else np.zeros(0)

    def matrix(self, n: int = 64) -> Array:
        """The last n rows with the width of the latest row, oldest first; not to be written to."""
        if not self.rows:
            return np.zeros((0, 0))
        latest = self.rows[-1]
        if self._stacked is None or self._stacked[0] is not latest:
            stack = np.stack([row for _, row in self.rows if row.size == latest[1].size])
            stack.flags.writeable = False
            self._stacked = latest, stack
        return self._stacked[1][-n:]
