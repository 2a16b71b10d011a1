"""batch-size-unsuited."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import breaking_step
from torchdoctor.records import number_text
from torchdoctor.symptoms.batch_size_advice import noise_scale

ACUTE = ("gradient-explosion", "loss-spike", "loss-divergence", "gradient-instability")
STILL = ("not-learning", "loss-plateau", "underfitting")
TIMES = 8.0
"""How far from the noise scale a batch must be to be unsuited."""


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
    prior = -2.7
    suggests = ("change-batch-size", "scale-lr")
    references = ("https://arxiv.org/abs/1812.06162",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The batch, and the gradient noise scale where it was measured."""
        batch = chart.context.get("batch_size")
        yield from _about_the_noise(chart, problem)
        if isinstance(batch, int):
            if batch <= 4:
                yield Evidence(3.2 if batch <= 2 else 2.2, f"the batch has {batch} samples")
            elif batch >= 4096:
                yield Evidence(0.8, f"the batch has {batch:,} samples")
            else:
                yield Evidence(-0.7, f"the batch has {batch} samples")


def _about_the_noise(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """The noise scale before anything broke; at a standstill little signal is left with any batch."""
    found = noise_scale(chart, breaking_step(problem) if problem.has(*ACUTE) else chart.step)
    if found is None:
        return
    text = f"the gradient noise scale is {found}, and a step has {number_text(found.batch)}"
    if found.low > TIMES * found.batch:
        yield Evidence(0.5 if problem.has(*STILL) else 2.0, text)
    elif found.high * TIMES < found.batch:
        yield Evidence(0.8, text)
    elif found.low * TIMES > found.batch and found.high < TIMES * found.batch:
        yield Evidence(-1.5, f"{text}: that suits")
