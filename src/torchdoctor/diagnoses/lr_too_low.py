"""lr-too-low."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import update_level
from torchdoctor.records import number_text


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
    """

    name = "lr-too-low"
    explains = ("loss-plateau", "gradient-vanishing")
    prior = -1.2
    suggests = ("scale-lr",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The size of updates and of the rate itself."""
        ratio = update_level(chart, chart.step + 1)
        if ratio < 1e-5:
            yield Evidence(2.5, f"weights move by only {number_text(ratio)} of themselves a step")
        elif ratio > 1e-4:
            yield Evidence(-2.0, f"weights move by {number_text(ratio)} of themselves a step")
        rate = chart["lr"].latest
        if 0 < rate < 1e-6:
            yield Evidence(0.8, f"the learning rate is {number_text(rate)}")
        if not problem.has("loss-plateau"):
            yield Evidence(-2.0, "the loss has not stopped falling")
