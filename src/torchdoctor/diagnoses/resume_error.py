"""resume-error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import beyond_its_steps, breaking_step, highest
from torchdoctor.diagnoses.optimizer_misconfigured import has_unbounded_steps
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.validation_curve import never_followed

NEAR = 30
"""Steps after a resume within which trouble is put down to it."""


class ResumeError(Cause):
    """The run was resumed, and not everything came back with it.

    ## What it is
    Weights were loaded, but the optimizer's moments, the schedule, the scaler, the sampler or the random state were
    not. Adam then takes its first steps anew on trained weights, or the rate starts over at its peak. The same happens
    within a run: averaged weights are put in for a validation and stay, or a checkpoint is loaded and nothing else.

    ## How to confirm it
    The loss jumps, or the learning rate does, at the very step where the run was resumed. Print
    ``optimizer.state_dict()["state"]`` right after loading: it must not be empty. Compare the rate before and after.

    ## What to change
    Save and load model, optimizer, scheduler, scaler, step, epoch and random state together.

    ## How to see it cured
    Stop and resume a short run: ten steps later loss and rate are those of the run that was not interrupted.

    ## When to stop
    When loss and rate pass the resume unchanged: then the jump has another cause, such as the order of the data.
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
        """Whether the run was resumed just before, and what the learning rate did there."""
        onset = problem.first_step
        resumed = [step for step in chart.resumed if step - 2 <= onset <= step + NEAR]
        gap = _gap_before(chart, onset)
        if resumed:
            yield Evidence(5.0, f"the run was started again after step {resumed[-1]}, and this began at step {onset}")
        elif gap is not None:
            yield Evidence(4.0, f"steps jump from {gap[0]} to {gap[1]}, and this began at step {onset}")
        replaced = _replaced_before(chart, problem)
        if replaced:
            yield Evidence(CERTAIN - 1 if problem.has("state-overwritten") else 5.0, replaced)
            if set(problem.names) <= {"validation-anomaly", "overfitting"} and never_followed(chart):
                text = "validation was never good, and training noticed nothing: other weights are written to validate"
                yield Evidence(-5.0, text)
        back = _rate_started_over(chart, onset)
        if back is None:
            if not resumed and gap is None and not replaced:
                yield _without_a_trace(chart, problem)
        else:
            low, now = back
            words = (
                f"the learning rate had fallen to {number_text(low)} and was back at {number_text(now)}, its first peak"
            )
            yield Evidence(2.5, words)


def _without_a_trace(chart: Chart, problem: Problem) -> Evidence:
    """What the weights tell where nothing was seen to be loaded: moments can be lost without a trace."""
    beyond = "" if has_unbounded_steps(chart) else beyond_its_steps(chart, breaking_step(problem))
    if beyond:
        return Evidence(4.5, f"{beyond}: its second moments were lost, or weights were replaced")
    return Evidence(-3.0, "nothing shows that the run was resumed when this began")


def _replaced_before(chart: Chart, problem: Problem) -> str:
    """What was replaced while the run went on, shortly before an onset; empty where nothing was."""
    if (seen := problem.get("state-overwritten")) is not None:
        return seen.message
    onset, restarted = problem.first_step, chart.fact("state.restarted")
    if restarted is not None and restarted <= onset <= restarted + NEAR:
        return f"the optimizer counts its steps from zero again since step {restarted}"
    for step in chart.fact("state.loaded") or ():
        if step <= onset <= step + 3:
            return f"a state was loaded into the model before step {step}"
    for first, last in chart.fact("state.written") or ():
        if first <= onset <= last:
            return f"weights were written to by something else than the optimizer between steps {first} and {last}"
    return ""


def _gap_before(chart: Chart, onset: int) -> tuple[int, int] | None:
    """The two steps around a hole in the step labels, shortly before an onset; None where there is none."""
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
    """The rate before and after a leap back to where it had been at the start; None where it did not leap back.

    A schedule with restarts leaps as well: it does so again and again, so that only a single leap counts.
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
