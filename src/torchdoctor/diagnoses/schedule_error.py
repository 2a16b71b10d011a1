"""schedule-error."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import highest, lr_rise
from torchdoctor.records import number_text


class ScheduleError(Cause):
    """The learning rate schedule does not fit the run.

    ## What it is
    It reaches zero long before the end, is stepped at the wrong cadence (each batch instead of each epoch), or jumps.

    ## How to confirm it
    Plot the learning rate over steps: it is near zero while the loss still fell, or jumps where nothing was planned.

    ## What to change
    Give the schedule the real number of steps and call ``scheduler.step()`` at the cadence it counts in.

    ## How to see it cured
    The rate at the last step is the schedule's end, not earlier.
    """

    name = "schedule-error"
    explains = ("loss-plateau", "gradient-explosion", "loss-spike", "loss-divergence")
    prior = -2.0
    suggests = ("change-schedule",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the rate was near zero during a plateau, or jumped before trouble."""
        rates = chart["lr"]
        if not rates:
            return
        onset = problem.first_step
        if problem.has("loss-plateau"):
            now, before = highest(rates, onset, chart.step), highest(rates, 0, onset - 1)
            if now < 1e-3 * before:
                then = number_text(before)
                yield Evidence(5.0, f"the learning rate is {number_text(now)} since step {onset}; it was {then}")
            else:
                yield Evidence(-2.0, f"the learning rate is {number_text(rates.latest)}")
        elif (rise := lr_rise(chart, onset)) > 3:
            yield Evidence(4.5, f"the learning rate jumped to {number_text(rise)} times anything before")
        else:
            yield Evidence(-2.0, "the learning rate had not jumped")
