"""frozen-by-mistake."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import names_text
from torchdoctor.symptoms.frozen_weights import FRESH, only_biases_learn, share_text

ALL_BUT = 0.9
"""Share from which the rest is a head, an adapter, or an oversight."""
METHOD = 0.5
"""Share of the parameters from which freezing is a method (a trunk, LoRA), not an oversight."""


class FrozenByMistake(Cause):
    """Layers that should learn have `requires_grad` off.

    ## What it is
    A freeze that was not undone, or that hit more than it was meant for: a name that matches too much, a head frozen
    with its trunk.

    ## How to confirm it
    `[n for n, p in model.named_parameters() if not p.requires_grad]`: is each of them meant?

    ## What to change
    `p.requires_grad_(True)` for what should learn, and see that the optimizer holds it: many loops hand it only the
    parameters that required gradients when it was built.

    ## How to see it cured
    The list above holds what you meant, and the loss goes below its old level.
    """

    name = "frozen-by-mistake"
    explains = ("frozen-weights", "no-gradient", "not-learning", "slow-learning", "underfitting", "loss-plateau")
    prior = -1.8
    suggests = ("unfreeze", "add-parameters-to-optimizer")
    references = ("https://pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Where the frozen layers are, and how many."""
        frozen, share = chart.fact("graph.frozen"), chart.fact("graph.frozen_share")
        resting = chart.fact("graph.resting") or {}
        if frozen:
            yield Evidence(CERTAIN, f"{names_text(frozen)}: frozen behind layers that learn")
        elif resting.get("frozen") and problem.has("frozen-weights"):
            yield Evidence(CERTAIN, f"{names_text(resting['tensors'])}: frozen since step {resting['since']}")
        elif share and problem.has("no-gradient") and chart.facts["graph.frozen_share"].step > 0:
            yield Evidence(5.0, f"{share_text(share)} of the parameters are frozen, and were not at first")
        elif share and chart["frozen_fresh"].latest > FRESH:
            yield Evidence(4.5, f"{share_text(share)} of the parameters are frozen, and look as if never trained")
        elif share and share >= METHOD and only_biases_learn(chart):
            yield Evidence(4.5, f"{share_text(share)} of the parameters are frozen, and only biases and norms learn")
        elif share and share >= METHOD:
            yield Evidence(1.0 if share < ALL_BUT else 1.5, f"{share_text(share)} of the parameters are frozen")
        elif share:
            yield Evidence(0.3, f"{share_text(share)} of the parameters are frozen, before the first that learns")
        elif share is not None:
            yield Evidence(-6.0, "no parameter is frozen")
