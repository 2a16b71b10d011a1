"""batch-size-unsuited."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import breaking_step
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import number_text
from torchdoctor.symptoms.batch_size_advice import noise_scale

ACUTE = ("gradient-explosion", "loss-spike", "loss-divergence", "gradient-instability")
STILL = ("not-learning", "loss-plateau", "underfitting")
TIMES = 8.0
"""Factor between batch size and noise scale above which the batch size is unsuited."""


class BatchSizeUnsuited(Cause):
    """The batch size is too small for the gradient noise, or too large for the learning rate.

    ## What it is
    - Too small: the gradient of one batch depends more on its samples than on the task, and most of each step is noise.
    - Too large: there are fewer and less noisy steps, at a learning rate chosen for many noisy ones. Training is slow.

    ## How to confirm it
    The gradient noise scale is the batch size at which noise and signal are equal. If it is far above your batch size,
    larger batches (or accumulation) help almost linearly. If it is far below, larger batches are wasted.

    ## What to change
    Double the batch size or accumulate over several batches, with warm-up. Scale the learning rate by the same factor
    for SGD, and by its square root for Adam. Or lower the learning rate at the same batch size.

    ## How to see it cured
    The loss is less noisy, and lower.

    ## When to stop
    When doubling the batch size no longer lowers the loss at the same number of samples.
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
        """The batch size, and the gradient noise scale if it was measured."""
        batch = chart.context.get("batch_size")
        yield from _about_the_noise(chart, problem)
        if isinstance(batch, int):
            if batch <= 4:
                yield Evidence(3.2 if batch <= 2 else 2.2, f"the batch size is {batch}")
            elif batch >= 4096:
                yield Evidence(0.8, f"the batch size is {batch:,}")
            else:
                yield Evidence(-0.7, f"the batch size is {batch}")


def _about_the_noise(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """The noise scale before anything broke. It says less at a plateau, where any batch has little signal."""
    found = noise_scale(chart, breaking_step(problem) if problem.has(*ACUTE) else chart.step)
    if found is None:
        return
    text = f"the gradient noise scale is {found}, and each step uses {number_text(found.batch)}"
    if found.low > TIMES * found.batch:
        yield Evidence(0.5 if problem.has(*STILL) else 2.0, text)
    elif found.high * TIMES < found.batch:
        yield Evidence(0.8, text)
    elif found.low * TIMES > found.batch and found.high < TIMES * found.batch:
        yield Evidence(-1.5, f"{text}: a good match")
