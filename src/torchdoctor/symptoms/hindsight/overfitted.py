"""Overfitting, judged from the end of a run.

Where validation has left its best is found in `left_for_good.py`. Here it becomes a finding, if the training loss kept
falling: a warning, or a note with the reason why the rise is harmless.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import SEVERITIES, Severity, Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.accuracies import learnt_by_heart, parts_ways, unlearns
from torchdoctor.symptoms.hindsight.curve import Curve, certainty, improved, shown, usual_change
from torchdoctor.symptoms.hindsight.left_for_good import (
    ABOUT,
    FAR,
    MATERIAL,
    SLIGHT,
    STEPS,
    STRONG,
    end_level,
    from_and_to,
    is_strong,
    levels,
    places_left,
    places_surely_left,
)
from torchdoctor.symptoms.overfitting import Overfitting, arrived, evaluation_noise, level_at
from torchdoctor.symptoms.progress import Progress, is_game

SLIGHTLY = 0.25
"""Relative rise of validation below which it is excused if every metric improves up to the end."""
LOSING = 0.5
"""How much more of its gap to perfect a metric must close per relative rise of the validation loss to excuse it."""
FEW = 6
"""Number of evaluations below which the rise must be stronger, unless training loss is far below validation."""
STILL = 0.01
"""Relative fall of the training loss up to which it counts as unchanged."""
CHANGES, CERTAIN = 5.0, 3.0
"""A rise is not noise above this multiple of the typical change between evaluations (less if the training loss is far
below validation), or above this z-score of a trend."""
_FELL = re.compile(r" while (?:the )?training (?:loss )?(?:went on|fell|kept falling|improved) to \S+?(?=;|\Z)")
"""What the message of `overfitting` says about the training loss."""


def replace_overfitting(chart: Chart) -> None:
    """Replace findings of overfitting by what the end shows; an earlier one stays if validation did not come back.

    The end of a run whose training loss is NaN shows nothing: the model is broken.
    """
    broken = chart["loss"].nonfinite > 0 and not math.isfinite(chart["loss"].latest)
    final = [] if broken else list(_overfitted(chart)) or list(unlearns(chart))
    earlier = [episode for episode in chart.episodes if episode.name == Overfitting.name]
    rest = [episode for episode in chart.episodes if episode.name != Overfitting.name]
    if not final and earlier:
        final = [max(earlier, key=lambda episode: SEVERITIES.index(episode.severity))]
        excuse = _excuse(chart, final[0])
        if excuse and final[0].severity != "info":
            said = _FELL.sub("", final[0].message)  # the training loss may be different at the end
            final = [replace(final[0], severity="info", message=f"{said}; {excuse}")]
    chart.episodes = rest + final


def _excuse(chart: Chart, found: Symptom) -> str:
    """Why a validation loss that rose is harmless, in words; empty if there is no reason."""
    values = chart["val_loss"].values
    lowest = float(levels(values).min()) if values.size else math.inf
    noise, now = evaluation_noise(values) if values.size > 5 else 0.0, end_level(values)
    lost = max((now - lowest) / abs(lowest), 0.0) if lowest and math.isfinite(lowest) else 0.0
    metric = improved(chart, found.first_step, 0.1 + LOSING * min(lost, 1.0))
    if metric:
        return f"{metric.removeprefix('val_')} improved nevertheless"
    if lost < SLIGHTLY and _every_score_gains(chart, found.first_step):
        return "every metric is at its best at the end"
    whole = Curve.of(chart["val_loss"], "")
    before = whole.values[whole.steps <= found.first_step]
    if before.size and now < 0.8 * float(before.min()):
        return f"later it fell to {number_text(now)}"
    after = levels(whole.values[whole.steps > found.last_step])
    if before.size and after.size > 2 and float(after.min()) < (1 - MATERIAL) * float(before.min()):
        return f"later it fell to {number_text(float(after.min()))}"  # what it did since then is judged by itself
    if _measures_others(chart):
        return "the validation loss is a mean over several evaluation sets"
    if values.size > FAR and float(values[-1]) == float(values.min()):
        return "it came back down"
    stands = (
        found.value is not None and found.limit is not None and found.value < found.limit
    )  # it did not rise: it never fell
    within = not stands and now - lowest <= max(SLIGHT * abs(lowest), 2 * noise)
    if within and not places_surely_left(chart, values):
        return "it came back down, or the rise is within its noise"
    then, later = level_at(chart["loss"], found.first_step), level_at(chart["loss"], chart["val_loss"].step)
    return "training got worse as well" if later >= then else ""


def _every_score_gains(chart: Chart, since: int) -> bool:
    """Whether all validation metrics have improved at every evaluation since a step.

    >>> better = {"val_f1": "higher"}
    >>> _every_score_gains(Chart.of(val_f1=[0.73, 0.84, 0.852, 0.859], context={"better": better}), 1)
    True
    >>> _every_score_gains(Chart.of(val_f1=[0.73, 0.84, 0.859, 0.852], context={"better": better}), 1)
    False
    """
    gains = []
    for name, way in (chart.context.get("better") or {}).items():
        curve = Curve.of(chart[name], name)
        if name.startswith("val_") and curve.values.size:
            gains.append((1 if way == "higher" else -1) * np.diff(curve.values[curve.steps >= since]))
    return bool(gains) and all(gain.size > 1 and float(gain.min()) > 0 for gain in gains)


def _measures_others(chart: Chart) -> bool:
    """Whether the validation loss is a mean over several sets: none of them need be like the training data."""
    columns = chart.context.get("columns") or {}
    return " + " in str(columns.get("val_loss", "")) and " + " not in str(columns.get("loss", ""))


def _overfitted(chart: Chart) -> Iterator[Symptom]:
    """The validation loss ends well above its best after a climb, while the training loss kept falling."""
    curve = Curve.of(chart["val_loss"], "validation loss")
    values = curve.values
    if not chart["val_loss"].count and not is_game(chart):
        yield from parts_ways(chart)
    if values.size == 2 and not is_game(chart):
        yield from _first_and_last(chart)
    if not is_game(chart):
        yield from learnt_by_heart(chart)
    if values.size < 3 or not math.isfinite(chart["val_loss"].latest):
        return
    yield from [found for place in places_left(chart, values) for found in _since(chart, curve, place)][:1]


def _since(chart: Chart, curve: Curve, best: int) -> Iterator[Symptom]:
    """The finding about validation that has risen since index `best`, if the training loss kept falling."""
    values, train = curve.values, chart["loss"]
    lowest, now = from_and_to(chart, values, best)
    rise, step = now - lowest, int(curve.steps[best])
    then, later = _levels_of_training(chart, step)
    if math.isnan(then) and train.count > 2:  # the first training loss was logged later
        then = float(train.values[0])
    known = math.isfinite(then) and bool(train) and int(train.step) > step
    if known and not then - later > max(STILL * abs(then), 0.5 * Curve.of(train, "loss").noise):
        return
    first = max(float(values[0]), Progress.of(train).start) if train else float(values[0])
    grave = values.size >= STEPS and rise > max(0.25 * (first - lowest), 0.1 * abs(lowest)) and not later > lowest
    severity: Severity = "critical" if grave else "warning"
    place = _as_logged(values, best)
    since = f"{number_text(float(values[place]))} at step {int(curve.steps[place])}"
    message = f"validation loss rose from {since} to {number_text(now)}"
    last = float(train.values[-1]) if known and train.count <= 2 * values.size else later  # otherwise the mean
    message += f" while the training loss fell to {number_text(last)}" if known else "; the training loss is not known"
    found = shown(Overfitting, curve, place, severity, message, confidence=0.85, value=now, limit=lowest)
    sure = known or is_strong(values, best, rise, lowest)
    excuse = _excuse(chart, found) if sure else "the rise is small or recent"
    apart = min(later / lowest, 1.0) if known and lowest > 0 else 1.0  # less doubt if training data are memorized
    few = values.size < FEW and rise < 2 * STRONG * apart * abs(lowest)
    if not excuse and (few or _may_be_noise(values, best, rise, apart * CHANGES)):
        excuse = "the rise may be noise"
    yield replace(found, severity="info", message=f"{message}; {excuse}") if excuse else found


def _levels_of_training(chart: Chart, step: int) -> tuple[float, float]:
    """The training loss around a step and at the end; with few records, from the nearest ones, as they still fall."""
    train, end = Curve.of(chart["loss"], "loss"), chart["val_loss"].step
    if train.records > 2 * len(chart["val_loss"]) or train.values.size < 3:
        return level_at(chart["loss"], step), level_at(chart["loss"], end)
    place = int(np.searchsorted(train.steps, step, side="right")) - 1
    then = median(train.values[max(0, place - 1) : place + 2]) if place >= 0 else math.nan
    return then, end_level(train.values[train.steps <= end])


def _may_be_noise(values: Array, best: int, rise: float, times: float) -> bool:
    """Whether validation rose by less than a multiple of its typical change, and has no certain upward trend.

    The best evaluation is partly luck, so the trend is measured without it.

    >>> flat, risen = np.array([0.30, 0.36, 0.33, 0.37, 0.36]), np.array([0.36, 0.30, 0.33, 0.37, 0.40, 0.44])
    >>> _may_be_noise(flat, 0, 0.06, 3.0), _may_be_noise(risen, 1, 0.14, 3.0)
    (True, False)
    """
    return rise < times * usual_change(arrived(values, best)) and certainty(values[best + 1 :]) < CERTAIN


def _as_logged(values: Array, best: int) -> int:
    """The index of the lowest value near a smoothed best: users look for a number that is in their log.

    >>> _as_logged(np.array([2.1, 1.64, 1.52, 1.61, 1.9]), 1)
    2
    """
    reach = max(1, values.size // ABOUT)
    first = max(0, best - reach)
    return first + int(np.argmin(values[first : best + reach + 1]))


def _first_and_last(chart: Chart) -> Iterator[Symptom]:
    """If only two epochs are logged: validation loss has risen far, and training loss has fallen far.

    >>> chart = Chart.of(loss=[0.048, 0.001], val_loss=[0.038, 0.092], context={"source": "CSV", "clock": "epoch"})
    >>> chart["val_loss"].steps[-1] = 29
    >>> print(*_first_and_last(chart))
    step 0: GE01 overfitting (warning): validation loss rose from 0.038 in the first epoch to 0.092 while the ...
    """
    curve, train = Curve.of(chart["val_loss"], "validation loss"), chart["loss"].values
    steps = chart["val_loss"].steps
    if train.size != 2 or chart.context.get("clock") != "epoch" or steps[-1] - steps[0] < 5:
        return
    first, now = float(curve.values[0]), float(curve.values[1])
    if now > 1.5 * first > 0 and float(train[1]) < 0.3 * float(train[0]):
        message = (
            f"validation loss rose from {number_text(first)} in the first epoch to {number_text(now)} "
            f"while the training loss fell to {number_text(float(train[1]))}"
        )
        yield shown(Overfitting, curve, 0, "warning", message, value=now, limit=first)
