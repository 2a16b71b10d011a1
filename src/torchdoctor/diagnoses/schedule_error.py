"""schedule-error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import highest, lr_leap
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import leading_rates
from torchdoctor.records import number_text
from torchdoctor.symptoms.frozen_weights import planned_rate
from torchdoctor.symptoms.progress import trend_gain


class ScheduleError(Cause):
    """The learning rate schedule does not fit the run.

    ## What it is
    The learning rate reaches zero long before the end of the run, or jumps. Often ``scheduler.step()`` is called at
    the wrong interval: every batch instead of every epoch, or never.

    ## How to confirm it
    Plot the learning rate over the steps: it is near zero while the loss is still falling, or jumps where no jump was
    planned.

    ## What to change
    Give the scheduler the real number of steps. Call ``scheduler.step()`` once per batch if its numbers count batches,
    once per epoch if they count epochs.

    ## How to see it cured
    The schedule ends at the last step of the run, not earlier.

    ## When to stop
    When a constant learning rate shows the same trouble: then the schedule is not the cause.
    """

    name = "schedule-error"
    explains = (
        "learning-rate-vanished",
        "schedule-anomaly",
        "loss-plateau",
        "slow-learning",
        "not-learning",
        "gradient-explosion",
        "loss-spike",
        "loss-divergence",
        "underfitting",
        "update-ratio-abnormal",
        "nan-or-inf",
    )
    prior = -1.5
    suggests = ("change-schedule",)
    references = ("https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the learning rate was near zero during a plateau, or jumped just before the onset."""
        rates = chart["lr"]
        if not rates:
            return
        if rates.lowest < 0:
            yield Evidence(CERTAIN, f"the learning rate went below zero, to {number_text(rates.lowest)}")
            return
        yield from _about_the_cadence(chart, problem)
        onset = problem.first_step
        if (cut := lowered_while_falling(chart)) is not None:
            yield Evidence(3.0, f"the scheduler lowered the learning rate at step {cut}, before the loss had a plateau")
        if (anomaly := problem.get("schedule-anomaly")) is not None:
            yield Evidence(_strength(chart, problem), anomaly.message)
        elif problem.has("learning-rate-vanished"):
            top = number_text(highest(rates, 0, chart.step))
            strength = 4.5 if problem.grave("learning-rate-vanished") else 1.0
            yield Evidence(
                strength, f"the learning rate is {number_text(rates.latest)}, down from {top}, and the run goes on"
            )
        elif problem.has("slow-learning", "not-learning"):
            yield from _about_the_start(chart)
        elif problem.has("loss-plateau"):
            now, before = highest(rates, onset, chart.step), highest(rates, 0, onset - 1)
            if now < 1e-3 * before:
                then = number_text(before)
                yield Evidence(5.0, f"the learning rate is {number_text(now)} since step {onset}, down from {then}")
            else:
                yield Evidence(-2.0, f"the learning rate is still {number_text(rates.latest)}")
        elif (rise := lr_leap(chart, onset)) > 2:
            yield Evidence(4.5, f"the learning rate jumped to {number_text(rise)} times its highest value before")
        else:
            yield Evidence(-2.0, "the learning rate did not jump before the onset")


def _strength(chart: Chart, problem: Problem) -> float:
    """The weight of a schedule anomaly: that the scheduler was never stepped is a fact, unless it was not due yet."""
    if chart.fact("schedule.stepped") is not False:
        return 5.0
    return CERTAIN if problem.grave("schedule-anomaly") else 3.0


def _about_the_cadence(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """Whether the scheduler was stepped, how often, and when its schedule ends."""
    name = chart.fact("schedule.class") or "the scheduler"
    if chart.fact("schedule.stepped") is False and chart.step >= 100 and not problem.has("schedule-anomaly"):
        yield Evidence(3.0, f"{name} was never stepped in {chart.step + 1} steps")
    if not chart.fact("schedule.per_batch") or chart["lr"].latest > 0.5 * highest(chart["lr"], 0, chart.step):
        return  # the learning rate is still high: that the schedule has ended does no harm
    total, milestones = chart.fact("schedule.total"), chart.fact("schedule.milestones") or ()
    planned = max([item for item in (total, *milestones) if isinstance(item, int)], default=0)
    if name == "StepLR" and 0 < planned < 0.3 * chart.step:
        yield Evidence(3.0, f"StepLR is stepped at every batch, and cuts the learning rate every {planned} batches")
    elif 0 < planned < 0.7 * chart.step:
        plan = "its milestones end" if milestones else "its schedule ends"
        yield Evidence(3.0, f"{name} is stepped at every batch, and {plan} after {planned} of {chart.step + 1} steps")


def lowered_while_falling(chart: Chart) -> int | None:
    """The step at which ReduceLROnPlateau first cut the learning rate below half while the loss was falling; else None.

    A step schedule does that on purpose. One that waits for a plateau must not.
    """
    if "Plateau" not in str(chart.fact("schedule.class") or chart.context.get("scheduler") or ""):
        return None
    buckets = chart["lr"].outline.buckets()
    top = max((bucket[3] for bucket in buckets), default=0.0)
    cut = next((bucket[0] for bucket in buckets if bucket[2] < 0.5 * top and bucket[0] > 0), None)
    if cut is None:
        return None
    before = np.array([bucket[2] for bucket in chart["loss"].outline.buckets() if cut / 2 <= bucket[0] < cut])
    gain, doubt = trend_gain(before)
    return cut if gain > 3 * doubt and gain > 0.02 * abs(float(before[0])) else None


def _working_share(chart: Chart, top: float) -> float:
    """The share of the run in which the learning rate was above a tenth of its maximum."""
    means = [bucket[2] for bucket in chart["lr"].outline.buckets()]
    return sum(mean > 0.1 * top for mean in means) / max(1, len(means))


def _about_the_start(chart: Chart) -> Iterator[Evidence]:
    """For a run that never learned: a warm-up that never began, or a learning rate of zero."""
    rates, named = chart["lr"], chart.context.get("scheduler") or chart.fact("schedule.class")
    top = highest(rates, 0, chart.step)
    if top == 0 and (elsewhere := highest(leading_rates(chart), 0, chart.step)) > 0:
        yield Evidence(-2.0, f"the learning rate of another parameter group is up to {number_text(elsewhere)}")
    elif top == 0:
        yield Evidence(5.0, "the learning rate has been 0 since the first step")
    elif rates.latest < 1e-3 * top and _working_share(chart, top) < 0.3:
        yield Evidence(3.0, f"the learning rate is {number_text(rates.latest)}, down from {number_text(top)}")
    elif top < 1.01 * rates.first and top < 0.1 * (planned := planned_rate(chart)):
        text = f"the learning rate has stayed at {number_text(top)} since the first step, but its schedule goes up to "
        yield Evidence(4.0, f"{text}{number_text(planned)}")
    elif named and top < 1e-5 and top < 1.01 * rates.first:
        yield Evidence(1.5, f"{named} is configured, but the learning rate has stayed at {number_text(top)}")
    else:
        yield Evidence(-2.0, f"the learning rate is {number_text(rates.latest)}")
