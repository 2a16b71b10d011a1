"""frozen-by-mistake."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import names_text, share_text
from torchdoctor.symptoms.frozen_weights import FRESH, NO_RATE, only_biases_learn

ALL_BUT = 0.9
"""Share of frozen parameters from which the rest is a head, an adapter, or a mistake."""
METHOD = 0.5
"""Share of frozen parameters from which freezing is usually a method (a frozen trunk, LoRA)."""


class FrozenByMistake(Cause):
    """Layers that should learn are frozen: `requires_grad` is off, or their learning rate is 0.

    ## What it is
    Layers were frozen and not unfrozen again, or more layers were frozen than intended: a name pattern matches too
    much, or a head is frozen together with its trunk. Or a parameter group of the optimizer has a learning rate of 0.

    ## How to confirm it
    Print `[n for n, p in model.named_parameters() if not p.requires_grad]`: should each of these be frozen? Print
    `[g["lr"] for g in optimizer.param_groups]`: should any of these be 0?

    ## What to change
    Call `p.requires_grad_(True)` on what should learn, and check that the optimizer holds it: many loops give the
    optimizer only the parameters that required gradients when it was built. Give every parameter group a learning
    rate above 0, before the scheduler is built.

    ## How to see it cured
    The lists above contain only what you meant to freeze, and the loss goes below its old level.
    """

    name = "frozen-by-mistake"
    explains = ("frozen-weights", "no-gradient", "not-learning", "slow-learning", "underfitting", "loss-plateau")
    prior = -1.8
    suggests = ("unfreeze",)  # its code says to give them to the optimizer, which may hold them already
    references = ("https://pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Where the frozen layers are, and what share of the parameters is frozen."""
        frozen, share = chart.fact("graph.frozen"), chart.fact("graph.frozen_share")
        resting, found = chart.fact("graph.resting") or {}, problem.get("frozen-weights")
        if found is not None and NO_RATE in found.message:
            yield Evidence(CERTAIN, found.message)
        elif frozen:
            yield Evidence(CERTAIN, f"{names_text(frozen)}: frozen behind layers that learn")
        elif resting.get("frozen") and problem.has("frozen-weights"):
            yield Evidence(CERTAIN, f"{names_text(resting['tensors'])}: frozen since step {resting['since']}")
        elif share and problem.has("no-gradient") and chart.facts["graph.frozen_share"].step > 0:
            yield Evidence(5.0, f"{share_text(share)} of the parameters are frozen, but were not at the start")
        elif share and chart["frozen_fresh"].latest > FRESH:
            yield Evidence(4.5, f"{share_text(share)} of the parameters are frozen, and look as if never trained")
        elif share and share >= METHOD and only_biases_learn(chart):
            yield Evidence(
                4.5, f"{share_text(share)} of the parameters are frozen, and only biases and norm layers learn"
            )
        elif share and share >= METHOD:
            yield Evidence(1.0 if share < ALL_BUT else 1.5, f"{share_text(share)} of the parameters are frozen")
        elif share:
            yield Evidence(0.3, f"{share_text(share)} of the parameters are frozen, all before the first that learns")
        elif share is not None:
            yield Evidence(-6.0, "no parameter is frozen")
