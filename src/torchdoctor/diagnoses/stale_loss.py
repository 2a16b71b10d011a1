"""stale-loss."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem


class StaleLoss(Cause):
    """The loss belongs to an old output.

    ## What it is
    The loss was computed once, outside of the loop or before the forward pass of this step, and is used again
    (`retain_graph=True` silences the error that would tell). Gradients are then those of old weights or an old batch.

    ## How to confirm it
    `id(loss.grad_fn)` printed at each step: it must change, and `loss` must come after `output = model(x)`.

    ## What to change
    Compute output and loss inside the loop, in this order; remove `retain_graph=True`.

    ## How to see it cured
    The loss differs from batch to batch.
    """

    name = "stale-loss"
    explains = ("suspicious-loss", "not-learning", "loss-plateau", "loss-divergence")
    prior = -3.0
    suggests = ("reattach-graph",)
    references = ("https://pytorch.org/docs/stable/generated/torch.autograd.backward.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether a graph was seen twice, or the loss is the same number at each step."""
        if chart.fact("loss.stale"):
            yield Evidence(CERTAIN, "the same graph was behind the loss at different steps")
            return
        values = chart["loss"].last(50)
        if values.size == 50 and float(values.max()) > float(values.min()):
            yield Evidence(-3.0, "the loss changes from step to step")
