"""lr-too-low."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import highest
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import decay_by_layer
from torchdoctor.diagnoses.findings import (
    falls_steadily,
    leading_rates,
    optimizer_names,
    thrown_at_first,
    working_update,
)
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.progress import goes_straight
from torchdoctor.symptoms.slow_learning import ONWARD

UNUSUAL_EPS = 1e-4
"""Adam's eps above which it may outweigh ordinary gradients."""
STILL = 1e-8
"""Learning rate below which no optimizer gets anywhere within a run."""

ADAPTS = "Rprop"
"""The optimizer whose steps have lengths of their own, after the first one."""
SHORT = 0.05
"""Total change of the weights, relative to their norm, below which they cannot have learned anything."""
USUAL = 3e-4
"""Update ratio from which steps are not short."""


class LrTooLow(Cause):
    """The learning rate is too low: the weights hardly move.

    ## What it is
    The steps are so short that the loss hardly changes, although the gradient has a clear direction.

    ## How to confirm it
    Update ratios are under 1e-5 in all layers. In a range test, or a short trial at ten times the learning rate, the
    loss falls at once.

    ## What to change
    Double the learning rate, and repeat as long as it helps.

    ## How to see it cured
    Update ratios are about 1e-3, and the loss falls again.

    ## When to stop
    If ten times the learning rate changes nothing, the gradient does not reach the weights.
    """

    name = "lr-too-low"
    explains = (
        "slow-learning",
        "not-learning",
        "loss-plateau",
        "update-ratio-abnormal",
        "gradient-vanishing",
        "underfitting",
    )
    prior = -0.9
    suggests = ("scale-lr",)
    references = ("https://arxiv.org/abs/1506.01186",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The size of updates, and the learning rate itself."""
        yield from _about_the_updates(chart, problem)
        slow = problem.get("slow-learning")
        held = problem.has("clipping-anomaly", "batch-anomaly")  # these shorten steps, or give all steps one direction
        onward = not held and slow is not None and ONWARD in slow.message
        rates = leading_rates(chart)
        rate, top = rates.latest, highest(rates, 0, chart.step)
        adaptive = "Adam" in optimizer_names(chart)
        if 0 < top < STILL:
            yield Evidence(4.0, f"the learning rate was never above {number_text(top)}: too low for any weight to move")
        elif onward:  # measured while the learning rate was high
            yield Evidence(3.0, f"{ONWARD}, while the loss hardly improves: steps are too short")
        elif rate <= 0.1 * top:
            yield Evidence(-2.0, f"the learning rate was {number_text(top)} before the schedule lowered it")
        elif 0 < rate < (3e-6 if adaptive else 1e-5):
            yield Evidence(2.2, f"the learning rate is only {number_text(rate)}")
        elif rate >= (3e-4 if adaptive else 1e-2):
            yield Evidence(-1.0, f"a learning rate of {number_text(rate)} is not low")
        if not onward:
            yield from _about_the_way(chart, held)
        yield from _about_what_else_is_short(chart, problem)
        norms = chart["grad_norm"]
        if norms and norms.baseline(128).recent < 1e-10:
            yield Evidence(-4.0, "the gradient is practically zero at any learning rate")
        if problem.has("gradient-explosion", "loss-spike", "loss-divergence", "dead-units", "activation-explosion"):
            yield Evidence(-3.0, "steps that are too short do not break a run")
        if problem.has("gradient-vanishing") and not problem.has("loss-plateau", "slow-learning", "not-learning"):
            yield Evidence(-2.0, "the loss is still falling")


def _about_what_else_is_short(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """What makes steps short at any learning rate."""
    if ADAPTS in optimizer_names(chart):
        text = f"{ADAPTS} adapts the length of its steps: the learning rate is that of the first one only"
        yield Evidence(-6.0, text)
    eps = max((item for group in chart.groups if isinstance(item := group.get("eps"), float)), default=0.0)
    if eps > UNUSUAL_EPS and chart["adam_eps_share"].latest > 0.5:
        yield Evidence(-3.0, f"eps of {number_text(eps)} makes steps short at any learning rate")
    if problem.grave("gradient-vanishing") and decay_by_layer(chart, problem) > 1:
        yield Evidence(
            -2.0, "gradients vanish on their way back: a higher learning rate would move only the last layers"
        )


def _about_the_way(chart: Chart, held: bool) -> Iterator[Evidence]:
    """Whether gradients or updates keep their direction from step to step."""
    cosine = chart["momentum_cosine"].last(8)
    if cosine.size >= 4 and median(cosine) > 0.6:
        short = not held and working_update(chart) < USUAL  # noise of labels or batches has no lasting direction
        text = f"gradients keep their direction from step to step: cosine {median(cosine):.2f}"
        yield Evidence(2.5 if short else 1.0, text)
    # If the weights hardly move at all, that is already reported, and something else may shorten the steps.
    if not held and goes_straight(chart) and 2e-5 < working_update(chart) < 10 * USUAL:
        way = median(chart["course"].last(4))
        yield Evidence(3.0, f"the weights move in one direction over dozens of steps: cosine {way:.2f}")


def _about_the_updates(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if (thrown := thrown_at_first(chart, problem)) > 0:
        text = f"each step changed the weights by {number_text(thrown)} of their norm until the outputs collapsed"
        yield Evidence(-3.0, f"{text}: steps are short only since then")
        return
    ratio = working_update(chart)
    if 0 < ratio < 2e-5:
        yield Evidence(3.0, f"each step changes the weights by only {number_text(ratio)} of their norm")
    elif 0 < ratio < 1e-4:
        yield Evidence(1.5, f"each step changes the weights by {number_text(ratio)} of their norm, usually 0.001")
    elif 0 < ratio * chart.step < SHORT:
        yield Evidence(
            1.5, f"in {chart.step} steps the weights changed by at most {number_text(ratio * chart.step)} of their norm"
        )
    elif ratio > USUAL:
        yield Evidence(-2.0, f"each step changes the weights by {number_text(ratio)} of their norm")
    if ratio < 1e-3 and falls_steadily(chart):
        yield Evidence(
            1.5, "the loss keeps falling at a constant pace: the direction is right, but the steps are short"
        )
