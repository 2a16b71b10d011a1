"""batch-size-unsuited."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import number_text


class BatchSizeUnsuited(Cause):
    """The batch is too small for the noise, or too large for the learning rate.

    ## What it is
    Small: the gradient of one batch says more about its samples than about the task, and most of each step is noise.
    Large: fewer and smoother steps at a rate that was meant for many noisy ones; training is slow, or sharp.

    ## How to confirm it
    The gradient noise scale is the batch size at which noise and signal are equal. Far above your batch: larger
    batches (or accumulation) help almost linearly. Far below it: they are wasted.

    ## What to change
    Double the batch, or accumulate over several, with the rate scaled by the same factor for SGD and by its
    root for Adam, and a warm-up. Or lower the rate at the same batch.

    ## How to see it cured
    The loss's noise shrinks and its level falls.

    ## When to stop
    When doubling the batch no longer lowers the loss at the same number of samples.
    """

    name = "batch-size-unsuited"
    explains = (
        "gradient-instability",
        "gradient-explosion",
        "loss-spike",
        "loss-divergence",
        "slow-learning",
        "not-learning",
        "loss-plateau",
        "loss-oscillation",
        "underfitting",
    )
    prior = -2.2
    suggests = ("change-batch-size", "scale-lr")
    references = ("https://arxiv.org/abs/1812.06162",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The batch, the noise scale where it was measured, else the relative noise of the loss."""
        batch = chart.context.get("batch_size")
        noise = chart["noise_scale"]
        if isinstance(batch, int) and noise:
            scale = float(np.median(noise.last(8)))
            if scale > 20 * batch:
                text = f"the gradient noise scale is {number_text(scale)}, {number_text(scale / batch)} times the batch"
                yield Evidence(2.0, text)
            elif 0 < scale < batch / 20:
                yield Evidence(0.8, f"the batch of {batch} is far above the gradient noise scale {number_text(scale)}")
            else:
                yield Evidence(-1.5, f"the batch of {batch} suits the gradient noise scale {number_text(scale)}")
        if isinstance(batch, int):
            if batch <= 4:
                yield Evidence(2.2, f"the batch has {batch} samples")
            elif batch >= 4096:
                yield Evidence(0.8, f"the batch has {batch:,} samples")
            else:
                yield Evidence(-0.7, f"the batch has {batch} samples")
