"""slow-data-loading."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.series import median


class SlowDataLoading(Cause):
    """Batches are made more slowly than they are used.

    ## What it is
    Reading, decoding or augmenting takes longer than the step itself, and happens while the device waits: too few
    workers, a slow or remote disk, many small files, or work that could be done once.

    ## How to confirm it
    Time a loop over the loader alone: `for batch in loader: pass`. If that is as slow as training, it is the loader.
    Feed one batch again and again: if training is fast then, it is the loader as well.

    ## What to change
    Workers, pinned memory and prefetching first; then decode and resize once, ahead of time; then fewer, larger files.

    ## How to see it cured
    The wait between two steps is under a tenth of the step, and the device is busy.

    ## When to stop
    When the loop over the loader alone is three times as fast as training.
    """

    name = "slow-data-loading"
    explains = ("data-starvation", "step-time-regression")
    prior = 0.0
    suggests = ("speed-up-data",)
    references = ("https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The wait as a share of the step, and how busy the device is."""
        wait, passed = chart["data_seconds"].last(4), chart["seconds"].last(100)
        if wait.size and passed.size:
            share = median(wait) / max(median(passed), 1e-12)
            if share > 0.5:
                weight = 3.0 if problem.grave(*self.explains) else 1.0  # a note: something else may happen there
                yield Evidence(weight, f"{100 * share:.0f} % of a step pass before its forward")
            elif share < 0.2:
                yield Evidence(-4.0, f"only {100 * share:.0f} % of a step are spent on data")
        elif not problem.has("data-starvation"):
            yield Evidence(-2.0, "the time spent on data is not known")
        busy = chart["gpu_utilisation"].last(8)
        if busy.size:
            level = median(busy)
            yield Evidence(0.8 if level < 50 else -0.8, f"the device is {level:.0f} % busy")
