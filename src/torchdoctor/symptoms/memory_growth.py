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
"""Rises of at least half the mean rise that a leak must have: an allocator takes only a few large pieces."""
NEW, OLD = 4, 6
"""Samples in a row at which memory must have risen evenly (twice as many for small rises of a process), and samples
before them at which it was constant."""
CONTRAST = 5.0
"""Multiple of the largest change before that each of these rises must exceed."""
SCATTERED = 64.0
"""Megabytes that an allocator may lose to fragmentation in a process that keeps nothing."""
FILLS = "; a replay buffer grows like this until it is full"
"""Added to the message in reinforcement learning."""
FAR = 2 * SCATTERED
"""Megabytes of growth beyond what fragmentation causes."""


@dataclass(frozen=True)
class MemoryGrowth(Detector):
    """Memory grows with every step and is not released.

    ## What it means
    Something keeps objects that should be freed. The run will end in an out-of-memory error, hours later and far from
    the line that causes it.

    ## How it is told apart
    Allocators, caches and longer batches make memory rise and level off. A leak grows at the same rate from sample to
    sample for the whole run, or starts growing at a constant rate after memory was constant for long. The memory of a
    process may drift by some tens of megabytes through fragmentation, so smaller growth must be even. Not reported are
    runs whose batches grow, and files read through a mapping (`np.memmap`), which only use free memory. Graphs of past
    steps that are still held are a leak however small, unless they are released after each epoch. In reinforcement
    learning a replay buffer grows at a constant rate until it is full: info, unless graphs are held.

    ## What to do
    Device memory: look for `total += loss` (write `loss.item()`), outputs kept in lists, `retain_graph=True`, a hidden
    state that is not detached. Host memory: lists of batches, a cache of the data set in every worker, figures that
    are not closed.

    ## How to see that it is cured
    Memory at step 1,000 is the same as at step 200.

    ## Example
    >>> print(MemoryGrowth().check(Chart.of(memory=[4e9 + 2e7 * step for step in range(200)])))
    step 50: TI03 memory-growth (warning): device memory grew from 4.66 to 7.43 GB since step 50, 19.1 MB per step
    """

    code = "TI03"
    name = "memory-growth"
    reads = ("memory", "host_memory", "facts/graph.kept")
    suggests = ("free-memory",)
    references = ("https://pytorch.org/docs/stable/notes/faq.html",)
    closes_after = 6

    samples: int = 10
    """Samples needed after the first quarter of the run."""
    steps: int = 100
    """Steps that they must span."""
    share: float = 0.05
    """Growth as a share of the earlier memory that must be exceeded,"""
    least: float = 16.0
    """and growth in megabytes."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check device memory, then process memory for linear growth, then for graphs that are still held."""
        since = chart.fact("graph.kept")
        for vital, words in (("memory", "device memory"), ("host_memory", "the process's memory")):
            found = self._growth(chart, chart[vital], words)
            if found is not None and (since is None or found.severity != "info"):
                return found
        if since is None:
            return None
        message = f"the graphs of all steps checked since step {since} are still held:"
        message += " a loss, an output or a sum of them is kept without detach()"
        return self.symptom(chart, "warning", message, confidence=0.95, since=int(since))

    def _growth(self, chart: Chart, series: Series, words: str) -> Symptom | None:
        if batches_grew(chart):
            return None
        exact = series is chart["memory"]  # process memory is measured by the system, and changes for other reasons too
        found = self._all_the_time(chart, series, words) or self._of_late(chart, series, words, 0.0 if exact else FAR)
        found = found if found or exact else self._of_late(chart, series, words, 0.0, 2 * NEW)
        if found is None or exact or not acts(chart):
            return found
        return replace(found, severity="info", message=found.message + FILLS)

    def _of_late(self, chart: Chart, series: Series, words: str, least: float, rises: int = NEW) -> Symptom | None:
        """Check for growth at a constant rate, by more than `least` megabytes, after memory was constant."""
        values, steps = series.values, series.steps
        place = _departure(steps, values, rises)
        if place is None or values[-1] - values[place] < least * MEGABYTE:
            return None
        grown, span = float(values[-1] - values[place]), int(steps[-1] - steps[place])
        if not grown > max(self.share * float(values[place]), self.least * MEGABYTE) or not span >= self.steps:
            return None
        amounts = f"{values[place] / 2**30:.3g} to {values[-1] / 2**30:.3g} GB"
        message = f"{words} was constant, then grew from {amounts} since step {steps[place]}, "
        message += f"{_amount(grown / span)} per step"
        since, value = int(steps[place]), float(values[-1])
        return self.symptom(chart, "warning", message, value=value, confidence=0.8, since=since)

    def _all_the_time(self, chart: Chart, series: Series, words: str) -> Symptom | None:
        buckets = series.outline.buckets()
        # Samples are dense at the start, where allocators fill up: the first quarter of the samples and the first
        # eighth of the steps are ignored.
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
        message = f"{words} grew from {amounts} since step {steps[0]:.0f}, {_amount(pace)} per step"
        return self.symptom(chart, severity, message, value=last, confidence=0.85, since=int(steps[0]))


def batches_grew(chart: Chart) -> bool:
    """Whether the second half of the run has larger batches than the first, which need more memory.

    >>> batches_grew(Chart.of(input_size=[64.0] * 6 + [256.0] * 4)), batches_grew(Chart.of(input_size=[64.0] * 10))
    (True, False)
    """
    sizes = chart["input_size"].values
    half = sizes.size // 2
    return half > 0 and float(sizes[half:].max()) > 1.15 * float(sizes[:half].max())


def _departure(steps: NDArray[np.int64], values: Array, rises: int = NEW) -> int | None:
    """The sample after which memory has risen at a constant rate, after it was constant; None if it has not.

    >>> values = np.array([4.0] * 12 + [4.1, 5.0, 6.0, 7.0, 8.0])
    >>> _departure(25 * np.arange(17), values)
    12
    """
    # Allocators fill up at the start, where samples are dense.
    first = max(values.size // 4, int(np.searchsorted(steps, int(steps[-1]) // 8))) if values.size else 0
    paces = np.diff(values[first:]) / np.maximum(np.diff(steps[first:]), 1)
    for new in range(rises, paces.size - OLD):
        late, before = paces[-new:], np.abs(paces[: -new - 1])  # growth may begin within the interval between
        if not float(late.min()) > 0.4 * float(late.max()):
            return None
        if float(late.min()) > CONTRAST * float(before.max()):
            return values.size - 1 - new
    return None


def _is_line(steps: Array, values: Array) -> bool:
    """Whether values rise all the time, at the same rate in every third, and not in a few large pieces."""
    rises = np.diff(values)
    worth = rises > max(0.5 * float(rises.mean()), 0.0)  # small rises between large pieces do not count
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
    """Whether the rate is about the same from sample to sample, because each step keeps the same amount.

    >>> steps = 25 * np.arange(8)
    >>> _is_even(steps, 7e4 * steps), _is_even(steps, np.cumsum([0, 0.4, 2.6, 4.4, 0.2, 1.4, 0.2, 4.4]))
    (True, False)
    """
    low, high = np.percentile(np.diff(values) / np.maximum(np.diff(steps), 1.0), (25, 75))
    return bool(low > 0.5 * high)


def _amount(size: float) -> str:
    return f"{size / MEGABYTE:.3g} MB" if size >= MEGABYTE / 10 else f"{size / 1024:.3g} kB"
