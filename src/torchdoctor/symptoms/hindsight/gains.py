"""Progress of a whole run, with its uncertainty: runs without progress, and runs that got worse.

Every loss is judged in the same way: the mean of its last third is compared with that of its first, within the error
that their scatter implies. If no loss certainly improved and at least one certainly did not, the run made no progress.

>>> chart = Chart.of(loss=[1.04, 0.97, 1.01, 0.99] * 8, context={"source": "CSV", "clock": "epoch"})
>>> print(*idle(chart))
step 0: LO04 not-learning (warning): mean loss is 1 in the first and 1 in the last third of 32 epochs: no progress
"""

from __future__ import annotations

import math
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
"""Records needed to compare thirds, to see that there was no progress, and to see it despite a slow steady fall."""
NOTHING, FALLING, STILL = 0.08, 0.035, 0.01
"""Relative progress that still counts as none: at most (with error), by the means, and at most in a short log."""
BEGINNING = 0.02
"""The first of these for a loss that steadily falls in a log without epochs: a long run begins like this."""
AT_ONCE = 0.12
"""Largest relative distance of the end from the first value: a loss that fell further at once may have converged."""
DOUBTS = 2.0
"""Standard errors within which a difference of means is uncertain."""
CHANCE = 2.5
"""Mann-Kendall z-score below which, with a minus sign, values count as falling."""
NOISES = 4
"""Multiple of the typical change between records by which the start may exceed the end without a trend."""
BEGUN = 0.2
"""Share of the last step before which a log must begin to show the start of the run."""
START, LONG = 100, 200
"""Latest first step and fewest records of a log that holds nothing but batch losses."""
FAINT = 1e-4
"""A gradient norm below this share of a constant loss has vanished."""
LEARNT = 0.8
"""If a loss term fell below this share of its start, a part of the task was learned."""
RIGHT = 0.85
"""Accuracy above which there may be nothing left to learn."""
LACKING, RISEN = 0.05, 0.2
"""Share of its gap to perfect that an accuracy closed: up to the first is no progress, above the second learning."""
FREQUENT, SQUARED = 0.97, 0.3
"""Share of the entropy of the accuracy below which a loss beats a guess by class frequencies, and the level down to
which it is a cross-entropy: a squared error of two classes is smaller."""
TAILS = 5, 95
"""Percentiles to which outliers of a long log are clipped."""
ALONE, SURE = 0.1, 2.0
"""Least relative rise and least z-score of a training loss, if there is no validation loss to confirm it."""
LOST, MATERIAL = 0.03, 0.05
"""Relative rise that counts as worse: certain for any loss, and by the means for validation."""


class Gain(NamedTuple):
    """The relative fall of a loss from its first third to its last, with its uncertainty."""

    before: float
    after: float
    share: float
    doubt: float

    @property
    def most(self) -> float:
        """The upper bound of the fall."""
        return self.share + self.doubt

    @property
    def least(self) -> float:
        """The lower bound of the fall."""
        return self.share - self.doubt


def gain_of(values: Array) -> Gain | None:
    """The relative fall of a loss; None if it has too few records or is not positive.

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
    """No loss has certainly improved, and at least one, or all of them together, certainly have not."""
    curves = _losses(chart)
    in_epochs = chart.context.get("clock") == "epoch"
    sure = _is_no_more_right(chart)
    limit = NOTHING if sure else FALLING if in_epochs else BEGINNING
    long = ENOUGH if in_epochs else MANY
    still = [curve for curve in curves if _gained_nothing(curve, limit, long, sure)]
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
        f"mean {curve.name} is {number_text(gain.before)} in the first and {number_text(gain.after)} in the last "
        f"third of {curve.records} {unit}: no progress"
    )
    yield shown(NotLearning, curve, 0, "warning", message, value=gain.after, limit=gain.before)
    norms = Curve.of(chart["grad_norm"], "gradient norm")
    if norms and norms.level > 0 and float(norms.values.max()) < FAINT * abs(gain.after):
        message = f"{norms.name} is {number_text(norms.level)} throughout, tiny compared with the loss"
        yield shown(GradientVanishing, norms, 0, "warning", message, value=norms.level, limit=FAINT * abs(gain.after))


def _tells_of_the_start(curves: list[Curve]) -> bool:
    """Whether one of the losses was logged from near the start; validation may begin later than training."""
    first, last = min(curve.steps[0] for curve in curves), max(curve.steps[-1] for curve in curves)
    return bool(first <= max(1, BEGUN * last))


def _is_of_batches(chart: Chart, curve: Curve) -> bool:
    """Whether noisy batch losses are all that is known: they may look constant in healthy fine-tuning or diffusion.

    The progress before the first logged step is unknown as well.
    """
    noisy = median(np.abs(np.diff(curve.values))) > STILL * abs(curve.level)
    return noisy and not chart["val_loss"] and _grown(chart) < 0


def _losses(chart: Chart) -> list[Curve]:
    curves = (Curve.of(chart[name], name.replace("val_", "validation ")) for name in ("loss", "val_loss"))
    return [curve for curve in curves if curve.values.size > 1]


def _gained_nothing(curve: Curve, limit: float, long: int, sure: bool) -> bool:
    """Whether a loss certainly made almost no progress.

    It must also end near its first value, since a loss that fell at once may have converged. If an accuracy confirms
    (`sure`) that nothing was gained, the first value may be lower: it was a lucky batch.
    """
    gain, values = gain_of(curve.values), curve.values
    if gain is None or gain.most < -LOST or gain.share > FALLING:
        return False
    falls = certainty(values) < -CHANCE
    if falls and values.size < long:
        return False
    most = STILL if values.size < ENOUGH else limit if falls else NOTHING
    fell = 1 - gain.after / curve.start
    near = fell <= AT_ONCE if sure else abs(fell) <= AT_ONCE
    return max(gain.most, 1 - gain.after / median(values[:3])) <= most and near


def _has_no_trend(curve: Curve) -> bool:
    """Whether a noisy loss may be the same at start and end; for very few records, whether the last is no better."""
    gain, values = gain_of(curve.values), curve.values
    if gain is None:
        return values.size < FEW and float(values[-1]) >= (1 - FALLING) * curve.start > 0
    if gain.least > 0 or gain.most < -LOST or certainty(values) < -CHANCE:
        return False
    swing = float(np.median(np.abs(np.diff(values)))) / gain.after
    return 1 - gain.after / median(values[:3]) <= max(AT_ONCE, NOISES * swing)


def _together(curves: list[Curve]) -> bool:
    """Whether losses that are too noisy one by one show together, as independent measurements, no progress."""
    gains = [gain_of(curve.values) for curve in curves if curve.values.size >= ENOUGH]
    known = [gain for gain in gains if gain is not None]
    if len(known) < max(2, len(curves)):
        return False
    doubt = float(np.sqrt(sum(gain.doubt**2 for gain in known))) / len(known)
    share = float(np.mean([gain.share for gain in known]))
    return share <= FALLING and share + doubt <= NOTHING


def _is_no_more_right(chart: Chart) -> bool:
    """Whether accuracies are logged and none improved noticeably from its first third to its last.

    >>> rates = [0.55] + [0.48, 0.49, 0.50] * 6
    >>> _is_no_more_right(Chart.of(val_accuracy=rates))
    True
    >>> _is_no_more_right(Chart.of(val_accuracy=[0.3 + 0.01 * step for step in range(20)]))
    False
    """
    return -1 < _grown(chart) <= LACKING


def _grown(chart: Chart) -> float:
    """The largest share of its gap to perfect that an accuracy closed from first third to last; -1 if unknown."""
    grown = [-1.0]
    for name in ("train_accuracy", "val_accuracy"):
        rates = chart[name].values
        if rates.size >= ENOUGH:
            part, top = rates.size // 3, 1.0 if float(rates.max()) <= 1 else 100.0
            before, after = float(np.mean(rates[:part])), float(np.mean(rates[-part:]))
            grown.append(max(0.0, (after - before) / max(top - before, 1e-9)))
    return max(grown)


def _has_learnt(chart: Chart, curve: Curve) -> bool:
    """Whether something else shows that the run has learned, or that nothing is left to learn."""
    better = chart.context.get("better") or {}
    rates = [chart[name].values for name, way in better.items() if way == "higher" and chart[name].count]
    if any(median(rate[-3:]) > RIGHT * (1.0 if float(rate.max()) <= 1 else 100.0) for rate in rates):
        return True
    if _grown(chart) > RISEN or improved(chart, int(curve.steps[0])) or _beats_frequencies(chart, curve):
        return True
    return part_that_fell(chart, LEARNT) is not None and not is_mostly_one_part(chart)


def _beats_frequencies(chart: Chart, curve: Curve) -> bool:
    """Whether a cross-entropy has fallen below that of a guess by class frequencies, which has the same accuracy.

    With two classes that guess costs the entropy of the accuracy, and more with several classes.

    >>> chart = Chart.of(train_accuracy=[0.63, 0.67, 0.67, 0.67])
    >>> losses = [np.array([0.65, level, level, level]) for level in (0.599, 0.634)]
    >>> [_beats_frequencies(chart, Curve("loss", np.arange(4), values)) for values in losses]
    [True, False]
    """
    rates = chart["train_accuracy" if curve.name == "loss" else "val_accuracy"].values
    if not rates.size or not 0.55 < (right := median(rates[-3:]) / (1.0 if float(rates.max()) <= 1 else 100.0)) < 1:
        return False
    entropy = -right * math.log(right) - (1 - right) * math.log(1 - right)
    return SQUARED < curve.level < FREQUENT * min(entropy, curve.start)


def surely_lost(values: Array) -> bool:
    """Whether validation is certainly worse in its last third than in its first, and worse than at its start.

    >>> swings = np.array([3.4, 6.8, 4.7, 4.6, 15.8, 8.0, 12.0, 18.4, 5.5, 14.3, 19.7, 13.9, 12.6, 9.7, 14.0, 15.1])
    >>> surely_lost(swings), surely_lost(swings[::-1])
    (True, False)
    """
    gain = gain_of(values)
    return gain is not None and gain.most < 0 and gain.share < -MATERIAL and gain.after > median(values[:3])


def lost_ground(chart: Chart) -> Iterator[Symptom]:
    """The training loss certainly ends higher than it began, and so does the validation loss if logged.

    >>> values = [0.70, 0.60, 0.66, 0.63, 0.60, 0.61, 0.74, 0.81, 0.83, 0.82, 0.88]
    >>> print(*lost_ground(Chart.of(loss=values, context={"source": "CSV"})))
    step 4: LO02 loss-divergence (warning): mean loss rose from 0.653 in the first third of 11 records to 0.843 in ...
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
        f"mean {curve.name} rose from {number_text(gain.before)} in the first third of {curve.records} records "
        f"to {number_text(gain.after)} in the last"
    )
    yield shown(LossDivergence, curve, curve.best, "warning", message, value=gain.after, limit=gain.before)


def _sank(curve: Curve, alone: bool) -> bool:
    """Whether a loss certainly ends higher than it began; if `alone`, by more, and with a rising trend."""
    gain = gain_of(curve.values)
    if gain is None or (alone and certainty(curve.values) < SURE):
        return False
    return gain.most < -(ALONE if alone else LOST) and gain.after > median(curve.values[:3])
