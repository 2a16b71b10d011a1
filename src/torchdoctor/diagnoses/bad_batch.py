"""bad-batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import is_brief, is_over, loss_moved_at, lr_rise
from torchdoctor.records import number_text


class BadBatch(Cause):
    """One batch is unlike the others: corrupt, mislabelled, or on another scale.

    ## What it is
    Its loss and gradient stand out because of what is in it, not because of the weights.

    ## How to confirm it
    Loss and gradient norm jump at the same step and are back at the next. Compute the loss of that batch again, with
    other weights: it stands out again.

    ## What to change
    Look at the batch of that step: value range, labels, lengths. Filter it, or clip so that it cannot harm.

    ## How to see it cured
    The step passes without a spike, and none comes in the next epoch.
    """

    name = "bad-batch"
    explains = ("loss-spike", "gradient-explosion")
    prior = -1.0
    suggests = ("clean-data", "set-clip-norm", "skip-window")
    references = ("https://arxiv.org/abs/2204.02311",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the loss jumped at the same step, and whether everything was back at once."""
        onset = problem.first_step
        if problem.has("nan-or-inf"):
            yield Evidence(-1.5, "values that are not finite followed")
        if loss_moved_at(chart, onset):
            yield Evidence(1.8, f"the loss stood out at step {onset} itself, before that step's update")
        else:
            yield Evidence(-0.8, f"the loss of step {onset} was ordinary")
        if problem.grave("loss-divergence"):
            yield Evidence(-1.5, "the loss did not come back")
        elif is_brief(problem):
            yield Evidence(0.8, "it lasted only a few steps")
            if is_over(chart, problem):
                yield Evidence(0.7, "the run went on as before")
        if lr_rise(chart, onset) > 3:
            yield Evidence(-2.5, "the learning rate had just risen")
        yield from _about_its_numbers(chart, onset)


def _about_its_numbers(chart: Chart, step: int) -> Iterator[Evidence]:
    """The batch of the step itself, if that step was looked at closely."""
    for vital, name in (("input_absmax", "input"), ("target_absmax", "target")):
        series = chart[vital]
        at, others = series.values[series.steps == step], series.values[series.steps != step]
        if not at.size or others.size < 4:
            continue
        usual = float(np.median(others))
        if float(at[0]) > 3 * max(usual, float(np.max(others)) / 2) > 0:
            text = f"the largest {name} of step {step} is {number_text(float(at[0]))}"
            yield Evidence(3.0, f"{text}, {number_text(usual)} is usual")
