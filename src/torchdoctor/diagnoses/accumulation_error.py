"""accumulation-error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level, summed_passes
from torchdoctor.diagnoses.missing_zero_grad import not_cleared_since
from torchdoctor.records import number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.frozen_weights import THROWN, UNSTEPPED
from torchdoctor.symptoms.gradients_not_cleared import GradientsNotCleared, most_backwards, share_without_step

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
"""Findings that steps that are too large lead to."""
SURE = 3
"""Samples in a row that must agree."""


class AccumulationError(Cause):
    """Gradients of several micro-batches are accumulated wrongly.

    ## What it is
    With k micro-batches per step, the sum of their gradients is k times the mean: each loss must be divided by k, once.
    If gradients are cleared between micro-batches, only the last one counts. If they are cleared only at some steps,
    old gradients are applied again.

    ## How to confirm it
    From the same weights, compute the gradients of one batch of 32 and of the same samples as four micro-batches of 8:
    they must agree to several digits.

    ## What to change
    Call `(loss / k).backward()` for each micro-batch, then `step()` and `zero_grad()` after the k-th.

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
        """How many backward passes a step has, what is cleared between them, and how each loss is weighted."""
        if thrown := _thrown_away(chart, problem):
            yield Evidence(6.0, thrown)
            return
        passes = chart.fact("zeroing.backwards") or (0,)
        backwards, alone = max(passes), len(passes) == 1  # players that learn from each other do not accumulate
        pairs = zip(chart.fact("zeroing.kept") or (), chart.fact("zeroing.cleared") or (), strict=False)
        sometimes = any(kept >= SURE and cleared for kept, cleared in pairs) and not not_cleared_since(chart)
        if sometimes:
            yield Evidence(CERTAIN, "gradients are cleared at some steps only: the others apply old gradients again")
        between = chart.fact("zeroing.between_backwards") or []
        if backwards > 1 and len(between) == 1 and between[0] >= SURE:
            yield Evidence(CERTAIN, f"gradients are cleared between the {backwards} backward passes of one step")
        elif len(between) == 1 and (share := share_without_step(chart)) > GradientsNotCleared.lost:
            yield Evidence(
                CERTAIN,
                f"in {share_text(share)} of the sampled steps, gradients had been cleared before any step used them",
            )
            return
        weights = chart["loss_weight"].last(SURE)
        if backwards > 1 and weights.size == SURE and chart.fact("loss.reduction") != "sum":
            weight = number_text(median(weights))
            if float(np.abs(weights - 1).max()) < 0.1:
                yield Evidence(CERTAIN, f"each of the {backwards} losses of a step has weight 1, not 1/{backwards}")
            elif 0 < float(weights.max()) < 0.6 / (most := most_backwards(chart)):
                yield Evidence(CERTAIN, f"each of the {most} losses of a step has weight {weight}, not 1/{most}")
        elif summed_passes(chart) > 1 and alone and not weights.size and problem.has(*LARGE):
            yield Evidence(4.5, f"each step sums {backwards} backward passes; the weight of each is unknown")
        if most_backwards(chart) == 1:
            yield from _about_one_pass(chart, problem, sometimes)


def _thrown_away(chart: Chart, problem: Problem) -> str:
    """The finding that gradients are thrown away before any step uses them, as a sentence; "" if there is none.

    If each step had one backward pass until steps ceased, nothing was accumulated: the optimizer may be another one.
    """
    said = [item.message for item in problem.symptoms if item.name == "frozen-weights"]
    ceased = summed_passes(chart) != 1
    told = [message for message in said if THROWN in message or (ceased and UNSTEPPED in message)]
    return told[0] if told else ""


def _about_one_pass(chart: Chart, problem: Problem, sometimes: bool) -> Iterator[Evidence]:
    """Whether the only loss of a step is divided although there is nothing to accumulate."""
    part = last_level(chart["loss_weight"], SURE) < GradientsNotCleared.part
    if part and problem.grave("no-gradient") and not chart["grad_norm"].last(SURE).any():
        yield Evidence(-4.0, "gradients are exactly zero: dividing the loss only makes them small")
    elif part and problem.has("gradients-not-cleared", "not-learning", "slow-learning"):
        yield Evidence(5.0, "each step has one backward pass, but its loss is divided as if there were several")
    elif not sometimes:
        yield Evidence(-5.0, "each step has one backward pass")
