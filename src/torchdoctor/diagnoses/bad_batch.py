"""bad-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import (
    LEAP,
    SHARP,
    beyond_its_steps,
    breaking_step,
    is_brief,
    is_over,
    loss_leap,
    loss_moved_at,
    lr_leap,
    uneven_leap,
)
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.diagnoses.lasting_leaps import broke_later, is_not_one_batch
from torchdoctor.diagnoses.numeric_precision import is_overflow_of_a_batch
from torchdoctor.records import names_text, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.input_anomaly import InputAnomaly, erased_share
from torchdoctor.symptoms.no_gradient import fed_with_nothing
from torchdoctor.symptoms.target_values import part_off_at_times, stands_for_missing

ILL = ("not-learning", "gradient-instability", "loss-oscillation", "dead-units", "collapsed-output", "loss-divergence")
"""Findings that a run does not show before the bad batch, if that batch is the cause."""


DAMAGE = ("loss-divergence", "dead-units", "collapsed-output", "activation-explosion", "weight-growth")
"""Damage that a single batch leaves only if it is extreme."""


FAR = 100.0
"""Multiple of the recent level that a batch's loss must reach to break a run by itself."""
BLANK = 0.1
"""Share of blank samples above which they are not an accident."""


class BadBatch(Cause):
    """One batch is unlike the others (corrupt, mislabeled, on another scale), or all batches contain blank samples.

    ## What it is
    The loss and the gradient jump because of what is in the batch, not because of the weights. Blank samples, such as
    zeros in place of files that could not be read, have labels that nothing in them explains.

    ## How to confirm it
    Loss and gradient norm jump at the same step and are back to normal at the next one. Compute the loss of that batch
    again with other weights: it is unusually high again.

    ## What to change
    Look at the batch of that step: value range, labels, lengths. Filter it out, or clip gradients.

    ## How to see it cured
    The step passes without a spike, and no spike comes in the next epoch.
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
        """Whether the loss jumped at the same step, and whether the run recovered at once."""
        if found := _emptiness(chart, problem) or _no_measurement(chart, problem):
            yield Evidence(CERTAIN, found)
            return
        if not problem.has(*SHARP):
            yield Evidence(-5.0, "no single step stands out, and the samples are not blank")
            return
        onset = broke_later(chart, problem)[1] or breaking_step(problem)
        leap, moved = loss_leap(chart, onset), loss_moved_at(chart, onset)
        yield from _about_its_loss(chart, problem, onset, leap, moved)
        if problem.grave(*DAMAGE) and not leap > LEAP:
            yield Evidence(-2.0, "the run did not recover")
        elif is_brief(problem) and moved:  # otherwise, anything that heals is brief
            yield Evidence(1.2, "it lasted only a few steps")
            if is_over(chart, problem):
                yield Evidence(1.0, "the run went on as before")
        ill = [item for item in problem.symptoms if item.name in ILL and item.first_step < onset - 10]
        if ill:
            yield Evidence(-2.5, f"{ill[0].name} was already there at step {ill[0].first_step}")
        if lr_leap(chart, onset) > 2:
            yield Evidence(-2.5, "the learning rate had just risen")
        if chart["pooled_top_share"].latest > 0.85:
            yield Evidence(-2.5, "one class is so common that any batch with another class stands out")
        yield from _about_its_numbers(chart, onset)


def _emptiness(chart: Chart, problem: Problem) -> str:
    """Evidence that the inputs are empty, as a sentence; "" if they are not."""
    unmoved = problem.get("no-gradient")
    if unmoved is not None and fed_with_nothing(chart, unmoved.where):
        return f"{names_text(unmoved.where)}: zero gradient, although the biases have one: the layer input is all zeros"
    if not problem.has("input-anomaly") or erased_share(chart) > InputAnomaly.erased:
        return ""
    if last_level(chart["input_constant"], 3) == 1.0:
        return "all samples of a batch are equal: the loader does not read the real data"
    share = last_level(chart["input_blank"], 3)
    return f"{100 * share:.0f} % of the samples are blank: they were not read correctly" if share > BLANK else ""


def _no_measurement(chart: Chart, problem: Problem) -> str:
    """Evidence that some targets are not real measurements, as a sentence; "" if there is none."""
    if not problem.has("target-anomaly"):
        return ""
    missing = stands_for_missing(chart)
    if not math.isnan(missing):
        return f"the targets contain {number_text(missing)}, a placeholder for missing values"
    size = part_off_at_times(chart)
    return f"targets of one part of the loss are as large as {number_text(size)} in some batches" if size > 0 else ""


def _about_its_loss(chart: Chart, problem: Problem, step: int, leap: float, moved: bool) -> Iterator[Evidence]:
    if is_overflow_of_a_batch(chart, problem):
        words = "the loss became infinite in one step, and neither model nor loss divides"
        yield Evidence(2.5 if is_brief(problem) else 1.0, words)  # if it stays, the weights may be the cause
        return
    if moved_by_itself := uneven_leap(chart, step) or beyond_its_steps(chart, step):
        yield Evidence(-3.0, moved_by_itself)
    if is_not_one_batch(chart, step):
        yield Evidence(-3.0, "the losses after it are nearly as high: the cause is not a single batch")
    if leap > LEAP:
        words = (
            f"the loss of step {step} jumped by {number_text(leap)} times its recent level, before that step's update"
        )
        broke = problem.grave(*DAMAGE) and not leap > FAR  # steps that are too long do such damage as well
        yield Evidence(2.0 if broke else 3.0, words)
    elif moved:
        yield Evidence(1.2, f"the loss was already unusual at step {step}, before that step's update")
    elif not math.isnan(leap) or not chart["loss"] or step in chart["loss"].steps:  # else it is forgotten or not logged
        yield Evidence(-0.8, f"the loss of step {step} was ordinary")
    if problem.has("nan-or-inf") and not leap > LEAP:
        yield Evidence(-1.5, "non-finite values followed")


def _about_its_numbers(chart: Chart, step: int) -> Iterator[Evidence]:
    """The inputs and targets of the step itself, if they were sampled."""
    for vital, name in (("input_absmax", "input"), ("target_absmax", "target")):
        series = chart[vital]
        at, others = series.values[series.steps == step], series.values[series.steps != step]
        if not at.size or others.size < 4:
            continue
        usual = median(others)
        if float(at[0]) > 3 * max(usual, float(np.max(others)) / 2) > 0:
            text = f"the largest {name} value of step {step} is {number_text(float(at[0]))}"
            yield Evidence(3.0, f"{text}, {number_text(usual)} is usual")
