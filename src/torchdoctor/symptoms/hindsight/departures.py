"""Losses that rose for good: above their start, far above their best, in one jump or slowly.

>>> chart = Chart.of(loss=[1.64, 11.8, 11.6, 10.4, 10.37, 10.37, 10.37], context={"source": "CSV"})
>>> print(*diverged(chart))
step 1: LO02 loss-divergence (critical): loss is about 10.4 at the end, above the 1.64 that the run began with
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.hindsight.creeping import ends_high
from torchdoctor.symptoms.hindsight.curve import FEW, Curve, climbs, improved, loss_of, shown, usual_change
from torchdoctor.symptoms.lopsided_losses import players
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.overfitting import arrived, smoothed
from torchdoctor.symptoms.progress import acts, is_game

GIVEN_BACK = 0.5
"""Share of its descent above which a loss that was lost again counts as diverged."""
CREEPING = 0.1
"""The same for a loss that has climbed steadily since its best."""
ABOVE = 0.25
"""Share of the start (or of the best) by which the end must exceed it to count as diverged."""
LEARNT = 0.7
"""If the best loss was below this share of the start, the run had learned something and lost it."""
MANY = 32
"""Points from which a run counts as long."""
ASTRAY = 2.0
"""Multiple of its start above which a loss is far off, even if it comes back."""
CHANGES = 3.0
"""Multiple of the typical change between records that the rise of a short log must exceed."""
THOUSAND = 1000
"""Multiple of their levels in the first half above which all losses must end, if they are players or parts; and share
of the usual loss in the first descent below which a low first value was luck."""
NOTHING = 1e-3
"""A loss below this is almost 0."""
RETURNS = frozenset(("actor", "policy", "critic", "value", "vf", "q", "qf", "td", "entropy", "alpha"))
"""Words in the names of losses that grow with the returns of an agent."""
YOUNG = 0.05
"""Share of a run after which its first descent is over: a spike that matters exceeds the level at this point."""


def diverged(chart: Chart) -> Iterator[Symptom]:
    """The loss ends above its start, lost its progress again, or has crept up from its best."""
    curve = loss_of(chart)
    if not curve or is_game(chart) or _began_with_luck(curve):
        return
    level, start, best = curve.level, curve.start, curve.best
    lowest = float(curve.values[best])
    rise, followed = level - lowest, _validation_follows(chart)
    if followed is False and curve.values.size < 2 * FEW and chart.context.get("clock") != "epoch":
        return  # a few noisy batches while validation did not rise
    if curve.values.size < MANY and not rise > CHANGES * usual_change(arrived(curve.values, best)):
        return  # so few and noisy that the end level is chance
    late = curve.values[-max(3, curve.values.size // 4) :]
    far = rise > (ABOVE if followed is None else 0.1 if followed else 1.0) * abs(lowest)
    never_back = float(curve.values[1:].min()) > (1 + ABOVE) * start > 0 or _never_came_down(curve)
    settled = late.size >= 3 and float(np.ptp(late)) < 0.1 * rise  # with few points, the jump itself counts as noise
    surely = late.size >= MANY // 2 and float(late.min()) > (1 + ABOVE) * start  # all of many values, however noisy
    held_up = surely or ((settled or rise > 6 * curve.noise) and float(late.min()) > lowest + 0.3 * rise)
    lasting = held_up or _is_far_away(curve, late)
    said = f"{curve.name} is about {number_text(level)} at the end"
    above = level > start + ABOVE * abs(start) and float(late.min()) > start > 0
    if far and (never_back or (lasting and above)):
        since = int(np.argmax(curve.values > start + ABOVE * abs(start)))
        learnt = lowest < LEARNT * start
        severity: Severity = "critical" if level > 2 * start or (learnt and lasting) else "warning"
        message = f"{said}, above the {number_text(start)} that the run began with"
        message += f"; its best was {number_text(lowest)} at step {int(curve.steps[best])}" if learnt else ""
        yield shown(LossDivergence, curve, since, severity, message, value=level, limit=start)
        return
    given_back = far and lasting and rise > GIVEN_BACK * (start - lowest) > 0
    crept = lasting and start > lowest and _crept(chart, curve, followed)
    left = (followed or _both_are_up(chart, curve)) and _is_lost(curve, late)
    alone = followed is None and (_is_up(curve, late) or ends_high(curve))
    if given_back or crept or left or _left_at_last(curve) or alone:
        message = f"{said}; its best was {number_text(lowest)} at step {int(curve.steps[best])}"
        yield shown(LossDivergence, curve, _left(curve, best, rise), "warning", message, value=level, limit=lowest)


def all_diverged(chart: Chart) -> Iterator[Symptom]:
    """The losses of both players, or of all parts of a loss that is not logged, have grown a thousandfold to the end.

    Losses below zero and those of reinforcement learning are not judged: they have no level, or that of the returns.

    >>> grown = [1.0] * 40 + [1.3**step for step in range(40)]
    >>> print(*all_diverged(Chart.of(d_loss=grown, g_loss=grown)))
    step 49: LO02 loss-divergence (critical): d_loss rose from 1 to 11187, and g_loss from 1 to 11187
    """
    names = players(chart) or tuple(chart.losses)
    if chart["loss"] or len(names) < 2 or acts(chart) or any(RETURNS.intersection(name.split("_")) for name in names):
        return
    curves = [Curve.of(chart[name], name) for name in names]
    if any(curve.values.size < MANY // 2 or not chart[curve.name].lowest > 0 for curve in curves):
        return
    levels = [median(curve.values[: curve.values.size // 2]) for curve in curves]
    ends = [float(curve.values[-max(3, curve.values.size // 20) :].min()) for curve in curves]
    if not all(end > THOUSAND * level for end, level in zip(ends, levels, strict=True)):
        return
    calm = np.flatnonzero(curves[0].values < ASTRAY * 5 * levels[0])
    words = [
        f"from {number_text(level)} to {number_text(curve.level)}" for curve, level in zip(curves, levels, strict=True)
    ]
    message = f"{names[0]} rose {words[0]}, and {names[1]} {words[1]}"
    message += f"; {len(names) - 2} more rose as well" if len(names) > 2 else ""
    since, level = int(calm[-1]) + 1, curves[0].level
    yield shown(LossDivergence, curves[0], since, "critical", message, value=level, limit=THOUSAND * levels[0])


def _began_with_luck(curve: Curve) -> bool:
    """Whether the loss has fallen a thousandfold since the first records, to almost 0: a lower first one was luck.

    A loss that exploded at once and settled above its start is not almost 0.

    >>> falls = [1e-7, 6e-9, 0.13, 0.69, *np.geomspace(0.2, 3e-7, 60)]
    >>> _began_with_luck(Curve("loss", np.arange(64), np.array(falls)))
    True
    """
    first = curve.values[: max(FEW, round(YOUNG * curve.values.size))]
    fell = 0 < curve.level < min(median(first) / THOUSAND, NOTHING)
    return fell and int(np.argmin(curve.values)) < first.size


def _left(curve: Curve, best: int, rise: float) -> int:
    """The index from which a curve stays above its best by a tenth of the rise.

    >>> _left(Curve("loss", np.arange(8), np.array([3.0, 1.0, 1.1, 1.05, 1.2, 2.0, 2.9, 3.0])), 1, 2.0)
    4
    """
    near = np.flatnonzero(curve.values < float(curve.values[best]) + 0.1 * rise)
    return min(int(near[-1]) + 1, curve.values.size - 1) if near.size else best


def _is_far_away(curve: Curve, late: Array) -> bool:
    """Whether the whole end is above five times the highest value of the first third."""
    begun = curve.values[: curve.values.size // 3]
    return curve.values.size >= 2 * FEW and float(late.min()) > 5 * float(begun.max()) > 0


def _never_came_down(curve: Curve) -> bool:
    """Whether all values are above the first, and half of them nearly twice as high."""
    first = curve.start
    low, usual = float(curve.values[1:].min()), median(curve.values)
    return curve.values.size >= 2 * FEW and low > 1.1 * first > 0 and min(usual, curve.level) > 1.8 * first


def _crept(chart: Chart, curve: Curve, followed: bool | None) -> bool:
    """Whether the loss has climbed from its best for a good part of the run, and no metric improved."""
    lowest, since = float(curve.values[curve.best]), curve.values[curve.best :]
    climbing, rise = climbs(since), curve.level - lowest
    if since.size < 0.2 * curve.values.size or climbing < 0.5 or improved(chart, int(curve.steps[curve.best])):
        return False
    if followed:
        return rise > ABOVE * abs(lowest)
    surely = rise > abs(lowest) or (climbing > 0.6 and curve.values.size >= 32)
    return followed is None and surely and rise > CREEPING * (curve.start - lowest)


def _is_lost(curve: Curve, late: Array) -> bool:
    """Whether the last quarter is at twice or more of the low level that the run had held."""
    held = float(np.percentile(smoothed(curve.values), 10)) if curve.values.size > 11 else 0.0
    return held > 0 and float(late.min()) > 2 * held and curve.level > 3 * held


def _both_are_up(chart: Chart, curve: Curve) -> bool:
    """Whether the loss has climbed steadily since its best, and validation ends above twice its best."""
    held_out = Curve.of(chart["val_loss"], "validation loss")
    if not held_out or not chart["loss"] or climbs(curve.values[curve.best :]) < 0.8:
        return False
    return held_out.level > 2 * float(held_out.values[held_out.best]) > 0


def _is_up(curve: Curve, late: Array) -> bool:
    """Whether the last quarter of a long run is at 1.5 times or more of the low level that the run had held."""
    if curve.values.size < MANY:
        return False
    held = float(np.percentile(smoothed(curve.values), 10))
    return held > 0 and float(late.min()) > 1.5 * held and curve.level > 1.8 * held


def _left_at_last(curve: Curve) -> bool:
    """Whether the last records, three or more, are all above twice the lowest before, after a calm stretch.

    >>> _left_at_last(Curve("loss", np.arange(25), np.array([0.5 - 0.02 * step for step in range(20)] + [0.4] * 5)))
    True
    """
    values = curve.values
    if values.size < 20 or not float(values.min()) > 0:
        return False
    up = values > 2 * np.minimum.accumulate(values)
    late = int(np.argmin(up[::-1])) if not up.all() else 0
    before = values[-late - 8 : -late] if late else values[:0]
    if not 3 <= late <= values.size // 4 or before.size < 8:
        return False
    held, cost = median(before), median(values[-late:]) - median(before)
    calm = float(before.max()) < 1.5 * held and float(values[-late:].min()) > 1.5 * float(before.max())
    return calm and cost > 0.25 * (curve.start - float(values.min()))


def _validation_follows(chart: Chart) -> bool | None:
    """Whether validation rose as well, beyond its noise; None if not logged."""
    curve = Curve.of(chart["val_loss"], "validation loss")
    if not curve or not chart["loss"]:
        return None
    best = float(curve.values[curve.best])
    rises = curve.level - best > max(0.05 * abs(best), 2 * curve.noise)
    never_back = float(curve.values[1:].min()) > 1.1 * curve.start > 0
    return rises and (never_back or climbs(curve.values[curve.best :]) > 0.3)


def unlearnt(chart: Chart) -> Iterator[Symptom]:
    """Both losses are above their best, and a metric has fallen to less than half of its level."""
    curve, held_out = loss_of(chart), Curve.of(chart["val_loss"], "validation loss")
    if not curve or not held_out or is_game(chart):
        return
    if any(item.level < 1.1 * float(item.values[item.best]) for item in (curve, held_out)):
        return
    for name, way in (chart.context.get("better") or {}).items():
        values = chart[name].values
        if way != "higher" or values.size < 8 or not name.startswith("val_") or "precision" in name or "recall" in name:
            continue
        held, late = float(np.percentile(values, 90)), values[-max(3, values.size // 5) :]
        if held > 0 and float(late.max()) < 0.6 * held and median(late) < 0.5 * held:
            metric = name.removeprefix("val_").replace("_", " ")
            message = (
                f"{metric} fell from {number_text(held)} to {number_text(median(late))}, and {curve.name} rose "
                f"from {number_text(float(curve.values[curve.best]))} to {number_text(curve.level)}"
            )
            yield shown(LossDivergence, curve, curve.best, "warning", message, value=curve.level)
            return


def went_astray(chart: Chart) -> Iterator[Symptom]:
    """The loss was far above its start for a part of the run, and ends where it began.

    >>> values = [5.7, 5.8, 6.1] * 10 + [20.0, 27.0, 22.0] * 5 + [7.5, 6.0, 10.0] * 10 + [5.6, 5.8] * 10
    >>> print(*went_astray(Chart.of(loss=values, context={"source": "CSV"})))
    step 30: LO02 loss-divergence (warning): loss rose from 5.8 to 22 and is about 5.8 at the end: it learned nothing
    """
    curve = loss_of(chart)
    if curve.values.size < 2 * MANY or is_game(chart) or not float(curve.values.min()) > 0 or _began_with_luck(curve):
        return
    smooth, start = smoothed(curve.values), median(curve.values[:3])
    astray = smooth > ASTRAY * start
    if float(astray.mean()) >= YOUNG and min(float(smooth.min()), curve.level) > 0.9 * start:
        message = f"{curve.name} rose from {number_text(start)} to {number_text(float(smooth.max()))} and is about "
        message += f"{number_text(curve.level)} at the end: it learned nothing"
        since = int(np.argmax(astray))
        yield shown(LossDivergence, curve, since, "warning", message, value=float(smooth.max()), limit=ASTRAY * start)


def dead(chart: Chart) -> Iterator[Symptom]:
    """The loss jumped above its start and has been constant since: the model no longer changes."""
    curve = loss_of(chart)
    if curve.values.size < 2 * FEW or is_game(chart):
        return
    same = np.abs(curve.values - curve.values[-1]) <= 1e-4 * abs(float(curve.values[-1]))
    still = int(np.argmin(same[::-1])) if not same.all() else 0  # number of equal values at the end
    middle = median(curve.values[curve.values.size // 2 :])
    held = float(np.mean(np.abs(curve.values - middle) <= 2e-3 * abs(middle)))
    high = float(curve.values.max())
    if max(still / curve.values.size, held) < 0.5 or not high > 2 * curve.start > 0:
        return
    if curve.level > ABOVE * curve.start + curve.start:  # that is `diverged`
        return
    top = int(np.argmax(curve.values))
    message = (
        f"{curve.name} jumped to {number_text(high)} at step {int(curve.steps[top])} and has stayed at "
        f"{number_text(middle)} since: nothing changes any more"
    )
    yield shown(LossDivergence, curve, top, "warning", message, value=high, limit=curve.start)
