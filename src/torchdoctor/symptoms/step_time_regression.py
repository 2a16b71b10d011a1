"""TI02 step-time-regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.memory_growth import batches_grew

MORE_WORK = ("data.differentiated", "zeroing.backwards", "loop.passes")
"""Facts that change when a step has more work to do: adversarial inputs, or more passes of the model."""
STEADILY = "it grows with every step"
"""Words for steps that the run itself makes slower and slower."""
CROWDED = 1.2
"""Running threads per processor, of all processes, above which threads wait for each other."""


@dataclass(frozen=True)
class StepTimeRegression(Detector):
    """Steps take longer than they used to.

    ## What it means
    The same work takes longer. If the time *grows* with the steps, something grows with them: a list of losses that
    keeps their graphs, a history that is searched at every step, hooks that are added again and again. If it *jumped*,
    look at the machine: another process, a throttled device, a slower disk.

    ## How it is told apart
    The first steps (compilation, caches, autotuning), single slow steps and validation pauses are left out. Nothing is
    reported while batches or sequences grow. It is a warning if

    - the time grows steadily and has cost a few seconds in total;
    - the time grows steadily to `times` its start, and batches are known not to grow;
    - the time jumped, and has cost minutes in total;
    - the time jumped on a CPU-only run because the process itself does far more work: it may save or plot something at
      each step. If the model runs more often per step than before, that is intended and does not count.

    Otherwise it is info. Several jumps with constant times between them count as jumps: other processes use the same
    device. Growth on a CPU-only run counts as a jump if most of the added time is not CPU time of the process: it waits
    because the machine is busy.

    ## What to do
    Profile ten steps now and compare with ten at the start (`torch.profiler`). Log `loss.item()`, not `loss`.
    `nvidia-smi -q -d PERFORMANCE` shows whether the device is throttled.

    ## How to see that it is cured
    Seconds per step stay at the level of the first hundred steps.

    ## Example
    >>> print(StepTimeRegression().check(Chart.of(seconds=[0.1 + 0.002 * step for step in range(400)])))
    step 20: TI02 step-time-regression (warning): a step takes 0.867 s, up from 0.283 s; it grows with every step
    """

    code = "TI02"
    name = "step-time-regression"
    reads = ("seconds",)
    suggests = ("free-memory", "speed-up-data", "check-hardware")
    references = ("https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",)
    every = 50
    closes_after = 3

    skip: int = 20
    """Number of first steps that are left out: they are slow for good reasons."""
    steps: int = 128
    """Steps needed after them."""
    ratio: float = 1.6
    """Multiple of the earlier step time above which it is reported."""
    seconds: float = 3.0
    """Seconds lost in total above which steady growth is a warning; a jump needs 60 times as much, info a third."""
    times: float = 2.5
    """Multiple of the earlier step time above which steady growth is a warning however few seconds are lost."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the median step times of eight pieces of the run: the last with the first, and each with the next."""
        series = chart["seconds"]
        if series.count < self.skip + self.steps:
            return None
        means = series.outline.settled()
        if not median(series.last(32)) > 0.8 * self.ratio * median(means[: means.size // 4]):
            return None  # a cheap test first
        buckets = [bucket for bucket in series.outline.buckets() if bucket[0] >= self.skip]
        pieces = np.array_split(np.array([bucket[2] for bucket in buckets]), 8)
        levels = np.array([median(piece) for piece in pieces])
        before, now = float(levels[:2].max()), median(series.last(32))
        if not now > self.ratio * before or not float(levels[-1]) > self.ratio * before or batches_grew(chart):
            return None
        thawed = chart.facts.get("graph.frozen_share")
        if thawed is not None and thawed.step > self.skip:  # more parameters are trained than before
            return None
        growing = bool((np.diff(levels) > 0.02 * levels[:-1]).all()) and _goes_on(levels)
        count = series.count - self.skip
        lost = float((levels - levels[0]).clip(min=0).mean()) * count
        quick = np.array([np.percentile([bucket[1] for bucket in piece], 20) for piece in _split(buckets, 8)])
        steep = _is_ramp(quick, self.times) and float((quick - quick[0]).mean()) * count > self.seconds / 30
        steep = steep and chart["input_size"].count > 1  # else batches may grow unseen
        if lost < self.seconds / 3 and not steep:
            return None
        growing = (growing or steep) and _is_even([bucket[1] for bucket in buckets])
        steep = steep and growing
        idle = growing and _works_as_before(chart, self.skip, now - before)
        growing, steep = growing and not idle, steep and not idle
        busy = not growing and self._works_more(chart, quick) and lost > self.seconds / 3
        severity: Severity = "warning" if steep or busy or lost > self.seconds * (1 if growing else 60) else "info"
        message = f"a step takes {number_text(now)} s, up from {number_text(before)} s"
        if idle:
            message += "; most of the added time is not its own work: the machine is busy with something else"
        if growing:
            message += f"; {STEADILY}"
        elif busy:
            message += "; the process uses more CPU time per step"
        since = (
            self.skip if growing else buckets[sum(map(len, pieces[: int(np.argmax(levels > self.ratio * before))]))][0]
        )
        return self.symptom(chart, severity, message, value=now, limit=self.ratio * before, since=since)

    def _works_more(self, chart: Chart, quick: Array) -> bool:
        """Whether even the quickest steps take far longer, and the process uses as much more CPU time."""
        if any(name in chart.facts and chart.facts[name].step > self.skip for name in MORE_WORK):
            return False  # the extra work is intended
        if float(chart["host_load"].last(4).max(initial=0.0)) > CROWDED:
            return False  # waiting threads spin, which counts as CPU time
        early, late = _paces(chart, self.skip)
        slower = float(quick[-2:].min()) > self.times * float(quick[:2].max())
        return slower and late > 0.8 * self.times * early and chart["input_size"].count > 1


def _paces(chart: Chart, skip: int) -> tuple[float, float]:
    """CPU time of the process per step, early and late, in a CPU-only run; NaN if unknown."""
    series = chart["processor_seconds"]
    steps, values = series.steps[series.steps >= skip], series.values[series.steps >= skip]
    if steps.size < 4 or "memory" in chart:  # a device works beside the host
        return math.nan, math.nan
    paces = np.diff(values) / np.maximum(np.diff(steps), 1)
    third = max(paces.size // 3, 1)
    return median(paces[:third]), median(paces[-third:])


def _works_as_before(chart: Chart, skip: int, added: float, most: float = 1.25) -> bool:
    """Whether, in a CPU-only run, less than half of the added time is CPU time of the process: it waits.

    Other processes also raise its CPU time a little, because caches are shared.

    >>> steps = range(0, 500, 25)
    >>> chart = Chart()
    >>> for step in steps:
    ...     chart.put(step, "processor_seconds", 0.02 * step)
    >>> _works_as_before(chart, 20, added=0.1)
    True
    """
    early, late = _paces(chart, skip)
    return late < most * early or late - early < 0.5 * added


def _split(buckets: list[tuple[int, float, float, float]], parts: int) -> list[list[tuple[int, float, float, float]]]:
    """Split into consecutive parts of nearly equal size."""
    ends = [len(buckets) * part // parts for part in range(parts + 1)]
    return [buckets[start:end] for start, end in pairwise(ends)]


def _is_ramp(levels: Array, times: float) -> bool:
    """Whether levels rise steadily to more than `times` their start: nearly each above all before, in no single jump.

    The quickest steps of a piece are compared, because other work on the machine makes steps slower, never quicker.

    >>> _is_ramp(np.array([1.0, 1.3, 1.7, 1.6, 2.2, 2.6, 3.0, 3.5]), 2.5), _is_ramp(np.repeat([1.0, 3.0], 4), 2.5)
    (True, False)
    """
    if not float(levels[-1]) > times * float(levels[:2].max()) or not _goes_on(levels):
        return False
    values = levels.tolist()
    above = [late > early for number, late in enumerate(values) for early in values[:number]]
    return sum(above) >= 0.9 * len(above) and float(np.diff(levels).max()) < 0.5 * float(levels[-1] - levels[0])


def _is_even(times: Sequence[float], pieces: int = 24, share: float = 0.36) -> bool:
    """Whether many small rises made steps slower, and not a few large ones, as when other processes start.

    A rise counts only as far as no later piece is below it: what grows with every step does not shrink again.

    >>> line, stairs = np.linspace(1.0, 4.0, 240), np.repeat([1.0, 2.0, 3.0, 4.0], 60)
    >>> _is_even(line.tolist()), _is_even(stairs.tolist())
    (True, False)
    """
    count = min(pieces, len(times) // 4)
    if count < 8:
        return True  # too few steps to tell
    levels = np.array([np.percentile(piece, 25) for piece in np.array_split(np.array(times), count)])
    lasting = np.minimum.accumulate(levels[::-1])[::-1]
    rises = np.sort(np.diff(lasting))[::-1]
    most = np.searchsorted(np.cumsum(rises), 0.8 * float(lasting[-1] - lasting[0])) + 1
    return int(most) > share * count


def _goes_on(levels: Array) -> bool:
    """Whether the last of eight levels still rise; other work on the machine slows steps down once, not more and more.

    >>> _goes_on(np.arange(1.0, 9.0)), _goes_on(np.array([1.0, 1.4, 2.4, 2.8, 3.5, 3.3, 3.4, 3.6]))
    (True, False)
    """
    return float(levels[-2:].mean() - levels[3:5].mean()) > 0.25 * float(levels[-1] - levels[0])
