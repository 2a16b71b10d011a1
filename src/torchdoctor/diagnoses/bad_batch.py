"""bad-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import (
    LEAP,
    SHARP,
    beyond_its_steps,
    breaking_step,
    is_brief,
    is_over,
    last_level,
    loss_leap,
    loss_moved_at,
    lr_leap,
    uneven_leap,
)
from torchdoctor.diagnoses.lasting_leaps import is_not_one_batch
from torchdoctor.diagnoses.numeric_precision import is_overflow_of_a_batch
from torchdoctor.records import names_text, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.input_anomaly import InputAnomaly, erased_share
from torchdoctor.symptoms.no_gradient import fed_with_nothing
from torchdoctor.symptoms.target_values import part_off_at_times, stands_for_missing

ILL = ("not-learning", "gradient-instability", "loss-oscillation", "dead-units", "collapsed-output", "loss-divergence")
"""What a run that was well until a batch came does not have."""


DAMAGE = ("loss-divergence", "dead-units", "collapsed-output", "activation-explosion", "weight-growth")
"""What one batch leaves behind only if it was far off."""


FAR = 100.0
"""Times its level that a batch's loss has to be at to break a run by itself."""
BLANK = 0.1
"""Share of samples without content from which they are no accident."""


class BadBatch(Cause):
    """One batch is unlike the others: corrupt, mislabelled, or on another scale; or samples are blank in all of them.

    ## What it is
    Its loss and gradient stand out because of what is in it, not because of the weights. Samples that could not be
    read, and are zeros instead, come with labels that nothing in them explains.

    ## How to confirm it
    Loss and gradient norm jump at the same step and are back at the next. Compute the loss of that batch again, with
    other weights: it stands out again.

    ## What to change
    Look at the batch of that step: value range, labels, lengths. Filter it, or clip so that it cannot harm.

    ## How to see it cured
    The step passes without a spike, and none comes in the next epoch.
    """

    name = "bad-batch"
    explains = (
        "loss-spike",
        "gradient-explosion",
        "loss-divergence",
        "nan-or-inf",
        "input-anomaly",
        "target-anomaly",
        "collapsed-output",
        "not-learning",
        "no-gradient",
    )
    prior = -1.2
    suggests = ("clean-data", "set-clip-norm", "skip-window")
    references = ("https://arxiv.org/abs/2204.02311",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the loss jumped at the same step, and whether everything was back at once."""
        if found := _emptiness(chart, problem) or _no_measurement(chart, problem):
            yield Evidence(CERTAIN, found)
            return
        if not problem.has(*SHARP):
            yield Evidence(-5.0, "no step stands out, and samples have content")
            return
        onset = breaking_step(problem)
        leap, moved = loss_leap(chart, onset), loss_moved_at(chart, onset)
        yield from _about_its_loss(chart, problem, onset, leap, moved)
        if problem.grave(*DAMAGE) and not leap > LEAP:
            yield Evidence(-2.0, "the run did not recover")
        elif is_brief(problem) and moved:  # else it is as brief as anything that heals
            yield Evidence(1.2, "it lasted only a few steps")
            if is_over(chart, problem):
                yield Evidence(1.0, "the run went on as before")
        ill = [item for item in problem.symptoms if item.name in ILL and item.first_step < onset - 10]
        if ill:
            yield Evidence(-2.5, f"{ill[0].name} was there at step {ill[0].first_step} already")
        if lr_leap(chart, onset) > 2:
            yield Evidence(-2.5, "the learning rate had just risen")
        if chart["pooled_top_share"].latest > 0.85:
            yield Evidence(-2.5, "one class is so common that any batch with another one stands out")
        yield from _about_its_numbers(chart, onset)


def _emptiness(chart: Chart, problem: Problem) -> str:
    """What says that inputs carry nothing; empty where they do."""
    unmoved = problem.get("no-gradient")
    if unmoved is not None and fed_with_nothing(chart, unmoved.where):
        return f"{names_text(unmoved.where)}: no gradient, and their biases have one: what enters is all zeros"
    if not problem.has("input-anomaly") or erased_share(chart) > InputAnomaly.erased:
        return ""
    if last_level(chart["input_constant"], 3) == 1.0:
        return "all samples of a batch are equal: what is read is not the data"
    share = last_level(chart["input_blank"], 3)
    return f"{100 * share:.0f} % of the samples are blank: what is read is not the data" if share > BLANK else ""


def _no_measurement(chart: Chart, problem: Problem) -> str:
    """Which number among the targets is none; empty where all may be."""
    if not problem.has("target-anomaly"):
        return ""
    missing = stands_for_missing(chart)
    if not math.isnan(missing):
        return f"{number_text(missing)} stands among the targets where nothing was measured"
    size = part_off_at_times(chart)
    return f"targets of one part of the loss are of size {number_text(size)} in some batches" if size > 0 else ""


def _about_its_loss(chart: Chart, problem: Problem, step: int, leap: float, moved: bool) -> Iterator[Evidence]:
    if is_overflow_of_a_batch(chart, problem):
        words = "the loss was infinite at once, and nothing in model or loss divides"
        yield Evidence(2.5 if is_brief(problem) else 1.0, words)  # one that stays may be the weights' doing
        return
    if moved_by_itself := uneven_leap(chart, step) or beyond_its_steps(chart, step):
        yield Evidence(-3.0, moved_by_itself)
    if is_not_one_batch(chart, step):
        yield Evidence(-3.0, "the losses after it are nearly as high: it was not one batch")
    if leap > LEAP:
        words = f"the loss of step {step} was {number_text(leap)} times above its level, before that step's update"
        broke = problem.grave(*DAMAGE) and not leap > FAR  # which steps that are too long do as well
        yield Evidence(2.0 if broke else 3.0, words)
    elif moved:
        yield Evidence(1.2, f"the loss stood out at step {step} itself, before that step's update")
    elif not math.isnan(leap) or not chart["loss"] or step >= int(chart["loss"].steps[0]):  # else it is long gone
        yield Evidence(-0.8, f"the loss of step {step} was ordinary")
    if problem.has("nan-or-inf") and not leap > LEAP:
        yield Evidence(-1.5, "values that are not finite followed")


def _about_its_numbers(chart: Chart, step: int) -> Iterator[Evidence]:
    """The batch of the step itself, if that step was looked at closely."""
    for vital, name in (("input_absmax", "input"), ("target_absmax", "target")):
        series = chart[vital]
        at, others = series.values[series.steps == step], series.values[series.steps != step]
        if not at.size or others.size < 4:
            continue
        usual = median(others)
        if float(at[0]) > 3 * max(usual, float(np.max(others)) / 2) > 0:
            text = f"the largest {name} of step {step} is {number_text(float(at[0]))}"
            yield Evidence(3.0, f"{text}, {number_text(usual)} is usual")
