"""What a run has gained, with the doubt that its noise leaves: nothing, or less than nothing.

One statement for every loss that is known, however noisy and however many its records: the mean of its last third
against that of its first, give or take what their scatter allows. A run in which no loss surely gained, and one surely
did not, has stood still; one whose validation surely lost while training gained overfits.

>>> chart = Chart.of(loss=[1.04, 0.97, 1.01, 0.99] * 8, context={"source": "CSV", "clock": "epoch"})
>>> print(*idle(chart))
step 0: LO04 not-learning (warning): loss is 1 in the last third of 32 epochs, after 1 in the first: nothing was gained
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.gradient_vanishing import GradientVanishing
from torchdoctor.symptoms.hindsight.curve import (
    Curve,
    certainty,
    improved,
    is_mostly_one_part,
    part_that_fell,
    shown,
)
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.progress import is_game

FEW, ENOUGH, MANY = 6, 10, 20
"""Records whose thirds can be compared; that show that nothing was gained; and that show it of a slow, sure fall."""
NOTHING, FALLING, STILL = 0.08, 0.035, 0.01
"""Shares of itself that a loss may have gained, and has by its means, where it is nothing; and, in few records, has."""
BEGINNING = 0.02
"""The same where it surely falls and no epoch is known to be over: the beginning of a long run looks like it."""
AT_ONCE = 0.12
"""Share of its first value by which a loss may be off it: what fell further in one record may have converged."""
DOUBTS = 2.0
"""Deviations of mere chance within which a mean is not known."""
CHANCE = 2.5
"""Deviations of mere chance by which values that have no trend fall, in their order, at most."""
NOISES = 4
"""Steps from one record to the next by which the first records may be above the last, where there is no trend."""
BEGUN = 0.2
"""Share of the last step at which a log begins at most, if it is to tell of a run's start."""
START, LONG = 100, 200
"""Step at which a log begins at most, and records that it has at least, where losses of batches are all that it has."""
FAINT = 1e-4
"""Share of a loss that stands still under which a gradient norm has vanished."""
LEARNT = 0.8
"""Share of what it was that another loss beside it has become, where a part of the task is learnt."""
RIGHT = 0.85
"""Accuracy above which there may be nothing left to learn."""
LACKING, RISEN = 0.05, 0.2
"""Shares of what it lacks that an accuracy has gained at most where that is nothing; at least where it has learnt."""
TAILS = 5, 95
"""Percentiles beyond which a value of many is a leap, and counts as much as that."""
ALONE, SURE = 0.1, 2.0
"""Share of itself that training has lost at least, and deviations of chance, where no validation tells the same."""
LOST, MATERIAL = 0.03, 0.05
"""Shares of itself that a loss has surely lost, and that validation has lost by its means, where that is worse."""


class Gain(NamedTuple):
    """How much of its first third a loss has lost up to its last, in shares of the first."""

    before: float
    after: float
    share: float
    doubt: float

    @property
    def most(self) -> float:
        """What it has gained at most."""
        return self.share + self.doubt

    @property
    def least(self) -> float:
        """What it has surely gained."""
        return self.share - self.doubt


def gain_of(values: Array) -> Gain | None:
    """What a loss has gained; None where it has too few records, or is not above zero.

    >>> gain = gain_of(np.array([4.0, 4.1, 3.9, 3.0, 2.0, 2.1, 1.9]))
    >>> round(gain.least, 2), round(gain.share, 2), round(gain.most, 2)
    (0.45, 0.51, 0.56)
    """
    if values.size < FEW or not float(values.min()) > 0:
        return None
    part = values.size // 3
    first, last = _calmed(values[:part]), _calmed(values[-part:])
    before, after = float(np.mean(first)), float(np.mean(last))
    doubt = DOUBTS * float(np.hypot(np.std(first, ddof=1), np.std(last, ddof=1))) / part**0.5
    return Gain(before, after, 1 - after / before, doubt / before)


def _calmed(values: Array) -> Array:
    return np.clip(values, *np.percentile(values, TAILS)) if values.size >= MANY else values


def idle(chart: Chart) -> Iterator[Symptom]:
    """No loss that is known has surely gained, and at least one, or all of them together, have surely not."""
    curves = _losses(chart)
    in_epochs = chart.context.get("clock") == "epoch"
    limit = NOTHING if _is_no_more_right(chart) else FALLING if in_epochs else BEGINNING
    long = ENOUGH if in_epochs else MANY
    still = [curve for curve in curves if _gained_nothing(curve, limit, long)]
    rest = [curve for curve in curves if not any(curve is item for item in still)]
    if not all(map(_has_no_trend, rest)) or not (still or _together(rest)) or is_game(chart):
        return
    if not _tells_of_the_start(curves) or _has_learnt(chart, curves[0]):
        return
    short = curves[0].steps[0] > START or curves[0].records < LONG
    if short and not in_epochs and _is_of_batches(chart, curves[0]):
        return
    curve = (still or rest)[0]
    gain = gain_of(curve.values)
    if gain is None:
        return
    unit = "epochs" if in_epochs else "records"
    message = (
        f"{curve.name} is {number_text(gain.after)} in the last third of {curve.records} {unit}, "
        f"after {number_text(gain.before)} in the first: nothing was gained"
    )
    yield shown(NotLearning, curve, 0, "warning", message, value=gain.after, limit=gain.before)
    norms = Curve.of(chart["grad_norm"], "gradient norm")
    if norms and norms.level > 0 and float(norms.values.max()) < FAINT * abs(gain.after):
        message = f"{norms.name} is {number_text(norms.level)} throughout, next to nothing beside that loss"
        yield shown(GradientVanishing, norms, 0, "warning", message, value=norms.level, limit=FAINT * abs(gain.after))


def _tells_of_the_start(curves: list[Curve]) -> bool:
    """Whether one of the losses was logged from near the beginning on; validation may come later than training."""
    first, last = min(curve.steps[0] for curve in curves), max(curve.steps[-1] for curve in curves)
    return bool(first <= max(1, BEGUN * last))


def _is_of_batches(chart: Chart, curve: Curve) -> bool:
    """Whether nothing is known but noisy losses of batches: which stand still in fine-tuning and diffusion too.

    What was gained before the first of them, which may be hundreds of steps, nobody knows either.
    """
    noisy = median(np.abs(np.diff(curve.values))) > STILL * abs(curve.level)
    return noisy and not chart["val_loss"] and _grown(chart) < 0


def _losses(chart: Chart) -> list[Curve]:
    curves = (Curve.of(chart[name], name.replace("val_", "validation ")) for name in ("loss", "val_loss"))
    return [curve for curve in curves if curve.values.size > 1]


def _gained_nothing(curve: Curve, limit: float, long: int) -> bool:
    """Whether a loss has gained next to nothing, and would show it if it had."""
    gain, values = gain_of(curve.values), curve.values
    if gain is None or gain.most < -LOST or gain.share > FALLING:
        return False
    falls = certainty(values) < -CHANCE
    if falls and values.size < long:
        return False
    most = STILL if values.size < ENOUGH else limit if falls else NOTHING
    return max(gain.most, 1 - gain.after / median(values[:3])) <= most and abs(1 - gain.after / curve.start) <= AT_ONCE


def _has_no_trend(curve: Curve) -> bool:
    """Whether noisy records may be the same from first to last; of very few, whether the last is no better."""
    gain, values = gain_of(curve.values), curve.values
    if gain is None:
        return values.size < FEW and float(values[-1]) >= (1 - FALLING) * curve.start > 0
    if gain.least > 0 or gain.most < -LOST or certainty(values) < -CHANCE:
        return False
    swing = float(np.median(np.abs(np.diff(values)))) / gain.after
    return 1 - gain.after / median(values[:3]) <= max(AT_ONCE, NOISES * swing)


def _together(curves: list[Curve]) -> bool:
    """Whether losses of which each alone is too noisy have surely gained nothing, taken as two looks at one run."""
    gains = [gain_of(curve.values) for curve in curves if curve.values.size >= ENOUGH]
    known = [gain for gain in gains if gain is not None]
    if len(known) < max(2, len(curves)):
        return False
    doubt = float(np.sqrt(sum(gain.doubt**2 for gain in known))) / len(known)
    share = float(np.mean([gain.share for gain in known]))
    return share <= FALLING and share + doubt <= NOTHING


def _is_no_more_right(chart: Chart) -> bool:
    """Whether accuracies are known, and none has gained, from its first third to its last, what would be worth it.

    >>> rates = [0.55] + [0.48, 0.49, 0.50] * 6
    >>> _is_no_more_right(Chart.of(val_accuracy=rates))
    True
    >>> _is_no_more_right(Chart.of(val_accuracy=[0.3 + 0.01 * step for step in range(20)]))
    False
    """
    return -1 < _grown(chart) <= LACKING


def _grown(chart: Chart) -> float:
    """The largest share of what it lacked that an accuracy has gained from first third to last; -1: not known."""
    grown = [-1.0]
    for name in ("train_accuracy", "val_accuracy"):
        rates = chart[name].values
        if rates.size >= ENOUGH:
            part, top = rates.size // 3, 1.0 if float(rates.max()) <= 1 else 100.0
            before, after = float(np.mean(rates[:part])), float(np.mean(rates[-part:]))
            grown.append(max(0.0, (after - before) / max(top - before, 1e-9)))
    return max(grown)


def _has_learnt(chart: Chart, curve: Curve) -> bool:
    """Whether something else tells that the run has learnt, or that nothing is left to learn."""
    better = chart.context.get("better") or {}
    rates = [chart[name].values for name, way in better.items() if way == "higher" and chart[name].count]
    if any(median(rate[-3:]) > RIGHT * (1.0 if float(rate.max()) <= 1 else 100.0) for rate in rates):
        return True
    if _grown(chart) > RISEN or improved(chart, int(curve.steps[0])):
        return True
    return part_that_fell(chart, LEARNT) is not None and not is_mostly_one_part(chart)


def surely_lost(values: Array) -> bool:
    """Whether validation is worse in its last third than in its first, beyond its scatter, and than it began.

    >>> swings = np.array([3.4, 6.8, 4.7, 4.6, 15.8, 8.0, 12.0, 18.4, 5.5, 14.3, 19.7, 13.9, 12.6, 9.7, 14.0, 15.1])
    >>> surely_lost(swings), surely_lost(swings[::-1])
    (True, False)
    """
    gain = gain_of(values)
    return gain is not None and gain.most < 0 and gain.share < -MATERIAL and gain.after > median(values[:3])


def lost_ground(chart: Chart) -> Iterator[Symptom]:
    """Training surely ends worse than it began, in its order too, and so does validation where it is known.

    >>> values = [0.70, 0.60, 0.66, 0.63, 0.60, 0.61, 0.74, 0.81, 0.83, 0.82, 0.88]
    >>> print(*lost_ground(Chart.of(loss=values, context={"source": "CSV"})))
    step 4: LO02 loss-divergence (warning): loss is 0.843 in the last third of 11 records, after 0.653 in the first
    """
    curves = _losses(chart)
    if not curves or is_game(chart) or _has_learnt(chart, curves[0]):
        return
    alone = len(curves) == 1
    if not chart["loss"] or any(curve.values.size < ENOUGH or not _sank(curve, alone) for curve in curves):
        return
    curve, gain = curves[0], gain_of(curves[0].values)
    if gain is None:
        return
    message = (
        f"{curve.name} is {number_text(gain.after)} in the last third of {curve.records} records, "
        f"after {number_text(gain.before)} in the first"
    )
    yield shown(LossDivergence, curve, curve.best, "warning", message, value=gain.after, limit=gain.before)


def _sank(curve: Curve, alone: bool) -> bool:
    """Whether a loss surely ends worse than it began; where no other tells the same, in its order too, and by more."""
    gain = gain_of(curve.values)
    if gain is None or (alone and certainty(curve.values) < SURE):
        return False
    return gain.most < -(ALONE if alone else LOST) and gain.after > median(curve.values[:3])
