"""repeated-batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.symptoms.batch_anomaly import (
    BatchAnomaly,
    copied_share,
    has_few_samples,
    has_same_samples,
    same_at_last,
)


class RepeatedBatch(Cause):
    """The loop trains on the same batch again and again.

    ## What it is
    ``next(iter(loader))`` inside of the loop, a data set whose ``__getitem__`` ignores its index, a seed that is set at
    each step, or a test with one batch that was never taken out.

    ## How to confirm it
    Print ``x.sum()`` for ten steps in a row: it must change. If the data set is no larger than the batch, it is the
    data set, and nothing is wrong.

    ## What to change
    ``for x, y in loader:`` around the step; no seeds inside of the loop.

    ## How to see it cured
    The checksum changes from step to step; the training loss falls more slowly, and validation falls with it.
    """

    name = "repeated-batch"
    explains = ("batch-anomaly", "overfitting", "suspiciously-low-loss", "validation-anomaly")
    prior = -3.0
    suggests = ("shuffle-data", "more-data")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the checksums of the inputs agree."""
        sums = chart["input_checksum"].last(16)
        if sums.size < 4:
            return
        different = int(np.unique(sums).size)
        size = chart.context.get("batch_size")
        grave = problem.grave(*problem.names)
        if different == 1 and grave and isinstance(size, int) and size > BatchAnomaly.small:
            weight = 1.0 if problem.grave(*self.explains) else 0.0
            yield Evidence(weight, f"each step is given the same {size} samples: all there are, it seems")
        elif different == 1:
            weight = 7.0 if grave else 2.5  # a note says that these may be all the data there are
            yield Evidence(weight, f"the inputs of {sums.size} batches looked at are the same {size} samples")
        elif (same := same_at_last(chart["input_checksum"])) > 2 and problem.grave("batch-anomaly"):
            yield Evidence(7.0, f"the last {same} batches looked at are the same {size} samples")
        elif different <= BatchAnomaly.few and sums.size >= 2 * BatchAnomaly.few and problem.grave("batch-anomaly"):
            yield Evidence(5.0, f"{sums.size} batches looked at were {different} different ones, of {size} samples")
        elif has_same_samples(chart):
            yield Evidence(7.0, f"the batches looked at hold the same {size} samples, in another order")
        elif problem.grave("batch-anomaly") and copied_share(chart) < BatchAnomaly.copies:
            yield Evidence(6.0, f"{copied_share(chart):.0%} of the samples of a batch are no copies of others in it")
        elif problem.grave("batch-anomaly") and has_few_samples(chart):
            yield Evidence(5.0, f"no sample was new after the first few batches looked at, of {size} samples")
        elif different > sums.size // 2:
            yield Evidence(-6.0, f"{different} of {sums.size} batches looked at are different ones")


def are_the_same_batches(chart: Chart, problem: Problem) -> bool:
    """Whether the batches looked at are a few, each made up as before: a data set that is small is mixed anew."""
    sums, size = chart["input_checksum"].last(16), chart.context.get("batch_size")
    different = int(np.unique(sums).size)
    if sums.size < 2 * BatchAnomaly.few or not problem.grave("batch-anomaly"):
        return False
    all_there_are = different == 1 and isinstance(size, int) and size > BatchAnomaly.small
    return different <= BatchAnomaly.few and not all_there_are
