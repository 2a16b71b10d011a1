"""lr-too-high."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import is_brief, is_over, loss_moved_at, lr_rise, update_level
from torchdoctor.records import number_text


class LrTooHigh(Cause):
    """The learning rate is too high for this model, batch and optimizer.

    ## What it is
    Each update overshoots: the step is longer than the stretch over which the gradient can be trusted.

    ## How to confirm it
    The trouble begins when the rate rises or peaks; weights move by more than a hundredth of themselves a step; from a
    checkpoint before the onset, a tenth of the rate passes the place without trouble.

    ## What to change
    Halve the learning rate, go back to a checkpoint from before the onset, and clip gradients.

    ## How to see it cured
    The loss falls below its level before the onset, without new explosions.
    """

    name = "lr-too-high"
    explains = ("gradient-explosion", "loss-spike", "loss-divergence", "gradient-instability", "nan-or-inf")
    prior = -0.5
    suggests = ("scale-lr", "set-clip-norm", "roll-back")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The rate about the onset, the size of updates, and whether the loss came back."""
        rise = lr_rise(chart, problem.first_step)
        yield from _about_the_rate(chart, rise)
        yield from _about_the_updates(update_level(chart, problem.first_step))
        onset = problem.first_step
        if not rise > 3 and loss_moved_at(chart, onset) and not loss_moved_at(chart, onset - 1):
            yield Evidence(-1.0, f"the loss stood out at step {onset} at once, before that step's update")
        if problem.grave("loss-divergence"):
            yield Evidence(1.7, "the loss left its level and did not come back")
        if problem.has("gradient-instability"):
            yield Evidence(1.0, "the gradient norm swings widely for a long time")
        if not problem.grave("loss-divergence", "gradient-instability") and is_brief(problem):
            yield Evidence(-1.0, "it lasted only a few steps")
            if is_over(chart, problem) and not rise > 3:
                yield Evidence(-1.5, "the run went on as before, at the same learning rate")
        if problem.names == ("nan-or-inf",):
            yield Evidence(-1.0, "neither gradient norm nor loss had risen before the first value that was not finite")


def _about_the_rate(chart: Chart, rise: float) -> Iterator[Evidence]:
    if rise > 3:
        rate = number_text(chart["lr"].latest)
        yield Evidence(4.0, f"the learning rate had just risen {number_text(rise)} times, to {rate}")
    elif rise > 1.001:
        yield Evidence(0.7, "the learning rate was at its highest so far when it began")
    elif rise <= 1.001:
        yield Evidence(-0.5, "the learning rate had not risen when it began")


def _about_the_updates(ratio: float) -> Iterator[Evidence]:
    if ratio > 1e-2:
        yield Evidence(2.0, f"weights moved by {number_text(ratio)} of themselves a step before it began")
    elif ratio < 1e-3:
        yield Evidence(-1.0, f"weights moved by only {number_text(ratio)} of themselves a step before it began")
