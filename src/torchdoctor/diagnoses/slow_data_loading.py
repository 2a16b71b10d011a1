"""slow-data-loading."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.series import median


class SlowDataLoading(Cause):
    """Data loading is slower than training, so the device waits for batches.

    ## What it is
    Reading, decoding or augmenting takes longer than the step itself, and the device waits for it: too few workers, a
    slow or remote disk, many small files, or preprocessing that could be done once, ahead of time.

    ## How to confirm it
    Time a loop over the loader alone: `for batch in loader: pass`. If that is as slow as training, the loader is the
    bottleneck. The same holds if training becomes fast when one batch is reused at every step.

    ## What to change
    First use more workers, pinned memory and prefetching. Then decode and resize once, ahead of time. Then use fewer,
    larger files.

    ## How to see it cured
    Waiting for data takes less than a tenth of a step, and the device is busy.

    ## When to stop
    Stop when the loop over the loader alone is three times as fast as training.
    """

    name = "slow-data-loading"
    explains = ("data-starvation", "step-time-regression")
    prior = 0.0
    suggests = ("speed-up-data",)
    references = ("https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The share of a step spent waiting for data, and how busy the device is."""
        share = share_waited(chart)
        if share > 1.1:  # a wait is part of its step
            yield Evidence(-2.0, "the waits that were measured are longer than most steps: they are not typical")
        elif not math.isnan(share):
            if share > 0.5:
                weight = 3.0 if problem.grave(*self.explains) else 1.0  # as info: something else may take the time
                text = f"{100 * min(share, 1.0):.0f} % of each step pass before its forward pass begins"
                yield Evidence(weight, text)
            elif share < 0.2:
                yield Evidence(-4.0, f"only {100 * share:.0f} % of each step are spent waiting for data")
        elif not problem.has("data-starvation"):
            yield Evidence(-2.0, "the time spent waiting for data was not measured")
        busy = chart["gpu_utilisation"].last(8)
        if busy.size:
            level = median(busy)
            yield Evidence(0.8 if level < 50 else -0.8, f"the device is {level:.0f} % busy")


def share_waited(chart: Chart, samples: int = 4) -> float:
    """The median of the latest waits for data, as a share of the median step since the first of them; or NaN.

    Waits are known for sampled steps only, which may lie far apart: steps of the same stretch of the run are compared.

    >>> share_waited(Chart.of(seconds=[0.5] * 99, data_seconds=[0.25] * 99))
    0.5
    """
    waits = chart["data_seconds"]
    known = waits.last(samples)
    passed = chart["seconds"].since(int(waits.steps[-known.size])) if known.size else known
    return median(known) / max(median(passed), 1e-12) if passed.size else math.nan
