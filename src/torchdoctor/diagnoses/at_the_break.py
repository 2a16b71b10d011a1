"""What several causes ask about the step at which something broke: what jumped, how far, and whether it is over."""

from __future__ import annotations

import bisect
import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.records import number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.gradient_vanishing import weight_columns

SHARP = ("gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf", "skipped-steps")
"""Findings whose first step is known exactly."""
LEAP = 10.0
"""A loss that rises in one step by more than this multiple of its level is not explained by an ordinary update."""
LEAP_OF_A_WEIGHT, UNMOVED = 1e3, 1e3
"""Multiples of the usual level: if a gradient is infinite, the loss must have risen by more than the first. The
gradient that changed least must not exceed the second."""
BEYOND = 10.0
"""Growth of the weights beyond this multiple of what Adam's usual steps can add up to does not come from them."""
RAN_AWAY = 30.0
"""Multiple of its level that the loss or the gradient norm must exceed a few steps before, if training diverged."""
LATELY, LONG = 24, 240
"""Numbers of values that give its level. The longer one is for growth over more than `LATELY` steps."""


def breaking_step(problem: Problem) -> int:
    """The step at which something broke; the onset of the problem if nothing did.

    >>> from torchdoctor.records import Symptom
    >>> found = [Symptom(name, "", "warning", 0.9, step, 200) for name, step in
    ...          [("weight-growth", 100), ("loss-spike", 150)]]
    >>> breaking_step(Problem(tuple(found)))
    150
    """
    return min((item.first_step for item in problem.symptoms if item.name in SHARP), default=problem.first_step)


def level_about(series: Series, first: int, last: int) -> float:
    """The median level of a vital between two steps, from the outline; NaN if it has no value there."""
    means = [bucket[2] for bucket in series.outline.buckets() if first <= bucket[0] <= last]
    return median(means) if means else math.nan


def highest(series: Series, first: int, last: int) -> float:
    """The highest value of a vital between two steps, from the outline; NaN if it has no value there."""
    buckets = series.outline.buckets()
    low, high = (bisect.bisect_left(buckets, (step,)) for step in (first, last + 1))
    return max([bucket[3] for bucket in buckets[low:high]], default=math.nan)


def lr_rise(chart: Chart, onset: int, within: int = 30) -> float:
    """The highest learning rate just before an onset, divided by the highest before that; NaN if unknown."""
    now, before = highest(chart["lr"], onset - within, onset), highest(chart["lr"], 0, onset - within - 1)
    return now / before if before > 0 else math.nan


def lr_leap(chart: Chart, onset: int, within: int = 30) -> float:
    """The factor by which the learning rate jumped, shortly before an onset, above any earlier one; 1 if it did not.

    A jump happens from one step to the next: a warm-up rises far within thirty steps, but gradually. Of several
    parameter groups, the one with the largest jump counts.

    >>> lr_leap(Chart.of(lr=[1e-3] * 60 + [3e-2] * 5), onset=61)
    30.0
    >>> lr_leap(Chart.of(lr=[1e-3 * step for step in range(40)]), onset=35)
    1.0
    """
    groups = [chart[f"lr/{number}"] for number in range(1, min(len(chart.groups), 8))]
    leaps = [_leap_of(rates, onset, within) for rates in (chart["lr"], *groups)]
    return max(leaps + [_leap_away(chart["lr"], rates, onset, within) for rates in groups])


def _leap_away(common: Series, rates: Series, onset: int, within: int) -> float:
    """The same for a group that shared the common learning rate: its own is recorded only once it differs."""
    if not rates or rates.count > rates.steps.size or not onset - within <= rates.steps[0] <= onset:
        return 1.0
    before = highest(common, 0, int(rates.steps[0]) - 1)
    times = float(rates.values[0]) / before if before > 0 and rates.steps[0] >= 5 else 1.0
    return round(times, 6) if times > 2 else 1.0


def _leap_of(rates: Series, onset: int, within: int) -> float:
    about = (rates.steps >= onset - within) & (rates.steps <= onset)
    values = rates.values
    for place in np.flatnonzero(about):
        if place < 5 or not float(values[place]) > 2 * float(values[place - 1]):
            continue
        before = highest(rates, 0, int(rates.steps[place]) - 1)
        if before > 0 and float(values[place]) > 2 * before:
            return round(float(values[place]) / before, 6)
    return 1.0


def is_over(chart: Chart, problem: Problem, after: int = 5) -> bool:
    """Whether none of the problem's symptoms has been seen for a few steps."""
    return chart.step - problem.last_step >= after


def is_brief(problem: Problem, steps: int = 5) -> bool:
    """Whether no episode of the problem lasted longer than a few steps."""
    return all(symptom.last_step - symptom.first_step < steps for symptom in problem.symptoms)


def loss_moved_at(chart: Chart, step: int) -> bool:
    """Whether the loss at a step is unusually high compared with the steps before."""
    series = chart["loss"]
    at = series.values[series.steps == step]
    before = series.values[(series.steps < step) & (series.steps >= step - 24)]
    if not at.size or before.size < 8:
        return False
    centre = median(before)
    return float(at[0]) - centre > 6 * max(1.4826 * median(np.abs(before - centre)), 0.01 * abs(centre))


def loss_leap(chart: Chart, step: int) -> float:
    """The rise of the loss at a step, as a multiple of its level before; NaN if unknown."""
    series = chart["loss"]
    at = series.values[series.steps == step]
    before = series.values[(series.steps < step) & (series.steps >= step - 24)]
    if not at.size or before.size < 8:
        return math.nan
    centre = median(before)
    usual = max(abs(centre), 3 * 1.4826 * median(np.abs(before - centre)))
    return (float(at[0]) - centre) / usual if usual > 0 else math.nan


def uneven_leap(chart: Chart, step: int, times: float = 1e6) -> str:
    """That gradients jumped in some weights but not in others at a step, as a sentence; "" if they did not.

    An extreme batch passes through all layers and affects all their gradients. If a single weight was changed, the
    gradients of some layers stay as usual. Infinite gradients count only if the loss jumped as well. Otherwise a
    derivative is undefined, and a mask keeps it away from some weights.
    """
    rows = [(at, row) for at, row in chart.tensors("grad_norm").rows if row.size == len(chart.names)]
    columns = list(weight_columns(chart.names))
    before = [row[columns] for at, row in rows if at < step][-4:]
    here = [row[columns] for at, row in rows if at == step]
    if len(before) < 3 or not here or len(columns) < 2:
        return ""
    if np.isinf(here[0]).any() and not loss_leap(chart, step) > LEAP_OF_A_WEIGHT:
        return ""
    with np.errstate(all="ignore"):
        usual = np.median(np.array(before), axis=0)
        leaps = np.minimum(here[0], 1e38) / usual  # NaN carries no information
    known = np.isfinite(leaps) & (usual > 0)
    if known.sum() < 2 or not leaps[known].max() > times * max(1.0, float(leaps[known].min())):
        return ""
    if float(leaps[known].min()) > UNMOVED:  # then all of them jumped, as in a run that diverges
        return ""
    low, high = (int(np.flatnonzero(known)[place]) for place in (leaps[known].argmin(), leaps[known].argmax()))
    names = [chart.names[columns[place]] for place in (high, low)]
    text = f"at step {step} the gradient of {names[0]} is {number_text(float(leaps[high]))} times its usual size, that "
    text += f"of {names[1]} {number_text(float(leaps[low]))} times: a bad batch affects both, a changed weight does not"
    return text


def beyond_its_steps(chart: Chart, onset: int) -> str:
    """That weights grew around an onset by more than Adam's steps allow, as a sentence; "" if they did not.

    A step of Adam is about as long as its learning rate, however large the gradient, because of its second moments. If
    most weights change far more at once, those moments were lost or the weights were replaced. Steps of SGD are as long
    as the gradient, which any batch may make large, so they are not judged.
    """
    groups = [group for group in chart.groups if group.get("optimizer")]
    if not groups or not all("Adam" in str(group["optimizer"]) for group in groups):
        return ""
    rows = [(step, row) for step, row in chart.tensors("weight_norm").rows if row.size == len(chart.names)]
    before = [(step, row) for step, row in rows if step < onset]
    after = [(step, row) for step, row in rows if step > onset and np.isfinite(row).all()]
    usual = update_level(chart, onset)
    if not before or not after or not usual > 0:
        return ""
    (start, old), (end, new) = before[-1], after[0]
    columns = [index for index in weight_columns(chart.names) if old[index] > 0]
    rise = highest(chart["lr"], start, end) / max(highest(chart["lr"], 0, start), 1e-30)
    reach = usual * (end - start) * max(rise, 1.0)
    grown = median(new[columns] / old[columns]) - 1 if columns else 0.0
    if not grown > BEYOND * max(reach, 0.1):
        return ""
    words = f"weights grew by a factor of {number_text(grown + 1)} between steps {start} and {end}"
    return f"{words}, but Adam's usual steps add up to at most {number_text(reach)} of their norm"


def ran_away(chart: Chart, step: int, within: int = 3) -> bool:
    """Whether the loss or the gradient norm had grown far above its level already in the records before this step.

    A single operation or batch overflows in one step; steps that are too long take several. A detector may have missed
    this, because a young run has no level yet. Growth over fifty steps also raises the level of the last 24.

    >>> growing = [1.0] * 200 + [1.2**step for step in range(50)]
    >>> ran_away(Chart.of(loss=[1.0] * 250, grad_norm=growing), 250)
    True
    >>> ran_away(Chart.of(loss=[1.0, 2.0, 1.5, 40.0, 9e3, 8e9]), 6), ran_away(Chart.of(loss=[1.0] * 6 + [8e9]), 6)
    (True, False)
    """
    others = () if chart["loss"] else chart.losses
    for series in (chart[name] for name in ("loss", "grad_norm", *others)):
        known = series.values[series.steps < step]  # records, not steps: a log may hold every hundredth step
        before, lately = known[:-within], known[-within:]
        if not before.size or not lately.size:
            continue
        level = min(median(np.abs(before[-count:])) for count in (LATELY, LONG))
        if float(lately.max()) > RAN_AWAY * level > 0:
            return True
    return False


def finite_beside(chart: Chart, step: int) -> tuple[str, ...]:
    """Weights whose gradient was finite and not zero at a step at which gradients of other tensors were infinite."""
    rows = [row for at, row in chart.tensors("grad_norm").rows if at == step and row.size == len(chart.names)]
    if not rows or not np.isinf(rows[-1]).any():
        return ()
    return tuple(chart.names[index] for index in weight_columns(chart.names) if 0 < rows[-1][index] < math.inf)


def loss_was_finite(chart: Chart, step: int) -> bool | None:
    """Whether the loss of a step was finite; None if that is no longer known."""
    series = chart["loss"]
    if step in series.nonfinite_steps:
        return False
    forgotten = series.nonfinite > len(series.nonfinite_steps) and series.steps.size == series.count
    if forgotten and step <= series.step:  # all finite values are still known, but not all others
        return bool((series.steps == step).any())
    if series.steps.size and step >= int(series.steps[0]):
        return bool((series.steps == step).any())
    return None


def update_level(chart: Chart, before: int) -> float:
    """The median update ratio over all tensors at the last sample before a step; NaN if unknown."""
    for step, row in reversed(chart.tensors("update_ratio").rows):
        known = row[np.isfinite(row) & (row > 0)]
        if step < before and known.size:
            return median(known)
    return math.nan
