"""saddle-point."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import level_about
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import number_text
from torchdoctor.series import Array, Series, median


class SaddlePoint(Cause):
    """The loss is at a saddle point: the gradient is near zero, but the loss curves downward in some direction.

    ## What it is
    The gradient is almost zero, but this is not a minimum: the curvature is negative in some direction. Symmetric
    weights and badly scaled problems create saddle points. Noise and momentum usually carry a run past them.

    ## How to confirm it
    The gradient norm falls as progress stops, and stays low. To be sure, measure the curvature along the steps
    (`settings.curvature`, off by default): if it stays negative, the loss curves downward ahead.

    ## What to change
    Momentum 0.9, a higher learning rate for a while, or a smaller batch for more noise. Break symmetric initialization.

    ## How to see it cured
    The gradient norm rises again and the loss falls.

    ## When to stop
    Saddle points rarely stop real runs. If two changes did not help, look for dead units or a loss that cannot fall.
    """

    name = "saddle-point"
    explains = ("loss-plateau", "not-learning", "gradient-vanishing")
    prior = -3.2
    suggests = ("set-momentum", "change-schedule", "initialize")
    references = ("https://arxiv.org/abs/1406.2572",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The curvature if measured, whether the gradient norm fell when progress stopped, and momentum."""
        looks = chart["curvature"].since(problem.first_step)[-8:]
        negative = float((looks < 0).mean()) if looks.size else math.nan
        if negative > 0.7:
            yield Evidence(
                4.0 if looks.size > 1 else 2.0, f"the loss curves downward along the steps: {_listed(looks)}"
            )
        elif negative < 0.3:
            yield Evidence(
                -3.0 if looks.size > 1 else -1.5, f"the loss curves upward along the steps: {_listed(looks)}"
            )
        norms, onset = chart["grad_norm"], problem.first_step
        before, after = level_about(norms, 0, onset - 1), level_about(norms, onset, chart.step)
        if fell_within_a_step(norms, onset):
            yield Evidence(-2.0, "the gradient vanished within one step, but a saddle point is reached gradually")
        elif after < 0.1 * before:
            yield Evidence(0.7, f"the gradient norm fell from {number_text(before)} to {number_text(after)}")
        elif after > 0.5 * before:
            yield Evidence(-1.0, "the gradient norm did not fall when progress stopped")
        momenta = [group.get("momentum") for group in chart.groups if "momentum" in group]
        if momenta and not any(momenta):
            yield Evidence(0.4, "SGD runs without momentum")


def fell_within_a_step(norms: Series, step: int) -> bool:
    """Whether a norm fell to below a hundredth of its value within one step.

    >>> norms = Chart.of(grad_norm=[1.0, 0.9, 1e-8])["grad_norm"]
    >>> fell_within_a_step(norms, 2), fell_within_a_step(norms, 1)
    (True, False)
    """
    now, before = norms.values[norms.steps == step], norms.values[norms.steps == step - 1]
    return bool(now.size and before.size and now[0] < 0.01 * before[0])


def _listed(looks: Array) -> str:
    return f"median curvature {number_text(median(looks))} in {looks.size} measurements"
