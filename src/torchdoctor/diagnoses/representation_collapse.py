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
"""Findings that can make outputs alike whatever the loss compares."""


class RepresentationCollapse(Cause):
    """Embeddings collapse to one point: every input gets the same output.

    ## What it is
    A loss that compares embeddings (contrastive, self-distillation, predictive) can be minimal, or stuck, when all
    embeddings are equal. Missing negatives, a missing stop-gradient or an unsuitable temperature lead to this.

    ## How to confirm it
    Print ``embedding.std(dim=0).mean()`` over a batch of normalized embeddings of width d: it should be near 1/sqrt(d),
    and is near 0 after a collapse. A contrastive loss that stays at ln(batch size) is another sign.

    ## What to change
    Add negatives from the batch, a stop-gradient on one branch with a predictor on the other, or a loss term that
    rewards variance. Check that the temperature is 0.05 to 0.5 and that the two views are not the same tensor.

    ## How to see it cured
    The spread of embeddings stays high for 1,000 steps, and a linear probe is better than chance.

    ## When to stop
    If the spread is healthy and the probe stays poor, the two views have too little, or too much, in common.
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
        """The level of the loss, how much outputs vary, and whether the loss uses targets instead."""
        if problem.has("no-gradient"):
            chosen, experts = experts_used(chart)
            if chosen:
                yield Evidence(CERTAIN, f"the router has used only {chosen} of {experts} experts")
            elif not problem.has("collapsed-output", "dead-units"):
                yield Evidence(-5.0, "no outputs or units have become alike")
                return
        batch, loss = chart.context.get("batch_size"), last_level(chart["loss"])
        guesses = _guesses(batch, loss)
        if guesses:
            yield Evidence(3.0, f"the loss stays at {number_text(loss)}, chance level for a batch of {batch}")
        spread = chart["output_directions"] or chart["output_spread"]
        if spread.count >= 3 and spread.first > 0:
            now = last_level(spread, 3)
            if now < 0.1 * spread.first:
                before = number_text(spread.first)
                yield Evidence(
                    1.5, f"outputs vary over a batch by {number_text(now)} of their size, at first by {before}"
                )
            elif now > 0.5 * spread.first and not guesses:
                yield Evidence(-2.0, "outputs vary over a batch about as much as before")
        began = problem.get("collapsed-output")
        if began is not None and _is_rewarded(chart, loss):
            words = f"the loss still fell from {number_text(chart['loss'].first)} to {number_text(loss)}"
            yield Evidence(3.5, f"outputs became alike, but {words}: it rewards collapse")
        if any(
            item.name in BROKEN and (began is None or item.first_step < began.first_step) for item in problem.symptoms
        ):
            yield Evidence(-2.0, "the run was in trouble before its outputs became alike")
        yield from _about_the_loss(chart, collapsed=problem.has("collapsed-output", "dead-units"))


def _guesses(batch: Any, loss: float) -> bool:
    """Whether the loss is at chance level: the logarithm of the number of samples to choose from."""
    if not isinstance(batch, int) or batch <= 2:
        return False
    return any(abs(loss / math.log(size) - 1) < 0.02 for size in (batch, 2 * batch, 2 * batch - 1))


def _about_the_loss(chart: Chart, *, collapsed: bool) -> Iterator[Evidence]:
    """What the loss compares outputs with: targets or each other."""
    if chart["target_classes"] or chart["target_std"] or chart.fact("loss.classes") is not None:
        yield Evidence(-2.5, "the loss compares outputs with given targets, not with each other")
    elif collapsed and "source" in chart.context and ("val_accuracy" in chart or "train_accuracy" in chart):
        yield Evidence(-2.5, "an accuracy is logged, so there are labels to compare outputs with")
    elif collapsed and chart.fact("loss.between_outputs"):
        yield Evidence(3.0, "the loss compares outputs with each other, and both sides get gradients")
    elif collapsed and chart["output_directions"] and not chart.fact("loss.kind"):
        yield Evidence(1.5, "the outputs are vectors without targets, as embeddings are")


def _is_rewarded(chart: Chart, loss: float) -> bool:
    """Whether the loss fell to below a fifth of its first value, or is negative and near its best value."""
    if not chart["loss"]:
        return False
    first, progress = chart["loss"].first, Progress.of(chart["loss"])
    return 0 <= loss < 0.2 * first or (loss < 0 and loss < first and loss < progress.best + 0.1 * progress.descent)
