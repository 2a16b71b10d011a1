"""accumulation-error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.diagnoses.missing_zero_grad import not_cleared_since
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.frozen_weights import THROWN, UNSTEPPED
from torchdoctor.symptoms.gradients_not_cleared import GradientsNotCleared, share_without_step

LARGE = (
    "gradient-explosion",
    "loss-divergence",
    "loss-spike",
    "nan-or-inf",
    "weight-growth",
    "activation-explosion",
    "dead-units",
    "update-ratio-abnormal",
)
"""What steps that are too large bring about."""
SURE = 3
"""Sampled steps that must agree."""


class AccumulationError(Cause):
    """Gradients of several micro-batches are put together wrongly.

    ## What it is
    Of k micro-batches a step, the sum of the gradients is k times their mean: the loss must be divided by k, once.
    Clearing between micro-batches throws all but the last away; clearing only at some steps applies old ones again.

    ## How to confirm it
    One step on a batch of 32, and one on four micro-batches of 8 from the same weights: the gradients must agree to
    some digits.

    ## What to change
    `(loss / k).backward()` for each micro-batch; `step()` and `zero_grad()` together after the k-th.

    ## How to see it cured
    The gradient norm is the same with k = 1 and with k = 4.
    """

    name = "accumulation-error"
    explains = (
        "gradients-not-cleared",
        "frozen-weights",
        "gradient-explosion",
        "gradient-instability",
        "update-ratio-abnormal",
        "loss-oscillation",
        "loss-divergence",
        "slow-learning",
        "weight-growth",
        "loss-spike",
        "nan-or-inf",
        "not-learning",
        "activation-explosion",
        "dead-units",
    )
    prior = -2.5
    suggests = ("fix-accumulation", "fix-zero-grad")
    references = ("https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How many backwards a step has, what was cleared between them, and how each was weighted."""
        if thrown := _thrown_away(problem):
            yield Evidence(6.0, thrown)
            return
        backwards = max(chart.fact("zeroing.backwards") or (0,))
        pairs = zip(chart.fact("zeroing.kept") or (), chart.fact("zeroing.cleared") or (), strict=False)
        sometimes = any(kept >= SURE and cleared for kept, cleared in pairs) and not not_cleared_since(chart)
        if sometimes:
            yield Evidence(CERTAIN, "gradients are cleared at some steps and applied again at others")
        between = chart.fact("zeroing.between_backwards") or []
        if backwards > 1 and len(between) == 1 and between[0] >= SURE:
            yield Evidence(CERTAIN, f"gradients are cleared between the {backwards} backward passes of one step")
        elif len(between) == 1 and (share := share_without_step(chart)) > GradientsNotCleared.lost:
            yield Evidence(CERTAIN, f"before {share:.0%} of the steps gradients had been cleared that no step had used")
            return
        weights = chart["loss_weight"].last(SURE)
        if backwards > 1 and weights.size == SURE and chart.fact("loss.reduction") != "sum":
            weight = number_text(median(weights))
            if float(np.abs(weights - 1).max()) < 0.1:
                yield Evidence(CERTAIN, f"each of {backwards} losses enters with weight 1, not 1/{backwards}")
            elif 0 < float(weights.max()) < 0.6 / backwards:
                yield Evidence(CERTAIN, f"each of {backwards} losses enters with weight {weight}, not 1/{backwards}")
        elif backwards > 1 and not weights.size and problem.has(*LARGE):
            yield Evidence(4.5, f"each step adds up {backwards} backward passes; it is not known what each counts for")
        if backwards == 1:
            yield from _about_one_pass(chart, problem, sometimes)


def _thrown_away(problem: Problem) -> str:
    """That gradients were cleared again and again before any step used them; empty where they were not."""
    said = [item.message for item in problem.symptoms if item.name == "frozen-weights"]
    told = [message for message in said if THROWN in message or UNSTEPPED in message]
    return told[0] if told else ""


def _about_one_pass(chart: Chart, problem: Problem, sometimes: bool) -> Iterator[Evidence]:
    """A loss that is divided as if it were one of many; where there is one only, there is nothing to accumulate."""
    part = last_level(chart["loss_weight"], SURE) < GradientsNotCleared.part
    if part and problem.grave("no-gradient") and not chart["grad_norm"].last(SURE).any():
        yield Evidence(-4.0, "gradients are exactly zero, and a division makes them small only")
    elif part and problem.has("gradients-not-cleared", "not-learning", "slow-learning"):
        yield Evidence(5.0, "each step has one backward pass, and its loss is divided as if there were many")
    elif not sometimes:
        yield Evidence(-5.0, "each step has one backward pass")
