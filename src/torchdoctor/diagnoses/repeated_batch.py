"""repeated-batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import share_text
from torchdoctor.symptoms.batch_anomaly import (
    BatchAnomaly,
    copied_share,
    has_few_samples,
    has_same_samples,
    same_at_last,
)


class RepeatedBatch(Cause):
    """The loop trains on the same batch, or the same few, over and over.

    ## What it is
    ``next(iter(loader))`` inside the loop, a data set whose ``__getitem__`` ignores its index, a seed that is set at
    every step, or a leftover test with one batch.

    ## How to confirm it
    Print ``x.sum()`` for ten consecutive steps: it must change. If the data set is no larger than the batch, it cannot
    change, and nothing is wrong.

    ## What to change
    Put ``for x, y in loader:`` around the step, and set no seeds inside the loop.

    ## How to see it cured
    The checksum changes from step to step. The training loss falls more slowly, and the validation loss falls too.
    """

    name = "repeated-batch"
    explains = ("batch-anomaly", "overfitting", "suspiciously-low-loss", "validation-anomaly")
    prior = -3.0
    suggests = ("shuffle-data", "more-data")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the input checksums of different batches are equal."""
        sums = chart["input_checksum"].last(16)
        if sums.size < 4:
            return
        different = int(np.unique(sums).size)
        size = chart.context.get("batch_size")
        grave = problem.grave(*problem.names)
        if different == 1 and grave and isinstance(size, int) and size > BatchAnomaly.small:
            weight = 1.0 if problem.grave(*self.explains) else 0.0
            yield Evidence(weight, f"each step gets the same {size} samples, probably the whole data set")
        elif different == 1:
            weight = 7.0 if grave else 2.5  # as info, these may be all the data
            yield Evidence(weight, f"the inputs of all {sums.size} inspected batches are the same {size} samples")
        elif (same := same_at_last(chart["input_checksum"])) > 2 and problem.grave("batch-anomaly"):
            yield Evidence(7.0, f"the last {same} inspected batches are the same {size} samples")
        elif different <= BatchAnomaly.few and sums.size >= 2 * BatchAnomaly.few and problem.grave("batch-anomaly"):
            yield Evidence(
                5.0, f"{sums.size} inspected batches were only {different} different ones, of {size} samples"
            )
        elif has_same_samples(chart):
            yield Evidence(7.0, f"all inspected batches contain the same {size} samples in a different order")
        elif problem.grave("batch-anomaly") and copied_share(chart) < BatchAnomaly.copies:
            yield Evidence(
                6.0,
                f"only {share_text(copied_share(chart))} of the samples in a batch are distinct, the rest are copies",
            )
        elif problem.grave("batch-anomaly") and has_few_samples(chart):
            yield Evidence(5.0, f"no sample was new after the first few inspected batches of {size} samples")
        elif different > sums.size // 2:
            yield Evidence(-6.0, f"{different} of {sums.size} inspected batches are different")


def are_the_same_batches(chart: Chart, problem: Problem) -> bool:
    """Whether only a few batches recur unchanged: a small data set that is shuffled gives new batches."""
    sums, size = chart["input_checksum"].last(16), chart.context.get("batch_size")
    different = int(np.unique(sums).size)
    if sums.size < 2 * BatchAnomaly.few or not problem.grave("batch-anomaly"):
        return False
    all_there_are = different == 1 and isinstance(size, int) and size > BatchAnomaly.small
    return different <= BatchAnomaly.few and not all_there_are
