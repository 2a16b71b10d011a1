"""stale-loss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import update_level
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import number_text
from torchdoctor.symptoms.suspicious_loss import is_made_anew

SAME = 50
"""Steps with exactly the same loss that cannot be a coincidence."""


def gradients_differ(chart: Chart, by: float = 0.03) -> bool:
    """Whether gradient norms vary more from step to step than they would for one constant loss."""
    norms = chart["grad_norm"].last(SAME)
    return norms.size == SAME and float(np.median(np.abs(np.diff(norms)))) > by * float(np.median(norms)) > 0


class StaleLoss(Cause):
    """The loss is computed from an old output.

    ## What it is
    The loss was computed once, outside the loop or before the forward pass of this step, and is used again
    (`retain_graph=True` silences the error that would reveal it). Its gradients belong to old weights or an old batch.

    ## How to confirm it
    Print `id(loss.grad_fn)` at each step: it must change. `loss` must be computed after `output = model(x)`.

    ## What to change
    Compute output and loss inside the loop, in this order, and remove `retain_graph=True`.

    ## How to see it cured
    The loss differs from batch to batch.
    """

    name = "stale-loss"
    explains = (
        "suspicious-loss",
        "not-learning",
        "loss-plateau",
        "loss-divergence",
        "weight-growth",
        "overfitting",
        "validation-anomaly",
    )
    prior = -3.0
    suggests = ("reattach-graph",)
    references = ("https://pytorch.org/docs/stable/generated/torch.autograd.backward.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether one graph was used at several steps, or the loss is the same number at each step."""
        if chart.fact("loss.stale") and not is_made_anew(chart):
            yield Evidence(CERTAIN, "the loss had the same graph at different steps")
            return
        values, sums = chart["loss"].last(SAME), chart["input_checksum"].last(8)
        if values.size < SAME:
            return
        if float(values.max()) > float(values.min()):
            yield Evidence(-3.0, "the loss changes from step to step")
        elif update_level(chart, chart.step + 1) > 1e-5 and values[-1] != 0:  # a loss of 0 is rounded: it cannot fall
            same = f"the loss is exactly {number_text(float(values[-1]))} for {SAME} steps, although the weights change"
            if np.unique(sums).size > 1 and gradients_differ(chart):
                text = f"{same}, and so do batches and gradients: an old value is logged"
                yield Evidence(CERTAIN if problem.has("suspicious-loss") else 2.0, text)
            elif np.unique(sums).size > 1:
                yield Evidence(CERTAIN, f"{same} and so do the batches")
            elif sums.size < 3:
                yield Evidence(CERTAIN if sums.size else 5.0, f"{same}, and the model is no longer run")
