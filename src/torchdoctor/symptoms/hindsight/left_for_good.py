"""Whether validation has left its best for good, and where that best was.

This shows in several ways. For each of them a function returns the index of the best, or -1 if validation is still near
it or may come back.

>>> falls_and_rises = np.array([3.3, 2.7, 2.3, 2.2, 1.86, 1.82, 1.64, 1.79, 1.90, 2.10])
>>> places_surely_left(Chart.of(), falls_and_rises), places_surely_left(Chart.of(), falls_and_rises[:7])
([6], [])
"""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.accuracies import METRICS
from torchdoctor.symptoms.hindsight.curve import Curve, certainty, climbs, improved, usual_change
from torchdoctor.symptoms.hindsight.gains import surely_lost
from torchdoctor.symptoms.overfitting import evaluation_noise, smoothed
from torchdoctor.symptoms.progress import Progress

STRONG = 0.15
"""Relative rise of validation above its best that is overfitting, however far it had fallen before."""
MODERATE, SLIGHT = 0.05, 0.04
"""Least rise of validation, as a share of its earlier fall and of its best."""
LONG = 12
"""Evaluations after which validation is not expected to return to its best."""
STEPS, SHORT = 8, 24
"""Numbers of evaluations between which the rule for short logs applies; below the first nothing is critical."""
STEADY = 5
"""Number of consecutive rises that is not noise."""
SURE = 2.0
"""Mann-Kendall z-score of validation since its best from which its noise does not matter."""
SAME = 0.01
"""Difference of a metric, as a share of a perfect one, that does not count as worse."""
MATERIAL, TIMES = 0.05, 0.0022
"""Least relative rise of validation with a certain trend, and least product of it and the share of the fall lost."""
CLEAR = 4.0
"""Multiple of the usual change of later evaluations by which all of them are above an early best that was no luck."""
AFTER, NEVER = 6, 1.3
"""Fewest evaluations after a best that was never reached again, and the multiple of it that 90 % of them exceed."""
NEXT_TO_NOTHING, GAP = 0.05, 20
"""In that case, training loss must be below this share of its start, and validation above this multiple of it."""
FAR = 8
"""Evaluations since the best that show how near to it the later ones come."""
ABOUT = 20
"""Evaluations count as neighbors within one part in so many of the run."""


def places_left(chart: Chart, values: Array) -> list[int]:
    """Indices of bests that validation seems to have left, or surely has, in the order in which they are judged."""
    risen = _risen_from(chart, values)
    return [*([risen] if risen >= 0 else []), *places_surely_left(chart, values)]


def places_surely_left(chart: Chart, values: Array) -> list[int]:
    """Indices of bests that validation has left beyond its noise, by every way in which this shows."""
    return [place for place in (_left_at(values), *(look(chart, values) for look in LEFT)) if place >= 0]


def from_and_to(chart: Chart, values: Array, best: int) -> tuple[float, float]:
    """The levels between which validation rose from a best that it left, as measured by the way in which this shows."""
    if best in (_left_at(values), _far_apart(chart, values), _left_at_once(chart, values)):
        return float(values[best]), float(np.mean(values[-2:]))
    lowest, now = float(levels(values)[best]), end_level(values)
    if best == _surely_left(chart, values):
        now = max(now, median(values[-max(3, (values.size - 1 - best) // 4) :]))
    return lowest, now


def _risen_from(chart: Chart, values: Array) -> int:
    """The index of the lowest level, if validation has risen from it by more than its noise; -1 otherwise."""
    smooth = levels(values)
    best = int(np.argmin(smooth))
    since = values.size - 1 - best
    if since < (2 if values.size < 8 else 3):
        return -1
    lowest, now = float(smooth[best]), end_level(values)
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
    enough = is_strong(values, best, rise, lowest) or rise > MODERATE * gained
    climbing = climbs(values[best:]) >= (-1 if gone else 0.2 if apart else 0.4)
    return best if enough and climbing else -1


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


def _surely_left(chart: Chart, values: Array) -> int:
    """The index of the best, if validation has a certain and material upward trend since then; -1 otherwise.

    The trend is certain by the order of all evaluations, however noisy each is. If the perplexity is logged as well,
    the loss is in nats: a rise by 0.1 is a rise of the perplexity by a tenth.

    >>> noisy = [0.50, 0.40, 0.36, 0.45, 0.38, 0.47, 0.41, 0.44, 0.40, 0.52, 0.43, 0.48, 0.55, 0.46, 0.53, 0.56]
    >>> _surely_left(Chart.of(), np.array(noisy))
    3
    """
    smooth = levels(values)
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
    return int(np.argmin(levels(values))) if surely_lost(values) and not improved(chart, 0) else -1


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


def is_strong(values: Array, best: int, rise: float, lowest: float) -> bool:
    """Whether a rise is overfitting however far validation had fallen before, and not only in the last evaluations."""
    return rise > STRONG * abs(lowest) and (values.size - 1 - best >= 4 or values.size < 6)


def _is_gone(values: Array, best: int, lowest: float) -> bool:
    """Whether validation left its best early and has stayed well above it, however noisy it is."""
    later = values[best + 2 :]
    if later.size < LONG or not lowest > 0:
        return False
    near, late = float(np.percentile(later, 10)), median(later[-later.size // 4 :])
    return near > 1.1 * lowest and late > 1.2 * lowest


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


def levels(values: Array) -> Array:
    """Medians of three values; with five evaluations or fewer, the values themselves."""
    return smoothed(values) if values.size > 5 else values


def end_level(values: Array) -> float:
    """The median of the last three values; if there are only three or four, the mean of the last two."""
    return median(values[-3:]) if values.size > 4 or values.size < 3 else float(np.mean(values[-2:]))


LEFT = (_surely_left, _ends_worse, _far_apart, _left_at_once)
"""Ways in which a best that validation has left for good shows, beyond its noise."""
