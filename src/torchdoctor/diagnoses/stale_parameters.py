"""stale-parameters."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import names_text


class StaleParameters(Cause):
    """Parameters were replaced after the optimizer was built.

    ## What it is
    The optimizer holds tensors that the model no longer has: after `optimizer = ...`, a head was replaced, a layer was
    pruned or quantized, or the model was reloaded, copied (`deepcopy`) or wrapped. The optimizer's steps change the old
    tensors, and the new ones never learn.

    ## How to confirm it
    `{id(p) for g in optimizer.param_groups for p in g["params"]} - {id(p) for p in model.parameters()}` is not empty.

    ## What to change
    Build the optimizer last: after the head is replaced and the model is wrapped and moved.

    ## How to see it cured
    The set above is empty, and one step changes the weights of the new layer.
    """

    name = "stale-parameters"
    explains = (
        "frozen-weights",
        "no-gradient",
        "not-learning",
        "slow-learning",
        "underfitting",
        "loss-plateau",
        "collapsed-output",
    )
    prior = -2.5
    suggests = ("add-parameters-to-optimizer",)
    references = ("https://pytorch.org/docs/stable/optim.html#constructing-it",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The tensors that an optimizer holds, compared with those in the model."""
        stale, left = chart.fact("graph.stale"), chart.fact("graph.not_in_optimizer")
        if copied := chart.fact("graph.copied"):
            text = f"the loss comes from {copied['tensors']} tensors of the same shapes that no optimizer holds"
            yield Evidence(CERTAIN, f"{text}: a copy of the model is trained")
        elif stale and left:
            text = f"the optimizer holds {len(stale)} tensors that are not in the model, and lacks {names_text(left)}"
            yield Evidence(CERTAIN, text)
        elif stale:
            yield Evidence(1.0, f"the optimizer holds {len(stale)} tensors that are not in the model")
        elif stale is not None:
            yield Evidence(-5.0, "the optimizer holds the model's own tensors")
