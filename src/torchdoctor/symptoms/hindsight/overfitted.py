"""Overfitting, judged from the end of a run."""

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
"""Relative rise of validation above its best that is overfitting, however far it had fallen before."""
MODERATE, SLIGHT = 0.05, 0.04
"""Least rise of validation, as a share of its earlier fall and of its best."""
SLIGHTLY = 0.25
"""Relative rise of validation below which it is excused if every metric improves up to the end."""
LOSING = 0.5
"""How much more of its gap to perfect a metric must close per relative rise of the validation loss to excuse it."""
FAR = 8
"""Evaluations since the best that show how near to it the later ones come."""
LONG = 12
"""Evaluations after which validation is not expected to return to its best."""
FEW = 6
"""Number of evaluations below which the rise must be stronger, unless training loss is far below validation."""
STEPS, SHORT = 8, 24
"""Numbers of evaluations between which the rule for short logs applies; below the first nothing is critical."""
STEADY = 5
"""Number of consecutive rises that is not noise."""
STILL = 0.01
"""Relative fall of the training loss up to which it counts as unchanged."""
SURE = 2.0
"""Mann-Kendall z-score of validation since its best from which its noise does not matter."""
SAME = 0.01
"""Difference of a metric, as a share of a perfect one, that does not count as worse."""
CHANGES, CERTAIN = 5.0, 3.0
"""A rise is not noise above this multiple of the typical change between evaluations (less if the training loss is far
below validation), or above this z-score of a trend."""
MATERIAL, TIMES = 0.05, 0.0022
"""Least relative rise of validation with a certain trend, and least product of it and the share of the fall lost."""
ABOUT = 20
"""Evaluations count as neighbors within one part in so many of the run."""
CLEAR = 4.0
"""Multiple of the usual change of later evaluations by which all of them are above an early best that was no luck."""
AFTER, NEVER = 6, 1.3
"""Fewest evaluations after a best that was never reached again, and the multiple of it that 90 % of them exceed."""
NEXT_TO_NOTHING, GAP = 0.05, 20
"""In that case, training loss must be below this share of its start, and validation above this multiple of it."""
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
    lowest = float(_levels(values).min()) if values.size else math.inf
    noise, now = evaluation_noise(values) if values.size > 5 else 0.0, _at_the_end(values)
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
    after = _levels(whole.values[whole.steps > found.last_step])
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
    sure = [_left_at(values), *(look(chart, values) for look in LEFT)]
    if within and max(sure) < 0:
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
    left = [_risen_from(chart, values), _left_at(values), *(look(chart, values) for look in LEFT)]
    places = [place for place in left if place >= 0]
    yield from [found for place in places for found in _since(chart, curve, place)][:1]


def _risen_from(chart: Chart, values: Array) -> int:
    """The index of the lowest level, if validation has risen from it by more than its noise; -1 otherwise."""
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
    """The finding about validation that has risen since index `best`, if the training loss kept falling."""
    values, train = curve.values, chart["loss"]
    lowest, now = float(_levels(values)[best]), _at_the_end(values)
    if best in (_left_at(values), _far_apart(chart, values), _left_at_once(chart, values)):
        lowest, now = float(values[best]), float(np.mean(values[-2:]))
    elif best == _surely_left(chart, values):
        now = max(now, median(values[-max(3, (values.size - 1 - best) // 4) :]))
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
    sure = known or _is_strong(values, best, rise, lowest)
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
    return then, _at_the_end(train.values[train.steps <= end])


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


def _surely_left(chart: Chart, values: Array) -> int:
    """The index of the best, if validation has a certain and material upward trend since then; -1 otherwise.

    The trend is certain by the order of all evaluations, however noisy each is. If the perplexity is logged as well,
    the loss is in nats: a rise by 0.1 is a rise of the perplexity by a tenth.

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
    """The index of the best, if validation certainly ends worse than it began and no metric improved; else -1."""
    return int(np.argmin(_levels(values))) if surely_lost(values) and not improved(chart, 0) else -1


def _far_apart(chart: Chart, values: Array) -> int:
    """The index of a best that validation never came near again while the training loss fell to almost 0; else -1.

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


def _left_at_once(chart: Chart, values: Array) -> int:
    """The index of an early best that is far below all later evaluations, which keep rising; -1 otherwise.

    A single low value may be luck, but not if the later ones vary by far less than they are above it.

    >>> _left_at_once(Chart.of(), np.array([7.04, 4.98, 5.24, 5.29, 5.28, 5.27, 5.36, 5.33, 5.36, 5.35]))
    1
    >>> _left_at_once(Chart.of(), np.array([7.04, 5.10, 5.24, 5.05, 5.28, 5.12, 5.36, 5.18, 5.30, 5.20]))
    -1
    """
    best = int(np.argmin(values)) if values.size else 0
    later, lowest = values[best + 1 :], float(values[best]) if values.size else 0.0
    if not 0 < best < values.size // 4 or later.size < AFTER or not lowest > 0:
        return -1
    gap, rises = float(later.min()) - lowest, median(later[-3:]) > median(later[:3]) and climbs(later) > 0.2
    return best if rises and gap > max(SLIGHT * lowest, CLEAR * usual_change(later)) else -1


def _makes_no_more_errors(chart: Chart, best: int) -> bool:
    """Whether a validation metric is no worse at the end than at the best loss, within one percent."""
    steps = Curve.of(chart["val_loss"], "").steps
    for name, way in (chart.context.get("better") or {}).items():
        curve = Curve.of(chart[name], "")
        then = curve.values[curve.steps >= (steps[best] if best < steps.size else 0)][:3]
        if way == "higher" and name.startswith(METRICS) and then.size == 3:
            top = 1.0 if float(np.abs(curve.values).max()) <= 1 else 100.0
            return median(curve.values[-3:]) >= median(then) - SAME * top
    return False


def _left_at(values: Array) -> int:
    """The index of the best in a short log, if validation has left it for good; -1 otherwise.

    One of these must be true: it has never fallen in five or more evaluations; the last two are well above the best and
    above the two before it; or the last five are well above it, and the rise was gradual.

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
    """Whether validation left its best early and has stayed well above it, however noisy it is."""
    later = values[best + 2 :]
    if later.size < LONG or not lowest > 0:
        return False
    near, late = float(np.percentile(later, 10)), median(later[-later.size // 4 :])
    return near > 1.1 * lowest and late > 1.2 * lowest


def _at_the_end(values: Array) -> float:
    """The median of the last three values; if there are only three or four, the mean of the last two."""
    return median(values[-3:]) if values.size > 4 or values.size < 3 else float(np.mean(values[-2:]))


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


def _levels(values: Array) -> Array:
    """Medians of three values; with five evaluations or fewer, the values themselves."""
    return smoothed(values) if values.size > 5 else values


LEFT = (_surely_left, _ends_worse, _far_apart, _left_at_once)
"""Ways in which a best that validation has left for good shows, beyond its noise."""
