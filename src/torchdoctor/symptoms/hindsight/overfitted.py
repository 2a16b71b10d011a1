"""Overfitting as the end of a run shows it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import SEVERITIES, Severity, Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.accuracies import METRICS, learnt_by_heart, parts_ways, unlearns
from torchdoctor.symptoms.hindsight.curve import Curve, certainty, climbs, improved, shown, usual_change
from torchdoctor.symptoms.hindsight.gains import surely_lost
from torchdoctor.symptoms.overfitting import Overfitting, arrived, evaluation_noise, level_at, smoothed
from torchdoctor.symptoms.progress import Progress, is_game

STRONG = 0.15
"""Share of its best that validation lost: overfitting, however far it had come down before."""
MODERATE, SLIGHT = 0.05, 0.04
"""Shares of its gain, and of its best, that validation must have lost at least."""
SLIGHTLY = 0.25
"""Share of its best that validation may lose where every score is at its own best at the end."""
LOSING = 0.5
"""How much more of what it lacks a metric must gain, for as much as validation lost: a loss that doubles is dear."""
FAR = 8
"""Evaluations since the best, from which on it is known how near to it they come."""
LONG = 12
"""Evaluations after which validation that left its best will not come back."""
FEW = 6
"""Evaluations under which a rise must be twice as strong, where training is not far below it."""
STEPS, SHORT = 8, 24
"""Evaluations that are too few for their noise to be known, and enough to see that the best was left."""
STEADY = 5
"""Evaluations, each above the one before, that are no noise."""
STILL = 0.01
"""Share of itself within which training has not gone on."""
SURE = 2.0
"""Deviations of mere chance by which validation has climbed since its best, from which on its noise does not matter."""
SAME = 0.01
"""Share of all answers by which a metric is no worse than it was."""
CHANGES, CERTAIN = 5.0, 3.0
"""Times what evaluations change by from one to the next that validation has risen, where training is not below it, and
less of it the lower that is; or deviations of mere chance by which validation has climbed."""
MATERIAL, TIMES = 0.05, 0.0022
"""Share of its best that validation that surely climbed must have lost; and that times the share of its gain."""
ABOUT = 20
"""Share of all evaluations, one of so many, within which one is about another."""
AFTER, NEVER = 6, 1.3
"""Evaluations after the best of which none came near it; and how many times of it nearly all of them are, at least."""
NEXT_TO_NOTHING, GAP = 0.05, 20
"""Share of its start that training has become then; and how many times of that validation is."""
_WENT_ON = re.compile(r" while training went on to \S+?(?=;|\Z)")


def replace_overfitting(chart: Chart) -> None:
    """Say of overfitting what the end says; what was seen on the way stands where it did not come back."""
    final = list(_overfitted(chart)) or list(unlearns(chart))
    earlier = [episode for episode in chart.episodes if episode.name == Overfitting.name]
    rest = [episode for episode in chart.episodes if episode.name != Overfitting.name]
    if not final and earlier:
        final = [max(earlier, key=lambda episode: SEVERITIES.index(episode.severity))]
        excuse = _excuse(chart, final[0])
        if excuse and final[0].severity != "info":
            said = _WENT_ON.sub("", final[0].message)  # what was so at the time is not so at the end
            final = [replace(final[0], severity="info", message=f"{said}; {excuse}")]
    chart.episodes = rest + final


def _excuse(chart: Chart, found: Symptom) -> str:
    """Why validation that rose is no harm, in words; empty where there is no reason."""
    values = chart["val_loss"].values
    lowest = float(_levels(values).min()) if values.size else math.inf
    noise, now = evaluation_noise(values) if values.size > 5 else 0.0, _at_the_end(values)
    lost = max((now - lowest) / abs(lowest), 0.0) if lowest and math.isfinite(lowest) else 0.0
    metric = improved(chart, found.first_step, 0.1 + LOSING * min(lost, 1.0))
    if metric:
        return f"{metric.removeprefix('val_')} got better all the same"
    if lost < SLIGHTLY and _every_score_gains(chart, found.first_step):
        return "every score is at its best at the end"
    whole = Curve.of(chart["val_loss"], "")
    before = whole.values[whole.steps <= found.first_step]
    if before.size and now < 0.8 * float(before.min()):
        return f"later it fell to {number_text(now)}"
    if _measures_others(chart):
        return "it is the mean of several evaluation sets"
    if values.size > FAR and float(values[-1]) == float(values.min()):
        return "it came back"
    stands = found.value is not None and found.limit is not None and found.value < found.limit  # it never rose
    within = not stands and now - lowest <= max(SLIGHT * abs(lowest), 2 * noise)
    sure = (_left_at(values), _surely_left(chart, values), _ends_worse(chart, values), _far_apart(chart, values))
    if within and max(sure) < 0:
        return "it came back, or is within its noise"
    then, later = level_at(chart["loss"], found.first_step), level_at(chart["loss"], chart["val_loss"].step)
    return "training got worse as well" if later >= then else ""


def _every_score_gains(chart: Chart, since: int) -> bool:
    """Whether all scores of validation, whatever they are, have done nothing but gain since a step.

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
    """Whether validation is the mean of several sets, of which none is known to be like the training data."""
    columns = chart.context.get("columns") or {}
    return " + " in str(columns.get("val_loss", "")) and " + " not in str(columns.get("loss", ""))


def _overfitted(chart: Chart) -> Iterator[Symptom]:
    """Validation ends well above its best, having climbed there, while training went on falling."""
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
    left = [_risen_from(chart, values), _left_at(values)]
    left += [look(chart, values) for look in (_surely_left, _ends_worse, _far_apart)]
    places = [place for place in left if place >= 0]
    yield from [found for place in places for found in _since(chart, curve, place)][:1]


def _risen_from(chart: Chart, values: Array) -> int:
    """The place of the lowest level that validation has risen from, by more than its noise; -1 where it has not."""
    smooth = _levels(values)
    best = int(np.argmin(smooth))
    since = values.size - 1 - best
    if since < (2 if values.size < 8 else 3):
        return -1
    lowest, now = float(smooth[best]), _at_the_end(values)
    about = max(1, values.size // (2 * ABOUT))
    if now <= median(values[max(0, best - about) : best + about + 1]):  # the best was the trough of a swing
        return -1
    rise = now - lowest
    train = chart["loss"]
    first = max(float(values[0]), Progress.of(train).start) if train else float(values[0])
    gained = max(first - lowest, 1e-12)
    noise = evaluation_noise(values) if values.size > 5 else 0.0
    slight = SLIGHT if values.size > 3 else STRONG
    apart = since >= FAR and float(values[best + 2 :].min()) > (1 + STRONG) * lowest > 0  # never near it again
    gone = _is_gone(values, best, lowest)
    if not rise > max((1 if apart or gone else 2) * noise, slight * abs(lowest)):
        return -1
    enough = _is_strong(values, best, rise, lowest) or rise > MODERATE * gained
    climbing = climbs(values[best:]) >= (-1 if gone else 0.2 if apart else 0.4)
    return best if enough and climbing else -1


def _is_strong(values: Array, best: int, rise: float, lowest: float) -> bool:
    return rise > STRONG * abs(lowest) and (values.size - 1 - best >= 4 or values.size < 6)


def _since(chart: Chart, curve: Curve, best: int) -> Iterator[Symptom]:
    """What is said of validation that has risen from a place on, where training went on falling."""
    values, train = curve.values, chart["loss"]
    lowest, now = float(_levels(values)[best]), _at_the_end(values)
    if best in (_left_at(values), _far_apart(chart, values)):
        lowest, now = float(values[best]), float(np.mean(values[-2:]))
    elif best == _surely_left(chart, values):
        now = max(now, median(values[-max(3, (values.size - 1 - best) // 4) :]))
    rise, step = now - lowest, int(curve.steps[best])
    then, later = _levels_of_training(chart, step)
    if math.isnan(then) and train.count > 2:  # the first loss was written after it
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
    last = float(train.values[-1]) if known and train.count <= 2 * values.size else later  # means are told as they are
    message += f" while training went on to {number_text(last)}" if known else "; the training loss is not known"
    found = shown(Overfitting, curve, place, severity, message, confidence=0.85, value=now, limit=lowest)
    sure = known or _is_strong(values, best, rise, lowest)
    excuse = _excuse(chart, found) if sure else "training is not known"
    apart = min(later / lowest, 1.0) if known and lowest > 0 else 1.0  # of what is learnt by heart, nobody doubts it
    few = values.size < FEW and rise < 2 * STRONG * apart * abs(lowest)
    if not excuse and (few or _may_be_noise(values, best, rise, apart * CHANGES)):
        excuse = "that may be its noise"
    yield replace(found, severity="info", message=f"{message}; {excuse}") if excuse else found


def _levels_of_training(chart: Chart, step: int) -> tuple[float, float]:
    """The training loss about a step, and at the end; of few records those that are nearest, for they still fall."""
    train, end = Curve.of(chart["loss"], "loss"), chart["val_loss"].step
    if train.records > 2 * len(chart["val_loss"]) or train.values.size < 3:
        return level_at(chart["loss"], step), level_at(chart["loss"], end)
    place = int(np.searchsorted(train.steps, step, side="right")) - 1
    then = median(train.values[max(0, place - 1) : place + 2]) if place >= 0 else math.nan
    return then, _at_the_end(train.values[train.steps <= end])


def _may_be_noise(values: Array, best: int, rise: float, times: float) -> bool:
    """Whether validation rose by no more than so many times what it changes by, and does not surely climb.

    The best of many is luck, so it has no say in whether it climbs since.

    >>> flat, risen = np.array([0.30, 0.36, 0.33, 0.37, 0.36]), np.array([0.36, 0.30, 0.33, 0.37, 0.40, 0.44])
    >>> _may_be_noise(flat, 0, 0.06, 3.0), _may_be_noise(risen, 1, 0.14, 3.0)
    (True, False)
    """
    return rise < times * usual_change(arrived(values, best)) and certainty(values[best + 1 :]) < CERTAIN


def _as_logged(values: Array, best: int) -> int:
    """The place of the lowest value about a level: people look for a number that stands in their log.

    >>> _as_logged(np.array([2.1, 1.64, 1.52, 1.61, 1.9]), 1)
    2
    """
    reach = max(1, values.size // ABOUT)
    first = max(0, best - reach)
    return first + int(np.argmin(values[first : best + reach + 1]))


def _surely_left(chart: Chart, values: Array) -> int:
    """The place of the best that validation has climbed from, beyond chance and by what matters; -1 where it has not.

    The order of all evaluations since then tells, however noisy each is. A loss whose perplexity is logged as well is
    in nats: a rise by a tenth is one by a tenth of the perplexity.

    >>> noisy = [0.50, 0.40, 0.36, 0.45, 0.38, 0.47, 0.41, 0.44, 0.40, 0.52, 0.43, 0.48, 0.55, 0.46, 0.53, 0.56]
    >>> _surely_left(Chart.of(), np.array(noisy))
    3
    """
    smooth = _levels(values)
    best = int(np.argmin(smooth)) if values.size else 0
    since = values.size - 1 - best
    lowest = float(smooth[best]) if values.size else 0.0
    if since < 4 or not lowest > 0 or certainty(values[best:]) < SURE:
        return -1
    rise = median(values[-max(3, since // 4) :]) - lowest
    train = chart["loss"]
    first = max(float(values[0]), Progress.of(train).start) if train else float(values[0])
    lost = math.expm1(min(rise, 1.0)) if "val_ppl" in chart or "train_ppl" in chart else rise / lowest
    gained = max(first - lowest, 1e-12)
    plain = lost > STRONG or rise > MODERATE * gained or not _makes_no_more_errors(chart, best)
    matters = lost > MATERIAL and lost * rise / gained > TIMES and plain
    return best if matters else -1


def _ends_worse(chart: Chart, values: Array) -> int:
    """The place of the best of a validation that surely ends worse than it began; -1 where it or a metric does not."""
    return int(np.argmin(_levels(values))) if surely_lost(values) and not improved(chart, 0) else -1


def _far_apart(chart: Chart, values: Array) -> int:
    """The place of a best that validation never came near again while training went to next to nothing; -1 else.

    >>> chart = Chart.of(loss=[0.6, 0.4, 0.1, 0.05, 0.01, 0.006, 0.003, 0.002, 0.002])
    >>> _far_apart(chart, np.array([9.0, 0.8, 2.0, 1.3, 1.5, 1.3, 1.1, 1.2, 1.2]))
    1
    """
    train = chart["loss"].values
    best = int(np.argmin(values)) if values.size else 0
    later, lowest = values[best + 1 :], float(values[best]) if values.size else 0.0
    if later.size < AFTER or train.size < AFTER or not (lowest > 0 and float(train.min()) > 0):
        return -1
    now, learnt = median(values[-3:]), median(train[-3:])
    near = float(np.percentile(later, 10)) > NEVER * lowest and now > (NEVER + 0.1) * lowest
    return best if near and learnt < NEXT_TO_NOTHING * float(train[0]) and now > GAP * learnt else -1


def _makes_no_more_errors(chart: Chart, best: int) -> bool:
    """Whether a metric of validation is at the end what it was at the best loss, within a hundredth."""
    steps = Curve.of(chart["val_loss"], "").steps
    for name, way in (chart.context.get("better") or {}).items():
        curve = Curve.of(chart[name], "")
        then = curve.values[curve.steps >= (steps[best] if best < steps.size else 0)][:3]
        if way == "higher" and name.startswith(METRICS) and then.size == 3:
            top = 1.0 if float(np.abs(curve.values).max()) <= 1 else 100.0
            return median(curve.values[-3:]) >= median(then) - SAME * top
    return False


def _left_at(values: Array) -> int:
    """The place of a best that was left for good, as a few evaluations show it; -1 where they do not.

    Either each of five or more is above the one before, or the last two of at least three are well above the best, and
    above what came before it as well, or the last five are and it was left by and by.

    >>> _left_at(np.array([3.3, 2.7, 2.3, 2.2, 1.86, 1.82, 1.64, 1.79, 1.90, 2.10]))
    6
    >>> _left_at(np.array([3.3, 2.7, 2.3, 2.2, 1.86, 1.82, 1.64, 1.79, 1.70, 1.75]))
    -1
    """
    best = int(np.argmin(values)) if values.size else 0
    since, lowest = values.size - 1 - best, float(values[best]) if values.size else 0.0
    if not STEPS <= values.size <= SHORT or since < 3 or not lowest > 0 or best < 2 or climbs(values[best:]) < 0.3:
        return -1
    steadily = since >= STEADY and bool((np.diff(values[best:]) >= 0).all()) and float(values[-1]) > 1.06 * lowest
    last = float(values[-2:].min())
    far = last > (1 + STRONG) * lowest and last > float(values[best - 2 : best].max())
    late = values[-STEADY:]
    level = median(late) if since > STEADY else lowest
    gradual = float(values[min(best + 1, values.size - 1)]) < 0.5 * (lowest + level)  # else the best was luck
    kept = gradual and level > (1 + STRONG) * lowest and float(late.min()) > 1.1 * lowest
    return best if steadily or far or kept else -1


def _is_gone(values: Array, best: int, lowest: float) -> bool:
    """Whether validation left its best early and has been well above it ever since, however it swings."""
    later = values[best + 2 :]
    if later.size < LONG or not lowest > 0:
        return False
    near, late = float(np.percentile(later, 10)), median(later[-later.size // 4 :])
    return near > 1.1 * lowest and late > 1.2 * lowest


def _at_the_end(values: Array) -> float:
    """The median of the last three; of three or four in all, the mean of the last two."""
    return median(values[-3:]) if values.size > 4 or values.size < 3 else float(np.mean(values[-2:]))


def _first_and_last(chart: Chart) -> Iterator[Symptom]:
    """Of the first epoch and the last, which is all that was told: validation is far up, training next to nothing.

    >>> chart = Chart.of(loss=[0.048, 0.001], val_loss=[0.038, 0.092], context={"source": "CSV", "clock": "epoch"})
    >>> chart["val_loss"].steps[-1] = 29
    >>> print(*_first_and_last(chart))
    step 0: GE01 overfitting (warning): validation loss is 0.092 after 0.038 in the first epoch, training 0.001
    """
    curve, train = Curve.of(chart["val_loss"], "validation loss"), chart["loss"].values
    steps = chart["val_loss"].steps
    if train.size != 2 or chart.context.get("clock") != "epoch" or steps[-1] - steps[0] < 5:
        return
    first, now = float(curve.values[0]), float(curve.values[1])
    if now > 1.5 * first > 0 and float(train[1]) < 0.3 * float(train[0]):
        message = (
            f"validation loss is {number_text(now)} after {number_text(first)} in the first epoch, "
            f"training {number_text(float(train[1]))}"
        )
        yield shown(Overfitting, curve, 0, "warning", message, value=now, limit=first)


def _levels(values: Array) -> Array:
    """Medians of three, or of few evaluations all as they are."""
    return smoothed(values) if values.size > 5 else values
