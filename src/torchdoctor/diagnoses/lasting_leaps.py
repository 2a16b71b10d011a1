"""Jumps of the loss that last: caused by an update, or by a change of data, labels, weights or loss."""

from __future__ import annotations

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import breaking_step, loss_moved_at, lr_leap
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.series import Array, median
from torchdoctor.symptoms.leaps import is_held

HELD = 0.4
"""Share of a jump that all the next losses must keep if the jump is not due to a single batch."""
BREAKING = 30.0
"""Multiple of its level above which a gradient norm may have broken the weights in one SGD step."""
ENDS = ("loss-divergence", "nan-or-inf")
"""Findings with which a run breaks for good, looked for at every step."""
NORMS = 8
"""Gradient norms that must be known before a step to tell whether one of them was unusual."""


def lasts_from(chart: Chart, step: int, losses: int = 4) -> bool:
    """Whether the losses right after a jump stay above the level before, by a good part of the jump.

    >>> back, up = ([1.0, 1.1] * 10 + [5.0, *after] for after in ([1.2, 1.0, 1.1, 1.0], [4.9, 5.2, 4.6, 4.8]))
    >>> lasts_from(Chart.of(loss=back), 20), lasts_from(Chart.of(loss=up), 20)
    (False, True)
    """
    series = chart["loss"]
    before = series.values[(series.steps < step) & (series.steps >= step - 24)]
    since = series.values[series.steps >= step][: losses + 1]
    if before.size < 8 or since.size <= losses:
        return False
    heights = since - median(before)
    return bool(heights[1:].min() > HELD * heights[0] > 0)


def is_not_one_batch(chart: Chart, step: int) -> bool:
    """Whether the loss jumped at a step and stays high although that step's own update was too short to cause it."""
    norms = chart["grad_norm"]
    earlier, at = norms_before(chart, step), norms.values[norms.steps == step]
    if not loss_moved_at(chart, step) or not lasts_from(chart, step):
        return False
    known = at.size > 0 and earlier.size > 0
    return is_held(chart) or not known or not float(at[0]) > BREAKING * median(earlier)


def is_other_since(chart: Chart, step: int, unusual: float = 3.0) -> bool:
    """The same, if no unusual step before and no jump of the learning rate explain it either.

    Then the cause is not an update: the data, the labels, the weights or the loss itself have changed.
    """
    earlier = norms_before(chart, step)
    if earlier.size < NORMS or not is_not_one_batch(chart, step) or lr_leap(chart, step) > 2:
        return False
    return float(earlier[-3:].max()) < unusual * median(earlier)


def broke_later(chart: Chart, problem: Problem, calm: int = 24) -> tuple[str, int]:
    """The finding with which the run broke if its first jump of the loss had been over for long by then, and its step.

    >>> from torchdoctor.records import Symptom
    >>> found = [Symptom(name, "", "warning", 0.9, step, 99) for name, step in
    ...          [("loss-spike", 30), ("loss-divergence", 90)]]
    >>> over, lasting = ([1.0] * 30 + [9.0] + [after] * 60 for after in (1.0, 9.0))
    >>> [broke_later(Chart.of(loss=losses), Problem(tuple(found))) for losses in (over, lasting)]
    [('loss-divergence', 90), ('', 0)]
    """
    onset, series = breaking_step(problem), chart["loss"]
    grave = [item for item in problem.symptoms if item.name in ENDS and item.severity != "info"]
    broke = min(grave, key=lambda item: item.first_step, default=None)
    if broke is None or broke.first_step < onset + calm:
        return "", 0
    at, steps = series.values[series.steps == onset], series.steps
    before = series.values[(steps < onset) & (steps >= onset - 24)]
    between = series.values[(steps > onset) & (steps < broke.first_step)]
    if not at.size or before.size < 8 or between.size < calm // 2:
        return "", 0
    over = median(between) - median(before) < 0.1 * (float(at[0]) - median(before))
    return (broke.name, broke.first_step) if over else ("", 0)


def norms_before(chart: Chart, step: int) -> Array:
    """The gradient norms of the 48 steps before a step, as far as they are known."""
    norms = chart["grad_norm"]
    return norms.values[(norms.steps < step) & (norms.steps >= step - 48)]
