"""Missing numbers: the ways in which logs write or hide NaN.

>>> chart = Chart.of(loss=[1.9, 1.8, 0.0, 0.0, 0.0], context={"source": "CSV"})
>>> print(*vanished(chart))
step 2: NU01 nan-or-inf (critical): loss is exactly 0 from step 2 on, after 1.8: some trainers write 0.0 for NaN
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, names_text, number_text
from torchdoctor.series import Series
from torchdoctor.symptoms.nan_or_inf import NanOrInf
from torchdoctor.symptoms.progress import is_game
from torchdoctor.symptoms.skipped_steps import SkippedSteps

SMALLEST = 8.0
"""Loss scale at or below which a falling scale is reported: small gradients are lost."""
OFTEN = 1 / 3
"""Share of non-finite evaluations from which validation is reported although its last value is finite."""
ENOUGH = 5
"""Finite evaluations after which a single non-finite one at the end of the log is reported."""
STEPS = {"lr": "the learning rate", "grad_norm": "the gradient norm", "loss_scale": "the loss scale"}
"""Vitals that are logged at every step, whatever the loss is."""
APART = 0.02
"""Relative difference in number of records up to which two vitals count as logged together."""
TINY = 1e-3
"""A loss that was at most this may have reached 0, or been rounded to it."""
WRITTEN = "NaN is often written as null or an empty cell"
SURELY = 3
"""Records without a loss at the end that are needed for a finding."""
PAID = ("reward", "val_reward", "accuracy", "train_accuracy", "val_accuracy")
"""What a run without any loss is judged by."""


def vanished(chart: Chart) -> Iterator[Symptom]:
    """A loss that is exactly zero from one point on: Hugging Face's Trainer writes 0.0 for a NaN loss."""
    values, steps = chart["loss"].values, chart["loss"].steps
    zeros = int(np.argmax(np.append(values[::-1] != 0, True)))
    if zeros < 3 or is_game(chart):
        return
    before = values[: values.size - zeros]
    if before.size and not (float(before[-1]) > TINY and float(before[-1]) > 0.1 * float(before[0]) > 0):
        return
    first = int(steps[values.size - zeros])
    after = f", after {number_text(float(before[-1]))}" if before.size else ""
    message = f"loss is exactly 0 from step {first} on{after}: some trainers write 0.0 for NaN"
    yield Symptom(
        NanOrInf.name, NanOrInf.code, "critical", 0.85, first, int(steps[-1]), zeros, (), None, 0.0, None, message
    )


def not_finite(chart: Chart) -> Iterator[Symptom]:
    """Validation losses that are not finite up to the end; a single one counts if the log ends with it.

    >>> chart = Chart.of(loss=[2.0, 1.8, 1.6, 1.5, 1.4, 1.3], context={"source": "CSV"})
    >>> for step, value in enumerate([2.1, 1.9, 1.7, 1.6, 1.5, math.nan]):
    ...     chart.put(step, "val_loss", value)
    >>> print(*not_finite(chart))
    step 5: NU01 nan-or-inf (critical): validation loss is NaN from step 5 on
    """
    series = chart["val_loss"]
    if not series.nonfinite:
        yield from _infinite(chart)
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


def lost_for_good(chart: Chart) -> Iterator[Symptom]:
    """Losses other than the main one, or rewards and accuracies without any loss, that are not finite up to the end.

    A part that never had a value was not computed, unless no loss is finite any more. A reward may have no value while
    episodes go on, and an accuracy while there is nothing to count: they count if no loss is finite beside them.

    >>> gone = [math.nan] * 5
    >>> chart = Chart.of(d_loss=[1.4, 1.3, 1.2, *gone], g_loss=[0.7, 0.8, 0.8, *gone], context={"source": "CSV"})
    >>> print(*lost_for_good(chart))
    step 3: NU01 nan-or-inf (critical): d_loss, g_loss are NaN from step 3 to the end
    """
    main = chart["loss"]
    if main.nonfinite and not math.isfinite(main.latest):
        return  # found already
    losses = [name for name in chart.losses if chart[name] or chart[name].nonfinite]
    finite = bool(main) or any(math.isfinite(chart[name].latest) for name in losses)
    names = [name for name in losses if _is_lost(chart[name]) and (chart[name] or not finite)]
    severity: Severity = (
        "warning" if main and main.step >= max((chart[name].step for name in names), default=0) else "critical"
    )
    if not losses and not main and not chart["val_loss"]:
        names, severity = [name for name in PAID if chart[name].count >= SURELY and _is_lost(chart[name])], "warning"
    if not names:
        return
    worst = [chart[name] for name in names]
    since, last = min(series.broken_since for series in worst), max(series.step for series in worst)
    verb = "are" if len(names) > 1 else "is"
    message = f"{names_text(names)} {verb} {number_text(worst[0].latest)} from step {since} to the end"
    if chart.context.get("emptied"):
        message = f"{names_text(names)} {'have' if len(names) > 1 else 'has'} no value from step {since} on: {WRITTEN}"
    count = max(series.nonfinite for series in worst)
    yield Symptom(NanOrInf.name, NanOrInf.code, severity, 0.9, since, last, count, (), None, None, None, message)


def _is_lost(series: Series) -> bool:
    """Whether a series ends with two or more values that are not finite."""
    late = [step for step in series.nonfinite_steps if step >= series.broken_since]
    return bool(late) and len(late) > 1 and not math.isfinite(series.latest)


def _infinite(chart: Chart) -> Iterator[Symptom]:
    """The perplexity is infinite up to the end, at two or more evaluations.

    >>> chart = Chart.of(val_loss=[13.8, 13.8, 13.8], context={"source": "CSV"})
    >>> for step in range(3):
    ...     chart.put(step, "val_ppl", math.inf)
    >>> print(*_infinite(chart))
    step 0: NU01 nan-or-inf (warning): perplexity is infinite from step 0 on
    """
    series = chart["val_ppl"]
    bad = [step for step in series.nonfinite_steps if not series or step > series.steps[-1]]
    if len(bad) > 1 and math.isinf(series.latest):
        message = f"perplexity is infinite from step {bad[0]} on"
        last, count = int(bad[-1]), len(bad)
        yield Symptom(NanOrInf.name, NanOrInf.code, "warning", 0.85, bad[0], last, count, (), None, None, None, message)


def _seldom_finite(series: Series) -> Iterator[Symptom]:
    """Some evaluations are not finite, although the last one is: a warning if they are a third or more.

    >>> chart = Chart.of(context={"source": "CSV"})
    >>> for step, value in enumerate([2.1, 1.9, *[math.nan] * 6, 1.6, math.nan, 1.5, 1.4]):
    ...     chart.put(step, "val_loss", value)
    >>> print(*not_finite(chart))
    step 2: NU01 nan-or-inf (warning): validation loss is not finite at 7 of 12 evaluations
    """
    bad = [step for step in series.nonfinite_steps if step > series.steps[0]]
    whole = series.count + series.nonfinite
    often = len(bad) >= ENOUGH and series.nonfinite >= OFTEN * whole
    if not bad:
        return  # not measured before the first finite one
    message = f"validation loss is not finite at {series.nonfinite} of {whole} evaluations"
    severity: Severity = "warning" if often else "info"
    last, count = int(bad[-1]), series.nonfinite
    yield Symptom(NanOrInf.name, NanOrInf.code, severity, 0.85, bad[0], last, count, (), None, None, None, message)


def counted(chart: Chart, episode: Symptom) -> Symptom:
    """A finding about a non-finite loss, with the share of the log that it affects.

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
    if series and chart.context.get("emptied"):
        message = (
            f"loss has no value after step {series.steps[-1]}, in {series.nonfinite} of {whole} records: {WRITTEN}"
        )
        return replace(episode, message=message, confidence=0.85)
    share = f"up to the end, in {series.nonfinite} of {whole} records" if series else f"in all {whole} records"
    return replace(episode, message=f"{episode.message} {share}")


def scaled_away(chart: Chart) -> Iterator[Symptom]:
    """The loss scale was halved again and again down to a tiny value: the gradients overflow at every scale.

    >>> chart = Chart.of(loss=[2.0] * 5, loss_scale=[64.0, 32.0, 16.0, 8.0, 4.0], context={"source": "CSV"})
    >>> print(*scaled_away(chart))
    step 1: NU02 skipped-steps (warning): the loss scale fell from 64 to 4: steps are skipped at every scale
    """
    series = chart["loss_scale"]
    if series.count < 3:
        return
    first, now = float(series.values[0]), float(series.values[-1])
    if now > SMALLEST or first < 4 * now or np.any(np.diff(series.values) > 0):
        return
    message = f"the loss scale fell from {number_text(first)} to {number_text(now)}: steps are skipped at every scale"
    since = int(np.argmax(series.values < first))  # until then the scale was held
    begun, last = int(series.steps[since]), int(series.steps[-1])
    code, count = SkippedSteps.code, len(series) - since
    yield Symptom(SkippedSteps.name, code, "warning", 0.8, begun, last, count, (), None, now, SMALLEST, message)


def left_empty(chart: Chart) -> Iterator[Symptom]:
    """A loss that ends while other vitals of the same steps are still logged: NaN, written as null or an empty cell.

    Nothing is missing if these vitals go on only at evaluations, or were logged more often than the loss before.

    >>> chart = Chart.of(loss=[2.0, 1.9, 1.8, 1.7], lr=[0.1] * 8, context={"source": "CSV"})
    >>> print(*left_empty(chart))
    step 4: NU01 nan-or-inf (critical): loss has no value after step 3, but the learning rate is still logged: ...
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
        message = f"loss has no value after step {series.step}, but {words} is still logged: {WRITTEN}"
        count = max(later.size, chart[name].count - series.count)
        yield Symptom(NanOrInf.name, NanOrInf.code, "critical", 0.85, first, last, count, (), None, None, None, message)
        return


def _go_together(series: Series, other: Series) -> bool:
    """Whether two vitals were logged at the same steps as long as both exist."""
    starts, size = other.outline.columns()[0], other.outline.stride
    both = int(np.count_nonzero((starts >= series.outline.start) & (starts <= series.step)))
    known = other.steps[(other.steps >= series.steps[0]) & (other.steps <= series.step)]
    if abs(both * size - series.count) > APART * series.count + (size if size > 1 else 0):
        return False
    return not known.size or float(np.isin(known, series.steps).mean()) >= 1 - APART


def broke_off(chart: Chart) -> Iterator[Symptom]:
    """A loss that is no longer logged while metrics logged with it are: many loggers leave a cell empty for NaN."""
    for loss, prefix in (("val_loss", "val_"), ("loss", "train_")):
        series = chart[loss]
        beside = [chart[name] for name in chart.vitals if name.startswith(prefix) and not name.endswith("loss")]
        if not series or series.nonfinite or not beside:
            continue
        other = max(beside, key=lambda item: item.count)
        later = other.steps[other.steps > series.step]
        together = np.isin(series.steps, other.steps).mean() > 0.9
        gaps = other.count - later.size > series.count + 1  # the loss was missing in some records before as well
        if later.size < max(5, series.count) or not together or gaps:
            continue
        first = int(later[0])
        message = f"{loss.replace('_', ' ')} is not logged from step {first} on, but other metrics are: often NaN"
        last, count = int(later[-1]), later.size
        yield Symptom(NanOrInf.name, NanOrInf.code, "warning", 0.7, first, last, count, (), None, None, None, message)
        return
