"""Numbers that are not there: NaN under the guises in which logs write it.

>>> chart = Chart.of(loss=[1.9, 1.8, 0.0, 0.0, 0.0], context={"source": "CSV"})
>>> print(*vanished(chart))
step 2: NU01 nan-or-inf (critical): loss is exactly 0 from step 2 on, after 1.8: some trainers write 0.0 where it is NaN
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Series
from torchdoctor.symptoms.nan_or_inf import NanOrInf
from torchdoctor.symptoms.progress import is_game
from torchdoctor.symptoms.skipped_steps import SkippedSteps

SMALLEST = 8.0
"""Loss scale under which small gradients are lost."""
OFTEN = 1 / 3
"""Share of all evaluations that are not finite, from which on a validation that came back is harmed all the same."""
ENOUGH = 5
"""Evaluations that were finite, after which one that is not, with nothing behind it, has ended the run."""
STEPS = {"lr": "the learning rate", "grad_norm": "the gradient norm", "loss_scale": "the loss scale"}
"""What a step has beside its loss, whatever that is."""
APART = 0.02
"""Share of its records by which a loss and what is beside it may differ in number where they are logged together."""
SURELY = 3
"""Records without a loss that are no accident of the end."""


def vanished(chart: Chart) -> Iterator[Symptom]:
    """A loss that is exactly zero from one point on: Hugging Face's Trainer writes 0.0 where the loss was NaN."""
    values, steps = chart["loss"].values, chart["loss"].steps
    zeros = int(np.argmax(np.append(values[::-1] != 0, True)))
    if zeros < 3 or is_game(chart):
        return
    before = values[: values.size - zeros]
    if before.size and not float(before[-1]) > 0.1 * float(before[0]) > 0:
        return
    first = int(steps[values.size - zeros])
    after = f", after {number_text(float(before[-1]))}" if before.size else ""
    message = f"loss is exactly 0 from step {first} on{after}: some trainers write 0.0 where it is NaN"
    yield Symptom(
        NanOrInf.name, NanOrInf.code, "critical", 0.85, first, int(steps[-1]), zeros, (), None, 0.0, None, message
    )


def not_finite(chart: Chart) -> Iterator[Symptom]:
    """Evaluations that are not finite up to the end, while training goes on; or one, with which the log ends.

    >>> chart = Chart.of(loss=[2.0, 1.8, 1.6, 1.5, 1.4, 1.3], context={"source": "CSV"})
    >>> for step, value in enumerate([2.1, 1.9, 1.7, 1.6, 1.5, math.nan]):
    ...     chart.put(step, "val_loss", value)
    >>> print(*not_finite(chart))
    step 5: NU01 nan-or-inf (critical): validation loss is NaN from step 5 on
    """
    series = chart["val_loss"]
    if series.nonfinite and math.isfinite(series.latest):
        yield from _seldom_finite(series)
    if not series.nonfinite or math.isfinite(series.latest):
        return
    bad = [step for step in series.nonfinite_steps if not series or step > series.steps[-1]]
    ended = len(bad) == 1 and bad[0] >= chart["loss"].step and series.count >= ENOUGH
    if len(bad) < 2 and chart["loss"].count > 2 and not ended:
        return
    lone = ended or (not chart["loss"] and not chart["loss"].nonfinite)
    message = f"validation loss is {number_text(series.latest)} from step {bad[0]} on"
    severity: Severity = "critical" if lone else "warning"
    yield Symptom(
        NanOrInf.name, NanOrInf.code, severity, 0.9, bad[0], series.step, len(bad), (), None, None, None, message
    )


def _seldom_finite(series: Series) -> Iterator[Symptom]:
    """Evaluations of which a third, or more, are not finite since the first that was, though the last one is.

    >>> chart = Chart.of(context={"source": "CSV"})
    >>> for step, value in enumerate([2.1, 1.9, *[math.nan] * 6, 1.6, math.nan, 1.5, 1.4]):
    ...     chart.put(step, "val_loss", value)
    >>> print(*not_finite(chart))
    step 2: NU01 nan-or-inf (warning): validation loss is not finite at 7 of 12 evaluations
    """
    bad = [step for step in series.nonfinite_steps if step > series.steps[0]]
    whole = series.count + series.nonfinite
    if len(bad) < ENOUGH or series.nonfinite < OFTEN * whole:
        return
    message = f"validation loss is not finite at {series.nonfinite} of {whole} evaluations"
    last, count = int(bad[-1]), series.nonfinite
    yield Symptom(NanOrInf.name, NanOrInf.code, "warning", 0.85, bad[0], last, count, (), None, None, None, message)


def counted(chart: Chart, episode: Symptom) -> Symptom:
    """A loss that is not finite, with how much of the log that is.

    >>> chart = Chart.of(loss=[2.0, math.nan, math.nan], context={"source": "CSV"})
    >>> print(counted(chart, Symptom("nan-or-inf", "NU01", "critical", 1.0, 1, 2, message="loss is NaN")))
    step 1: NU01 nan-or-inf (critical): loss is NaN up to the end, in 2 of 3 records
    """
    series = chart["loss"]
    if episode.name != NanOrInf.name or episode.message not in ("loss is NaN", "loss is inf"):
        return episode
    if math.isfinite(series.latest) or series.nonfinite < 2:
        return episode
    whole = series.count + series.nonfinite
    share = f"up to the end, in {series.nonfinite} of {whole} records" if series else f"in all {whole} records"
    return replace(episode, message=f"{episode.message} {share}")


def scaled_away(chart: Chart) -> Iterator[Symptom]:
    """The loss scale was halved again and again, to next to nothing: whatever it is, the gradients overflow.

    >>> chart = Chart.of(loss=[2.0] * 5, loss_scale=[64.0, 32.0, 16.0, 8.0, 4.0], context={"source": "CSV"})
    >>> print(*scaled_away(chart))
    step 0: NU02 skipped-steps (warning): the loss scale fell from 64 to 4: steps are skipped at every scale
    """
    series = chart["loss_scale"]
    if series.count < 3:
        return
    first, now = float(series.values[0]), float(series.values[-1])
    if now > SMALLEST or first < 4 * now or np.any(np.diff(series.values) > 0):
        return
    message = f"the loss scale fell from {number_text(first)} to {number_text(now)}: steps are skipped at every scale"
    begun, last = int(series.steps[0]), int(series.steps[-1])
    code, count = SkippedSteps.code, series.count
    yield Symptom(SkippedSteps.name, code, "warning", 0.8, begun, last, count, (), None, now, SMALLEST, message)


def left_empty(chart: Chart) -> Iterator[Symptom]:
    """A loss that ends while what each step had beside it goes on as before: NaN, written as null or an empty cell.

    Where that went on at evaluations alone, or was logged more often than the loss before, nothing is missing.

    >>> chart = Chart.of(loss=[2.0, 1.9, 1.8, 1.7], lr=[0.1] * 8, context={"source": "CSV"})
    >>> print(*left_empty(chart))
    step 4: NU01 nan-or-inf (critical): loss has no value after step 3, while the learning rate goes on: NaN is ...
    """
    series = chart["loss"]
    if series.count < SURELY or series.nonfinite or is_game(chart):
        return
    evaluated = [chart[name].steps for name in chart.vitals if name.startswith("val_")]
    for name, words in STEPS.items():
        later = chart[name].steps[chart[name].steps > series.step]
        alone = later[~np.isin(later, np.concatenate(evaluated))] if evaluated else later
        if alone.size < SURELY or not _go_together(series, chart[name]):
            continue
        starts, last = chart[name].outline.columns()[0], int(later[-1])
        first = int(starts[starts > series.step][0])
        message = f"loss has no value after step {series.step}, while {words} goes on: NaN is often written as null "
        message += "or left empty"
        count = max(later.size, chart[name].count - series.count)
        yield Symptom(NanOrInf.name, NanOrInf.code, "critical", 0.85, first, last, count, (), None, None, None, message)
        return


def _go_together(series: Series, other: Series) -> bool:
    """Whether two vitals were logged at the same steps for as long as there were both."""
    starts, size = other.outline.columns()[0], other.outline.stride
    both = int(np.count_nonzero((starts >= series.outline.start) & (starts <= series.step)))
    known = other.steps[(other.steps >= series.steps[0]) & (other.steps <= series.step)]
    if abs(both * size - series.count) > APART * series.count + (size if size > 1 else 0):
        return False
    return not known.size or float(np.isin(known, series.steps).mean()) >= 1 - APART


def broke_off(chart: Chart) -> Iterator[Symptom]:
    """A loss that is logged no more while what was logged beside it is: many writers leave a cell empty for NaN."""
    for loss, prefix in (("val_loss", "val_"), ("loss", "train_")):
        series = chart[loss]
        beside = [chart[name] for name in chart.vitals if name.startswith(prefix) and not name.endswith("loss")]
        if not series or series.nonfinite or not beside:
            continue
        other = max(beside, key=lambda item: item.count)
        later = other.steps[other.steps > series.step]
        together = np.isin(series.steps, other.steps).mean() > 0.9
        gaps = other.count - later.size > series.count + 1  # it was not at every one of them before, either
        if later.size < max(5, series.count) or not together or gaps:
            continue
        first = int(later[0])
        message = (
            f"{loss.replace('_', ' ')} is not logged from step {first} on, what was logged beside it is: often NaN"
        )
        last, count = int(later[-1]), later.size
        yield Symptom(NanOrInf.name, NanOrInf.code, "warning", 0.7, first, last, count, (), None, None, None, message)
        return
