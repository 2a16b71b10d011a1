"""missing-zero-grad."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.symptoms.gradients_not_cleared import climbs_with_inputs, is_emptied

SURE = 3
"""Sampled steps in a row that must agree."""


class MissingZeroGrad(Cause):
    """Gradients are never cleared, or are cleared before the optimizer has applied them.

    ## What it is
    `backward()` adds to `p.grad`. Without `zero_grad()`, each step applies the sum of all gradients since the start,
    like a momentum that never decays. The gradient norm grows with the number of steps, and the loss oscillates or
    diverges. If `zero_grad()` is called between `backward()` and `step()`, the steps change nothing.

    ## How to confirm it
    Print `next(model.parameters()).grad` right before `loss.backward()`: it must be None or zero.

    ## What to change
    Call `optimizer.zero_grad()` once per step, right after `optimizer.step()`, never between `backward()` and
    `step()`. With several optimizers, call it for each of them.

    ## How to see it cured
    The gradient norm no longer grows from step to step, and the loss falls at the same learning rate.
    """

    name = "missing-zero-grad"
    explains = (
        "gradients-not-cleared",
        "no-gradient",
        "gradient-explosion",
        "gradient-instability",
        "update-ratio-abnormal",
        "weight-growth",
        "dead-units",
        "loss-oscillation",
        "loss-spike",
        "loss-divergence",
        "not-learning",
        "loss-plateau",
        "nan-or-inf",
        "slow-learning",
    )
    prior = -2.5
    suggests = ("fix-zero-grad", "zero-gradients")
    references = ("https://pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether gradients were still there before each backward pass of the sampled steps."""
        kept, cleared = chart.fact("zeroing.kept") or (), chart.fact("zeroing.cleared") or ()
        looks = list(zip(kept, cleared, strict=False))
        held = any(old >= SURE and not new for old, new in looks)
        emptied = chart.fact("graph.detached") or (held and is_emptied(chart))  # set to None or to zero
        if emptied and max(chart.fact("zeroing.backwards") or (0,)):
            yield Evidence(CERTAIN, "gradients are cleared between backward() and step(): nothing is left to apply")
        elif held:
            yield Evidence(CERTAIN, "at every sampled step, the gradients of the step before were not cleared")
        elif any(mixed >= SURE for mixed in chart.fact("zeroing.mixed") or ()):
            yield Evidence(CERTAIN, "gradients of another optimizer's loss are not cleared before backward()")
        elif climbs_with_inputs(chart) and problem.has("gradients-not-cleared"):
            yield Evidence(CERTAIN, "the loss that changes the inputs leaves its gradients in the weights")
        elif not_cleared_since(chart):
            yield Evidence(CERTAIN, "gradients were cleared at first, but not at the last sampled steps")
        elif any(new for _, new in looks):
            yield Evidence(-6.0, "gradients are cleared before each backward")


def not_cleared_since(chart: Chart) -> bool:
    """Whether the gradients of an optimizer were cleared at first and are not cleared any more.

    >>> chart = Chart()
    >>> facts = {"zeroing.kept": [3], "zeroing.cleared": [5], "zeroing.kept_in_a_row": [3], "zeroing.backwards": [1]}
    >>> chart.add({"type": "facts", "step": 9, "facts": facts})
    >>> not_cleared_since(chart)
    True
    """
    rows = zip(chart.fact("zeroing.kept_in_a_row") or (), chart.fact("zeroing.backwards") or (), strict=False)
    return any(row >= SURE and backwards <= 1 for row, backwards in rows)
