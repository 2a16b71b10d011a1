"""missing-zero-grad."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.symptoms.gradients_not_cleared import climbs_with_inputs

SURE = 3
"""Sampled steps that must agree."""


class MissingZeroGrad(Cause):
    """Gradients are never cleared, or are cleared just before they should be applied.

    ## What it is
    `backward()` adds to `p.grad`. Without `zero_grad()` each step applies the sum of all gradients since the start: a
    momentum that never fades. The norm grows with the number of steps, the loss swings or leaves. With `zero_grad()`
    between `backward()` and `step()`, no step changes anything.

    ## How to confirm it
    Print `next(model.parameters()).grad` right before `loss.backward()`: it must be None or zero.

    ## What to change
    `optimizer.zero_grad()` once for each step, right after `optimizer.step()`, never between `backward()` and `step()`.
    With several optimizers, each has its own.

    ## How to see it cured
    The gradient norm no longer grows from step to step, and the loss falls at the old learning rate.
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
        """What the ledger says: it looks at the gradients before each backward of a sampled step."""
        kept, cleared = chart.fact("zeroing.kept") or (), chart.fact("zeroing.cleared") or ()
        looks = list(zip(kept, cleared, strict=False))
        if chart.fact("graph.detached") and max(chart.fact("zeroing.backwards") or (0,)):
            yield Evidence(CERTAIN, "gradients arrive, and are gone when the optimizer steps: cleared too early")
        elif any(old >= SURE and not new for old, new in looks):
            yield Evidence(CERTAIN, "at every sampled step the gradients of the step before were still there")
        elif any(mixed >= SURE for mixed in chart.fact("zeroing.mixed") or ()):
            yield Evidence(CERTAIN, "gradients of another optimizer's loss are still there when backward comes")
        elif climbs_with_inputs(chart) and problem.has("gradients-not-cleared"):
            yield Evidence(CERTAIN, "gradients of the inputs' own loss stay in the weights")
        elif not_cleared_since(chart):
            yield Evidence(CERTAIN, "gradients were cleared at first, and at the last sampled steps no longer")
        elif any(new for _, new in looks):
            yield Evidence(-6.0, "gradients are cleared before each backward")


def not_cleared_since(chart: Chart) -> bool:
    """Whether an optimizer's gradients are no longer cleared, after they once were.

    >>> chart = Chart()
    >>> facts = {"zeroing.kept": [3], "zeroing.cleared": [5], "zeroing.kept_in_a_row": [3], "zeroing.backwards": [1]}
    >>> chart.add({"type": "facts", "step": 9, "facts": facts})
    >>> not_cleared_since(chart)
    True
    """
    rows = zip(chart.fact("zeroing.kept_in_a_row") or (), chart.fact("zeroing.backwards") or (), strict=False)
    return any(row >= SURE and backwards <= 1 for row, backwards in rows)
