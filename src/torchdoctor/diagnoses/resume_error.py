"""resume-error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import beyond_its_steps, breaking_step, highest
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.optimizer_misconfigured import has_unbounded_steps
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.validation_curve import never_followed

NEAR = 30
"""Steps after a resume within which a problem is attributed to it."""


class ResumeError(Cause):
    """Part of the training state was lost or overwritten, when the run was resumed or while it went on.

    ## What it is
    Weights were loaded, but the optimizer's moments, the schedule, the scaler, the sampler or the random state were
    not. Adam then repeats its first steps on trained weights, or the learning rate restarts at its peak. This also
    happens within a run: averaged weights used for validation are not swapped back, or only weights are reloaded.

    ## How to confirm it
    The loss or the learning rate jumps at the step where the run was resumed. Print
    ``optimizer.state_dict()["state"]`` right after loading: it must not be empty. Compare the learning rate before and
    after.

    ## What to change
    Save and load the model, optimizer, scheduler, scaler, step, epoch and random state together.

    ## How to see it cured
    Stop and resume a short run: ten steps later, loss and learning rate equal those of an uninterrupted run.

    ## When to stop
    If loss and learning rate continue unchanged across the resume, look for another cause, such as the data order.
    """

    name = "resume-error"
    explains = (
        "state-overwritten",
        "loss-spike",
        "loss-oscillation",
        "loss-divergence",
        "gradient-explosion",
        "gradient-instability",
        "update-ratio-abnormal",
        "validation-anomaly",
    )
    prior = -1.7
    suggests = ("restore-state", "restart-warmup", "roll-back")
    references = ("https://pytorch.org/tutorials/beginner/saving_loading_models.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the run was resumed or state was replaced just before the onset, and how the learning rate moved."""
        onset = problem.first_step
        resumed = [step for step in chart.resumed if step - 2 <= onset <= step + NEAR]
        gap = _gap_before(chart, onset)
        if resumed:
            yield Evidence(5.0, f"the run was resumed after step {resumed[-1]}, and the problem began at step {onset}")
        elif gap is not None:
            yield Evidence(4.0, f"step numbers jump from {gap[0]} to {gap[1]}, and the problem began at step {onset}")
        replaced = _replaced_before(chart, problem)
        if replaced:
            yield Evidence(CERTAIN - 1 if problem.has("state-overwritten") else 5.0, replaced)
            if set(problem.names) <= {"validation-anomaly", "overfitting"} and never_followed(chart):
                text = "validation was never good, and training is unaffected: weights are only swapped for validation"
                yield Evidence(-5.0, text)
        back = _rate_started_over(chart, onset)
        if back is None:
            if not resumed and gap is None and not replaced:
                yield _without_a_trace(chart, problem)
        else:
            low, now = back
            text = f"the learning rate had fallen to {number_text(low)} and jumped back to {number_text(now)}"
            yield Evidence(2.5, f"{text}, its old peak")


def _without_a_trace(chart: Chart, problem: Problem) -> Evidence:
    """The evidence of the weights if no loading was seen: moments can be lost without a trace."""
    beyond = "" if has_unbounded_steps(chart) else beyond_its_steps(chart, breaking_step(problem))
    if beyond:
        return Evidence(4.5, f"{beyond}: Adam's second moments were lost, or the weights were replaced")
    return Evidence(-3.0, "nothing shows that the run was resumed near the onset")


def _replaced_before(chart: Chart, problem: Problem) -> str:
    """What was replaced during the run, shortly before the onset; empty if nothing was."""
    if (seen := problem.get("state-overwritten")) is not None:
        return seen.message
    onset, restarted = problem.first_step, chart.fact("state.restarted")
    if restarted is not None and restarted <= onset <= restarted + NEAR:
        return f"the optimizer's step count restarted from zero at step {restarted}"
    for step in chart.fact("state.loaded") or ():
        if step <= onset <= step + 3:
            return f"a state was loaded into the model just before step {step}"
    for first, last in chart.fact("state.written") or ():
        if first <= onset <= last:
            return f"code outside the optimizer changed the weights between steps {first} and {last}"
    return ""


def _gap_before(chart: Chart, onset: int) -> tuple[int, int] | None:
    """The two step numbers around a gap shortly before the onset; None if there is none."""
    steps = chart["loss"].steps
    if steps.size < 20:
        return None
    sizes = np.diff(steps)
    usual = median(sizes)
    for place in np.flatnonzero(sizes > 10 * usual):
        if steps[place] <= onset <= steps[place + 1] + NEAR * usual:
            return int(steps[place]), int(steps[place + 1])
    return None


def _rate_started_over(chart: Chart, onset: int) -> tuple[float, float] | None:
    """The learning rate before and after a jump back to its early peak; None if it did not jump back.

    A schedule with restarts also jumps, but repeatedly, so only a single jump counts.
    """
    rates = chart["lr"]
    now, peak = highest(rates, onset - NEAR, onset), highest(rates, 0, max(onset - NEAR - 1, 0))
    about = rates.values[(rates.steps >= onset - NEAR) & (rates.steps <= onset)]
    values = rates.values
    if about.size < 2 or not np.all(values[:-1] > 0):
        return None
    leaps = np.flatnonzero(values[1:] > 3 * values[:-1])
    low = float(about.min())
    if leaps.size == 1 and now > 3 * low and 0.3 * peak <= now <= 1.01 * peak:
        return low, now
    return None
