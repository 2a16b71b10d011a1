"""TI03 memory-growth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom
from torchdoctor.series import Array, Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import acts

MEGABYTE = 2**20
LUMPS = 6
"""Times that memory must have risen by half its pace or more: an allocator takes a few large pieces, and is content."""
NEW, OLD = 4, 6
"""Samples in a row at which memory must have risen alike, twice as many where a process's has not risen far; and those
before at which it stood still, at the least."""
CONTRAST = 5.0
"""Times the largest change of that time that each of these rises must be."""
SCATTERED = 64.0
"""Megabytes that an allocator may lose between pieces in use, now and then, in a process that keeps nothing."""
FILLS = "; a buffer of experience grows like this until it is full"
"""What is added of a process that collects its own experience."""
FAR = 2 * SCATTERED
"""Megabytes by which no process grows step by step that keeps nothing."""


@dataclass(frozen=True)
class MemoryGrowth(Detector):
    """Memory grows with every step and is not given back.

    ## What it means
    Something is kept that should be let go. Left alone the run ends in an out-of-memory error, hours later and far
    from the line that is at fault.

    ## How it is told apart
    Allocators, caches and longer batches make memory rise and level off; a leak rises at the same pace in the second
    half of the run as in the first, sample after sample; one that begins late rises at one pace where memory had stood
    still for long. A process, whose allocator scatters some tens of megabytes by and by, must rise by as much each
    time until it is more than that. While batches grow, nothing is said; files that are read
    through a mapping (`np.memmap`) fill memory that is free, and do not count. Whether the graphs of
    steps that are over are still held is looked at as well: that is a leak, however small it is so far. What is
    collected for an epoch and then let go is not. A process that collects its own experience (a replay buffer) grows
    at one pace until its buffer is full: a note, unless graphs are held.

    ## What to do
    Device memory: look for `total += loss` (write `loss.item()`), outputs kept in lists, `retain_graph=True`, a hidden
    state that is not detached. Host memory: lists of batches, caches of a data set in every worker, figures that
    are not closed.

    ## How to see that it is cured
    Memory of step 1,000 is that of step 200.

    ## Example
    >>> print(MemoryGrowth().check(Chart.of(memory=[4e9 + 2e7 * step for step in range(200)])))
    step 50: TI03 memory-growth (warning): device memory grew from 4.66 to 7.43 GB since step 50, 19.1 MB a step
    """

    code = "TI03"
    name = "memory-growth"
    reads = ("memory", "host_memory", "facts/graph.kept")
    suggests = ("free-memory",)
    references = ("https://pytorch.org/docs/stable/notes/faq.html",)
    closes_after = 6

    samples: int = 10
    """Samples that must be known after the first quarter."""
    steps: int = 100
    """Steps that they must span."""
    share: float = 0.05
    """Share of itself by which memory must have grown."""
    least: float = 16.0
    """Megabytes by which it must have grown."""

    def check(self, chart: Chart) -> Symptom | None:
        """The first of both memories that grows like a line; else graphs that nobody lets go."""
        since = chart.fact("graph.kept")
        for vital, words in (("memory", "device memory"), ("host_memory", "the process's memory")):
            found = self._growth(chart, chart[vital], words)
            if found is not None and (since is None or found.severity != "info"):
                return found
        if since is None:
            return None
        message = f"the graphs of all steps looked at since step {since} are still held:"
        message += " a loss, an output or a sum of them is kept with what it was made of"
        return self.symptom(chart, "warning", message, confidence=0.95, since=int(since))

    def _growth(self, chart: Chart, series: Series, words: str) -> Symptom | None:
        if batches_grew(chart):
            return None
        exact = series is chart["memory"]  # of a process it is what the system counts, and other things go on there
        found = self._all_the_time(chart, series, words) or self._of_late(chart, series, words, 0.0 if exact else FAR)
        found = found if found or exact else self._of_late(chart, series, words, 0.0, 2 * NEW)
        if found is None or exact or not acts(chart):
            return found
        return replace(found, severity="info", message=found.message + FILLS)

    def _of_late(self, chart: Chart, series: Series, words: str, least: float, rises: int = NEW) -> Symptom | None:
        """Memory stood still, and has risen at one pace since, by so many megabytes: a few samples will do."""
        values, steps = series.values, series.steps
        place = _departure(steps, values, rises)
        if place is None or values[-1] - values[place] < least * MEGABYTE:
            return None
        grown, span = float(values[-1] - values[place]), int(steps[-1] - steps[place])
        if not grown > max(self.share * float(values[place]), self.least * MEGABYTE) or not span >= self.steps:
            return None
        amounts = f"{values[place] / 2**30:.3g} to {values[-1] / 2**30:.3g} GB"
        message = f"{words} had stood still and grew from {amounts} since step {steps[place]}, "
        message += f"{_amount(grown / span)} a step"
        since, value = int(steps[place]), float(values[-1])
        return self.symptom(chart, "warning", message, value=value, confidence=0.8, since=since)

    def _all_the_time(self, chart: Chart, series: Series, words: str) -> Symptom | None:
        buckets = series.outline.buckets()
        # Samples are dense at the start, where allocators fill: the quarter that is left out is one of samples and
        # nearly one of steps.
        buckets = [bucket for bucket in buckets[len(buckets) // 4 :] if bucket[0] >= series.step // 8]
        if len(buckets) < self.samples:
            return None
        steps, values = np.array([item[0] for item in buckets], dtype=float), np.array([item[2] for item in buckets])
        first, last = float(values[0]), float(values[-1])
        grown, span = last - first, float(steps[-1] - steps[0])
        enough = grown > max(self.share * first, self.least * MEGABYTE) and span >= self.steps
        if not enough or not _is_line(steps, values):
            return None
        if words.startswith("the process") and grown < SCATTERED * MEGABYTE and not _is_even(steps, values):
            return None
        pace = grown / max(span, 1.0)
        free = chart["gpu_memory_free"].latest if words.startswith("device") else float("inf")
        severity: Severity = "critical" if free < pace * chart.step / 10 else "warning"
        amounts = f"{first / 2**30:.3g} to {last / 2**30:.3g} GB"
        message = f"{words} grew from {amounts} since step {steps[0]:.0f}, {_amount(pace)} a step"
        return self.symptom(chart, severity, message, value=last, confidence=0.85, since=int(steps[0]))


def batches_grew(chart: Chart) -> bool:
    """Whether the batches of the second half of the run are larger than those of the first: they take more, by design.

    >>> batches_grew(Chart.of(input_size=[64.0] * 6 + [256.0] * 4)), batches_grew(Chart.of(input_size=[64.0] * 10))
    (True, False)
    """
    sizes = chart["input_size"].values
    half = sizes.size // 2
    return half > 0 and float(sizes[half:].max()) > 1.15 * float(sizes[:half].max())


def _departure(steps: NDArray[np.int64], values: Array, rises: int = NEW) -> int | None:
    """The sample after which memory has risen at one pace, where it had stood still before; None where it has not.

    >>> values = np.array([4.0] * 12 + [4.1, 5.0, 6.0, 7.0, 8.0])
    >>> _departure(25 * np.arange(17), values)
    12
    """
    # Allocators fill at the start, where samples are dense.
    first = max(values.size // 4, int(np.searchsorted(steps, int(steps[-1]) // 8))) if values.size else 0
    paces = np.diff(values[first:]) / np.maximum(np.diff(steps[first:]), 1)
    for new in range(rises, paces.size - OLD):
        late, before = paces[-new:], np.abs(paces[: -new - 1])  # it may have begun in the midst of the one between
        if not float(late.min()) > 0.4 * float(late.max()):
            return None
        if float(late.min()) > CONTRAST * float(before.max()):
            return values.size - 1 - new
    return None


def _is_line(steps: Array, values: Array) -> bool:
    """Whether values rise all the time, at the same pace in every third, and not in a few lumps as allocators take."""
    rises = np.diff(values)
    worth = rises > max(0.5 * float(rises.mean()), 0.0)  # crumbs between the pieces are no pace
    if float((rises >= 0).mean()) < 0.8 or int(worth.sum()) < LUMPS or not np.ptp(steps) > 0:
        return False
    early, middle, late = (median(part) for part in np.array_split(values, 3))
    if not min(middle - early, late - middle) > 0.1 * float(values[-1] - values[0]):
        return False
    thirds = [
        float(part[-1] - part[0]) / max(float(at[-1] - at[0]), 1.0)
        for part, at in zip(np.array_split(values, 3), np.array_split(steps, 3), strict=True)
    ]
    whole = float(values[-1] - values[0]) / float(np.ptp(steps))
    return min(thirds) > 0.4 * whole


def _is_even(steps: Array, values: Array) -> bool:
    """Whether the pace is about the same from sample to sample: what is kept at each step is as much each time.

    >>> steps = 25 * np.arange(8)
    >>> _is_even(steps, 7e4 * steps), _is_even(steps, np.cumsum([0, 0.4, 2.6, 4.4, 0.2, 1.4, 0.2, 4.4]))
    (True, False)
    """
    low, high = np.percentile(np.diff(values) / np.maximum(np.diff(steps), 1.0), (25, 75))
    return bool(low > 0.5 * high)


def _amount(size: float) -> str:
    return f"{size / MEGABYTE:.3g} MB" if size >= MEGABYTE / 10 else f"{size / 1024:.3g} kB"
