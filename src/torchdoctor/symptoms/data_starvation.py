"""TI01 data-starvation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class DataStarvation(Detector):
    """Training waits for data most of the time.

    ## What it means
    The device is idle while batches are read, decoded or augmented. The data pipeline limits the speed of the run, not
    the device.

    ## How it is told apart
    The wait is the time between the end of a step and the next forward pass. Ignored are the first steps, in which
    workers start, single pauses (a checkpoint, the end of an epoch), and waits below 10 ms. On a machine that is also
    busy with something else, single steps are slow: the wait must be there at each sample, and quick steps must be
    rare. A wait that begins in the middle of the run must make steps longer. It is info if there are several optimizers
    (one's work may look like a wait of another), and for a short wait in which the process itself works (a teacher's
    forward pass, a simulated game).

    ## What to do
    `DataLoader(num_workers=8, pin_memory=True, persistent_workers=True, prefetch_factor=4)`; move decoding and
    resizing out of the loop; fewer, larger files; `.to(device, non_blocking=True)`.

    ## How to see that it is cured
    The wait is below a tenth of a step, and the device is busy.

    ## Example
    >>> print(DataStarvation().check(Chart.of(seconds=[0.5] * 40, data_seconds=[0.4] * 40)))
    step 39: TI01 data-starvation (warning): 80 % of the time is spent waiting for data: 0.4 s of 0.5 s per step
    """

    code = "TI01"
    name = "data-starvation"
    reads = ("data_seconds",)
    suggests = ("speed-up-data",)
    references = ("https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html", "https://arxiv.org/abs/2007.06775")
    closes_after = 8

    skip: int = 10
    """First steps that are ignored, because workers start."""
    samples: int = 4
    """Later steps at which the wait must be known."""
    share: float = 0.5
    """Share of a step spent waiting above which it is reported."""
    busy: float = 80.0
    """Device utilization in percent above which the device is not starved, whatever it computes."""
    least: float = 0.01
    """Seconds per step below which a wait is ignored: 100,000 steps lose a quarter of an hour."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the smallest of the recent waits with the median time of the steps since then."""
        waits, times = chart["data_seconds"], chart["seconds"]
        timed = np.isin(waits.steps, times.steps)  # steps after a validation have no time
        timed &= waits.steps >= self.skip
        known = waits.values[timed]
        # A wait that begins late must be seen three times; one from the start, more often.
        begins = known.size >= self.samples + 2 and float(known[-3:].min()) > 5 * median(known[:-3])
        known = known[-3 if begins else -self.samples :]
        if not begins and known.size < self.samples:
            return None
        first = int(waits.steps[timed][-known.size])
        # On a busy machine, pauses may fall on some of the samples but not on all, and other steps are quick.
        wait, taken = float(known.min()), np.sort(times.since(first))
        passed, quick = float(taken[taken.size // 2]), float(taken[taken.size // 5])
        if not quick > 0.7 * wait or (begins and not passed > 1.6 * median(times.values[: -taken.size])):
            return None
        # A wait is part of its step. If it is longer, something else happens at the sampled steps.
        if not wait > self.least or not self.share * passed < wait < 1.1 * passed:
            return None
        utilisation = chart["gpu_utilisation"]
        if utilisation and median(utilisation.last(8)) > self.busy:  # the device works, if not on the forward pass
            return None
        # With several optimizers, the backward pass of one may be mistaken for a wait.
        own = len(chart.context.get("optimizer") or ()) > 1 or (wait < 2 * self.least and _works(chart, wait, passed))
        severity: Severity = "info" if own else "warning"
        message = (
            f"{share_text(min(wait / passed, 1))} of the time is spent waiting for data: {number_text(wait)} s of "
            f"{number_text(passed)} s per step"
        )
        if utilisation:
            message += f"; the device is {number_text(median(utilisation.last(8)))} % busy"
        return self.symptom(chart, severity, message, value=wait / passed, limit=self.share)


def _works(chart: Chart, wait: float, passed: float, samples: int = 5) -> bool:
    """Whether a CPU run works during the wait too: it uses more processor time than the rest of the step has.

    >>> chart = Chart.of(processor_seconds=[0.006 * step for step in range(6)])
    >>> _works(chart, wait=0.012, passed=0.014), _works(chart, wait=0.012, passed=0.018)
    (True, False)
    """
    worked = chart["processor_seconds"]
    steps, values = worked.steps[-samples:], worked.values[-samples:]
    if steps.size < samples or "memory" in chart:
        return False
    pace = median(np.diff(values) / np.maximum(np.diff(steps), 1))
    return pace - (passed - wait) > 0.25 * wait
