"""representation-collapse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.no_gradient import experts_used
from torchdoctor.symptoms.progress import Progress

BROKEN = ("gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf", "update-ratio-abnormal")
"""What makes outputs alike whatever the loss compares."""


class RepresentationCollapse(Cause):
    """Embeddings shrink to one point: every input gets the same answer.

    ## What it is
    A loss that compares embeddings (contrastive, self-distillation, predictive) is satisfied, or stuck, when all of
    them are equal. Missing negatives, a missing stop-gradient, or a temperature far off lead there.

    ## How to confirm it
    Print ``embedding.std(dim=0).mean()`` over a batch of normalized embeddings of width d: healthy is near 1/sqrt(d),
    collapsed is near 0. A contrastive loss that stays at ln(batch size) says the same.

    ## What to change
    Negatives from the batch, a stop-gradient on one branch with a predictor on the other, or a term that pays for
    variance. Check the temperature (0.05 to 0.5) and that both views are not the same tensor.

    ## How to see it cured
    The spread of embeddings stays up for 1,000 steps, and a linear probe gets better than chance.

    ## When to stop
    When the spread is healthy and the probe stays poor: the two views share too little, or too much.
    """

    name = "representation-collapse"
    explains = (
        "collapsed-output",
        "dead-units",
        "not-learning",
        "loss-plateau",
        "suspiciously-low-loss",
        "underfitting",
        "no-gradient",
    )
    prior = -1.8
    suggests = ("prevent-collapse", "scale-lr", "add-normalization")
    references = ("https://arxiv.org/abs/2105.04906", "https://arxiv.org/abs/2011.10566")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Where the loss stays, how much outputs vary, and whether there are labels to learn instead."""
        if problem.has("no-gradient"):
            chosen, experts = experts_used(chart)
            if chosen:
                yield Evidence(CERTAIN, f"the layer that chooses among {experts} experts has only ever chosen {chosen}")
            elif not problem.has("collapsed-output", "dead-units"):
                yield Evidence(-5.0, "no outputs or units are seen to have become alike")
                return
        batch, loss = chart.context.get("batch_size"), last_level(chart["loss"])
        guesses = _guesses(batch, loss)
        if guesses:
            yield Evidence(3.0, f"the loss stays at {number_text(loss)}, what a batch of {batch} gives by guessing")
        spread = chart["output_directions"] or chart["output_spread"]
        if spread.count >= 3 and spread.first > 0:
            now = last_level(spread, 3)
            if now < 0.1 * spread.first:
                before = number_text(spread.first)
                yield Evidence(1.5, f"outputs vary over a batch by {number_text(now)} of their size, {before} at first")
            elif now > 0.5 * spread.first and not guesses:
                yield Evidence(-2.0, "outputs vary over a batch as much as they did")
        began = problem.get("collapsed-output")
        if began is not None and _is_rewarded(chart, loss):
            words = f"the loss fell from {number_text(chart['loss'].first)} to {number_text(loss)} all the same"
            yield Evidence(3.5, f"outputs became alike, and {words}: it rewards that")
        if any(
            item.name in BROKEN and (began is None or item.first_step < began.first_step) for item in problem.symptoms
        ):
            yield Evidence(-2.0, "the run was in trouble before its outputs were all alike")
        yield from _about_the_loss(chart, collapsed=problem.has("collapsed-output", "dead-units"))


def _guesses(batch: Any, loss: float) -> bool:
    """Whether the loss is the logarithm of how many samples there are to choose from."""
    if not isinstance(batch, int) or batch <= 2:
        return False
    return any(abs(loss / math.log(size) - 1) < 0.02 for size in (batch, 2 * batch, 2 * batch - 1))


def _about_the_loss(chart: Chart, *, collapsed: bool) -> Iterator[Evidence]:
    """With what the loss compares the outputs."""
    if chart["target_classes"] or chart["target_std"] or chart.fact("loss.classes") is not None:
        yield Evidence(-2.5, "the loss compares outputs with given targets, not with each other")
    elif collapsed and chart.fact("loss.between_outputs"):
        yield Evidence(3.0, "the loss compares outputs with each other, and both sides learn")
    elif collapsed and chart["output_directions"] and not chart.fact("loss.kind"):
        yield Evidence(1.5, "the outputs are vectors that no target is given for: embeddings")


def _is_rewarded(chart: Chart, loss: float) -> bool:
    """Whether the loss fell a long way and is at its best: to a fifth, or, of one that may be negative, below zero."""
    if not chart["loss"]:
        return False
    first, progress = chart["loss"].first, Progress.of(chart["loss"])
    return 0 <= loss < 0.2 * first or (loss < 0 and loss < first and loss < progress.best + 0.1 * progress.descent)
