"""Overfitting as the end of a run shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import SEVERITIES, Severity, Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.curve import Curve, climbs, improved, shown
from torchdoctor.symptoms.overfitting import Overfitting, evaluation_noise, level_at, smoothed
from torchdoctor.symptoms.progress import Progress, is_game

STRONG = 0.15
"""Share of its best that validation lost: overfitting, however far it had come down before."""
MODERATE, SLIGHT = 0.05, 0.02
"""Shares of its gain, and of its best, that validation must have lost at least."""


def replace_overfitting(chart: Chart) -> None:
    """Say of overfitting what the end says; what was seen on the way stands where it did not come back."""
    final = list(_overfitted(chart))
    earlier = [episode for episode in chart.episodes if episode.name == Overfitting.name]
    rest = [episode for episode in chart.episodes if episode.name != Overfitting.name]
    if not final and earlier:
        final = [max(earlier, key=lambda episode: SEVERITIES.index(episode.severity))]
        excuse = _excuse(chart, final[0])
        if excuse and final[0].severity != "info":
            final = [replace(final[0], severity="info", message=f"{final[0].message}; {excuse}")]
    chart.episodes = rest + final


def _excuse(chart: Chart, found: Symptom) -> str:
    """Why validation that rose is no harm, in words; empty where there is no reason."""
    values = chart["val_loss"].values
    lowest = float(_levels(values).min()) if values.size else math.inf
    metric = improved(chart, found.first_step)
    if metric:
        return f"{metric.removeprefix('val_')} got better all the same"
    if _measures_others(chart):
        return "it is the mean of several evaluation sets"
    noise = evaluation_noise(values) if values.size > 5 else 0.0
    if median(values[-3:]) - lowest <= max(SLIGHT * abs(lowest), 2 * noise):
        return "it came back, or is within its noise"
    then, later = level_at(chart["loss"], found.first_step), level_at(chart["loss"], chart["val_loss"].step)
    return "" if later < then else "training got worse as well"


def _measures_others(chart: Chart) -> bool:
    """Whether validation is the mean of several sets, of which none is known to be like the training data."""
    columns = chart.context.get("columns") or {}
    return " + " in str(columns.get("val_loss", "")) and " + " not in str(columns.get("loss", ""))


def _overfitted(chart: Chart) -> Iterator[Symptom]:
    """Validation ends well above its best, having climbed there, while training went on falling."""
    curve = Curve.of(chart["val_loss"], "validation loss")
    values = curve.values
    if not chart["val_loss"].count and not is_game(chart):
        yield from _unlearns(chart)
    if values.size < 3 or not math.isfinite(chart["val_loss"].latest):
        return
    smooth = _levels(values)
    best = int(np.argmin(smooth))
    since = values.size - 1 - best
    if since < (2 if values.size < 8 else 3):
        return
    lowest, now = float(smooth[best]), median(values[-3:])
    rise = now - lowest
    train = chart["loss"]
    first = max(float(values[0]), Progress.of(train).start) if train else float(values[0])
    gained = max(first - lowest, 1e-12)
    noise = evaluation_noise(values) if values.size > 5 else 0.0
    strong = rise > STRONG * abs(lowest) and (since >= 4 or values.size < 6)
    slight = SLIGHT if values.size > 5 else MODERATE if values.size > 3 else STRONG
    if not rise > max(2 * noise, slight * abs(lowest)) or not (strong or rise > MODERATE * gained):
        return
    if climbs(values[best:]) < 0.4:
        return
    step = int(curve.steps[best])
    then, later = level_at(train, step), level_at(train, int(curve.steps[-1]))
    known = math.isfinite(then) and bool(train) and int(train.step) > step
    if known and not later < then:
        return
    severity: Severity = "critical" if rise > max(0.25 * gained, 0.1 * abs(lowest)) else "warning"
    message = f"validation loss rose from {number_text(lowest)} at step {step} to {number_text(now)}"
    message += f" while training went on to {number_text(later)}" if known else "; the training loss is not known"
    symptom = Symptom(
        Overfitting.name,
        Overfitting.code,
        severity,
        0.85,
        step,
        int(curve.steps[-1]),
        since,
        (),
        None,
        now,
        lowest,
        message,
    )
    excuse = _excuse(chart, symptom) if known or strong else "training is not known"
    yield replace(symptom, severity="info", message=f"{message}; {excuse}") if excuse else symptom


def _unlearns(chart: Chart) -> Iterator[Symptom]:
    """Validation has no loss but an accuracy, and this lost a third of its gain while training went on.

    >>> scores = [0.5 + 0.02 * min(step, 13) - 0.006 * max(step - 15, 0) for step in range(40)]
    >>> chart = Chart.of(loss=[0.7 - 0.01 * step for step in range(40)], val_accuracy=scores,
    ...     context={"source": "CSV", "better": {"val_accuracy": "higher"}})
    >>> print(*_unlearns(chart))
    step 13: GE01 overfitting (warning): validation accuracy fell from 0.76 at step 13 to 0.625 while training went on
    """
    for name, way in (chart.context.get("better") or {}).items():
        series = chart[name]
        if way != "higher" or not name.startswith("val_acc") or series.count < 16:
            continue
        curve = Curve.of(series, name.removeprefix("val_").replace("_", " "))
        smooth = smoothed(curve.values)
        best = int(np.argmax(smooth))
        highest, now, step = float(smooth[best]), curve.level, int(curve.steps[best])
        lost, gained = highest - now, highest - median(curve.values[:3])
        if not lost > max(0.33 * gained, 0.05 * highest, 2 * curve.noise) or climbs(curve.values[best:]) > -0.4:
            continue
        if not level_at(chart["loss"], int(curve.steps[-1])) < 0.95 * level_at(chart["loss"], step):
            continue
        message = (
            f"validation {curve.name} fell from {number_text(highest)} at step {step} to {number_text(now)} "
            "while training went on"
        )
        yield shown(Overfitting, curve, best, "warning", message, value=now, limit=highest)
        return


def _levels(values: Array) -> Array:
    """Medians of three, or of few evaluations all as they are."""
    return smoothed(values) if values.size > 5 else values
