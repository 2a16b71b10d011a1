"""lr-too-low."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.depth import decay_by_layer
from torchdoctor.diagnoses.findings import falls_steadily, highest, optimizer_names, thrown_at_first, working_update
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.progress import goes_straight
from torchdoctor.symptoms.slow_learning import ONWARD

UNUSUAL_EPS = 1e-4
"""An eps of Adam above which it may outweigh gradients that are not tiny."""
STILL = 1e-8
"""A rate at which no optimizer moves anything in a run's time."""

SHORT = 0.05
"""Share of themselves by which weights have moved at most, from which on nothing can have been learnt."""
USUAL = 3e-4
"""Share of themselves by which weights move a step at least where steps are not short."""


class LrTooLow(Cause):
    """The learning rate is too low: weights hardly move.

    ## What it is
    The steps are so short that the loss stands still although the gradient points somewhere.

    ## How to confirm it
    Update ratios under 1e-5 in all layers; a range test or a short trial at ten times the rate falls at once.

    ## What to change
    Double the learning rate, again while it helps.

    ## How to see it cured
    Update ratios about 1e-3, and a loss that falls again.

    ## When to stop
    When ten times the rate changes nothing: then the gradient does not reach the weights.
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
        """The size of updates and of the rate itself."""
        yield from _about_the_updates(chart, problem)
        slow = problem.get("slow-learning")
        held = problem.has("clipping-anomaly", "batch-anomaly")  # which shorten steps, or turn all of them one way
        onward = not held and slow is not None and ONWARD in slow.message
        rate, top = chart["lr"].latest, highest(chart["lr"], 0, chart.step)
        adaptive = "Adam" in optimizer_names(chart)
        if 0 < top < STILL:
            yield Evidence(4.0, f"the learning rate was never above {number_text(top)}: nothing can move at that")
        elif onward:  # while the rate was up
            yield Evidence(3.0, f"{ONWARD}, while the loss gains next to nothing: steps are short")
        elif rate <= 0.1 * top:
            yield Evidence(-2.0, f"the learning rate was {number_text(top)}; it is the schedule that has lowered it")
        elif 0 < rate < (3e-6 if adaptive else 1e-5):
            yield Evidence(2.2, f"the learning rate is {number_text(rate)}")
        elif rate >= (3e-4 if adaptive else 1e-2):
            yield Evidence(-1.0, f"a learning rate of {number_text(rate)} is not low")
        if not onward:
            yield from _about_the_way(chart, held)
        yield from _about_what_else_is_short(chart, problem)
        norms = chart["grad_norm"]
        if norms and norms.baseline(128).recent < 1e-10:
            yield Evidence(-4.0, "there is no gradient that a higher rate could scale")
        if problem.has("gradient-explosion", "loss-spike", "loss-divergence", "dead-units", "activation-explosion"):
            yield Evidence(-3.0, "steps that are too short break nothing")
        if problem.has("gradient-vanishing") and not problem.has("loss-plateau", "slow-learning", "not-learning"):
            yield Evidence(-2.0, "the loss has not stopped falling")


def _about_what_else_is_short(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """What makes steps short at any rate."""
    eps = max((item for group in chart.groups if isinstance(item := group.get("eps"), float)), default=0.0)
    if eps > UNUSUAL_EPS and chart["adam_eps_share"].latest > 0.5:
        yield Evidence(-3.0, f"eps of {number_text(eps)} makes steps short, whatever the rate")
    if problem.grave("gradient-vanishing") and decay_by_layer(chart, problem) > 1:
        yield Evidence(-2.0, "gradients are lost on their way back: a higher rate would move the last layers only")


def _about_the_way(chart: Chart, held: bool) -> Iterator[Evidence]:
    """Whether gradients, or the weights themselves, keep their direction."""
    cosine = chart["momentum_cosine"].last(8)
    if cosine.size >= 4 and median(cosine) > 0.6:
        short = not held and working_update(chart) < USUAL  # noise, of labels or batches, keeps no direction
        text = f"gradients keep their direction from step to step: {median(cosine):.2f}"
        yield Evidence(2.5 if short else 1.0, text)
    # where weights hardly move at all, that says so already, and whatever cuts steps may be what does it
    if not held and goes_straight(chart) and 2e-5 < working_update(chart) < 10 * USUAL:
        way = median(chart["course"].last(4))
        yield Evidence(3.0, f"weights keep one direction over dozens of steps: cosine {way:.2f}")


def _about_the_updates(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if (thrown := thrown_at_first(chart, problem)) > 0:
        text = f"weights moved by {number_text(thrown)} of themselves a step until outputs collapsed"
        yield Evidence(-3.0, f"{text}: steps are short since then")
        return
    ratio = working_update(chart)
    if 0 < ratio < 2e-5:
        yield Evidence(3.0, f"weights move by only {number_text(ratio)} of themselves a step")
    elif 0 < ratio < 1e-4:
        yield Evidence(1.5, f"weights move by {number_text(ratio)} of themselves a step, a thousandth is usual")
    elif 0 < ratio * chart.step < SHORT:
        yield Evidence(1.5, f"in {chart.step} steps weights have moved by at most {number_text(ratio * chart.step)}")
    elif ratio > USUAL:
        yield Evidence(-2.0, f"weights move by {number_text(ratio)} of themselves a step")
    if ratio < 1e-3 and falls_steadily(chart):
        yield Evidence(1.5, "the loss goes on falling at an even pace: the way is right, the steps are short")
