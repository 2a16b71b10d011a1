"""GE01 overfitting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress

FEW = 12
"""Evaluations under which their noise is not well known."""
NEXT_TO_NOTHING = 0.02
"""Share of itself by which validation may rise for a note, where it gained no more than five times that."""
RIGHT = frozenset({"acc", "accuracy", "top1", "f1", "auc", "auroc"})
"""Words in the names of measures that say how many answers are right."""


@dataclass(frozen=True)
class Overfitting(Detector):
    """Validation gets worse while training gets better.

    ## What it means
    The model learns its training data by heart. From the best step on, every further step makes it worse on
    anything it has not seen.

    ## How it is told apart
    A constant gap between training and validation is a gap, not overfitting; validation below training is normal with
    dropout. Here the validation loss rises from its best, over several evaluations, beyond its own noise and by a
    share of what it had gained, while the training loss goes on falling. If training gets worse too, the run is in
    other trouble. A small rise is a note where the accuracy, if it is logged, is no worse than at the best loss: the
    model is surer of its errors and makes no more; so it is where validation has gained next to nothing so far and lost
    less: training may just not have begun to work; and where training, without dropout, has not come down to the best
    validation yet: that was a lucky draw of few samples. Validation that stands still is overfitting as well where
    training has come down to next to nothing and validation followed it for less than half of the way.

    ## What to do
    Keep the weights of the best step. More dropout or weight decay, augmentation, more data, a smaller model.

    ## How to see that it is cured
    The best validation loss is lower than before, and comes later.

    ## Example
    >>> chart = Chart.of(loss=[3.0 * 0.98**step for step in range(200)])
    >>> for number, loss in enumerate([2.5, 1.5, 1.0, 0.9, 1.0, 1.1, 1.25, 1.4]):
    ...     chart.put(25 * number + 24, "val_loss", loss)
    >>> Overfitting().check(chart).message
    'validation loss rose from 0.9 at step 99 to 1.25 while training went on to 0.0591'
    """

    code = "GE01"
    name = "overfitting"
    reads = ("val_loss",)
    suggests = ("raise-dropout", "set-weight-decay", "stop-at-best", "augment-data")
    references = ("https://jmlr.org/papers/v15/srivastava14a.html",)
    closes_after = 2

    evaluations: int = 5
    """Evaluations that must be known."""
    patience: int = 3
    """Evaluations since the best one."""
    steps: int = 30
    """Steps since then, where the run is watched: evaluations at every step drift by what a few batches do."""
    moderate: float = 0.05
    """Share of its gain that validation has lost: a warning."""
    severe: float = 0.25
    """Share of its gain that validation has lost: critical."""
    deviations: float = 4.0
    """Noise deviations of the validation loss that the rise must exceed."""
    left: float = 0.1
    """Share of the first training loss that is left where training data is known by heart."""
    followed: float = 0.4
    """Share of training's way that validation has followed at most, there."""

    def check(self, chart: Chart) -> Symptom | None:
        """A rise of validation from its best, or a halt of it far above what training has come down to."""
        if adds_up(chart) or is_gone(chart):  # a sum that is never reset is no loss
            return None
        return self._risen(chart) or self._by_heart(chart) or self._soon(chart)

    def _soon(self, chart: Chart) -> Symptom | None:
        """Since the best evaluation each is worse than the one before, the last by far, while training flies."""
        validation, train = chart["val_loss"], chart["loss"]
        values = validation.values
        if values.size < 3 or not train or not math.isfinite(validation.latest):
            return None
        best = int(np.argmin(values))
        if best > values.size - 3 or self._is_too_soon(chart, best) or not bool((np.diff(values[best:]) > 0).all()):
            return None
        start, lowest, now = Progress.of(train).start, float(values[best]), float(values[-1])
        step, last = int(validation.steps[best]), int(validation.steps[-1])
        then, later = level_at(train, step), level_at(train, last)
        # Where training data is known by heart, the same rise is less likely to be anything else; nor is a third one.
        by_heart, again = later < self.left * min(start, lowest), best <= values.size - 1 - self.patience
        share, own = (self.moderate, 0.1) if by_heart else (2 * self.moderate, 0.15) if again else (self.severe, 0.25)
        least = max(share * (start - lowest), own * abs(lowest), 2 * _drawn_up(values[: best + 1]))
        if again and not by_heart:
            least = max(least, 1.5 * self.deviations * evaluation_noise(arrived(values, best)))
        if not now - lowest > least or not 0 < later < min((0.8 if again else 0.5) * then, lowest):
            return None  # a validation that was ever below what training has come to was lucky
        if again and now - lowest < 0.2 * abs(lowest) and _is_as_right(chart, best):
            return None
        message = f"validation loss rose from {number_text(lowest)} at step {step} to {number_text(now)} while "
        message += f"training went on to {number_text(later)}"
        return self.symptom(chart, "warning", message, value=now, limit=lowest, confidence=0.8, since=step)

    def _is_too_soon(self, chart: Chart, best: int) -> bool:
        steps = chart["val_loss"].steps
        return "source" not in chart.context and int(steps[-1] - steps[best]) < self.steps

    def _by_heart(self, chart: Chart) -> Symptom | None:
        """Validation stands still near where it began, while training has little left to learn."""
        validation, train = chart["val_loss"], chart["loss"]
        values = validation.values
        if values.size < self.evaluations or not train:
            return None
        start, level = Progress.of(train).start, level_at(train, int(validation.steps[-1]))
        way, best = start - level, float(values.min())
        if not 0 < level < self.left * start or not 0 < start - best < self.followed * way:
            return None
        recent = values[-self.patience - 1 :]
        if not float(np.ptp(recent)) > 0:  # to the last digit: nothing was evaluated anew, see validation-anomaly
            return None
        if not float(recent[0] - recent[1:].min()) < 0.02 * way or not float(values.max()) < 2 * start:
            return None
        message = f"validation loss stands at {number_text(median(recent))} while training went from "
        message += f"{number_text(start)} to {number_text(level)}"
        since = int(validation.steps[-self.patience - 1])
        return self.symptom(chart, "warning", message, value=median(recent), limit=start, confidence=0.8, since=since)

    def _risen(self, chart: Chart) -> Symptom | None:
        """Compare the present validation level with its best, and the training loss at both times."""
        validation, train = chart["val_loss"], chart["loss"]
        values = validation.values
        if values.size < self.evaluations or not math.isfinite(validation.latest):
            return None
        smooth = smoothed(values)
        best = int(np.argmin(smooth))
        if values.size - 1 - best < self.patience or self._is_too_soon(chart, best):
            return None
        now = median(values[-3:])
        rise = now - float(smooth[best])
        first = max(float(values[0]), Progress.of(train).start) if train else float(values[0])
        gained = max(first - float(smooth[best]), 1e-12)
        limit = max(self.moderate * gained, self.deviations * evaluation_noise(values))
        if not rise > limit or not _climbing(values[best:]):
            return None
        nearby = range(max(0, best - 1), min(values.size, best + 2))
        lowest = min(nearby, key=lambda index: float(values[index]))
        best_step = int(validation.steps[lowest])
        then, later = level_at(train, best_step), level_at(train, int(validation.steps[-1]))
        if not (math.isnan(then) or later < then):
            return None
        grave = max(self.severe * gained, limit, 0.1 * abs(float(smooth[best])))  # little gained is little lost
        severity: Severity = "critical" if rise > grave else "warning"
        best_text = f"{number_text(float(values[lowest]))} at step {best_step}"
        message = f"validation loss rose from {best_text} to {number_text(now)}"
        if math.isnan(then):
            severity = "info"
            message += "; the training loss is not known"
        else:
            message += f" while training went on to {number_text(later)}"
            level = abs(float(smooth[best]))
            idle = rise < NEXT_TO_NOTHING * level and gained < 5 * NEXT_TO_NOTHING * level  # it has not begun to learn
            as_before = rise < 1.5 * _drawn_up(smooth[: best + 1])
            lucky = later > level and not chart.context.get("dropout")  # nothing makes training harder than validation
            right = rise < 0.2 * level and _is_as_right(chart, lowest)
            if severity == "warning" and (idle or as_before or lucky or right):
                severity = "info"
        return self.symptom(chart, severity, message, value=now, limit=float(smooth[best]) + limit, since=best_step)


def _is_as_right(chart: Chart, best: int) -> bool:
    """Whether as many answers are right as at the best loss: surer of what is wrong, and no worse."""
    count = len(chart["val_loss"].values)
    for name in chart.vitals:
        right = chart[name].values if name.startswith("val_") and RIGHT & set(name.split("_")) else ()
        if len(right) == count:
            return median(right[-3:]) >= median(right[max(0, best - 1) : best + 2])
    return False


def arrived(values: Array, best: int, share: float = 0.2, fewest: int = 5) -> Array:
    """The evaluations from the first one on that had come near the best: the steep fall before it is no noise.

    >>> arrived(np.array([4.3, 1.9, 1.6, 1.5, 1.6, 1.7]), 3).tolist()
    [1.9, 1.6, 1.5, 1.6, 1.7]
    """
    near = values < values[best] + share * (values[0] - values[best])
    return values[min(int(np.argmax(near)), max(0, values.size - fewest)) :] if near.any() else values


def _drawn_up(values: Array) -> float:
    """How far validation rose above its best before, and came back: it wanders by that much.

    >>> _drawn_up(np.array([3.0, 2.0, 2.5, 1.0, 1.2, 0.9]))
    0.5
    """
    return float((values - np.minimum.accumulate(values)).max(initial=0.0))


def smoothed(values: Array) -> Array:
    """Medians of three: one lucky evaluation is not a best step. The ends stay as they are."""
    inner = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return np.concatenate([np.maximum(values[:1], inner[:1]), inner, np.maximum(values[-1:], inner[-1:])])


def evaluation_noise(values: Array) -> float:
    """The noise of an evaluation, from third differences: trend and curvature drop out.

    The median of a few of them may be far too low by chance; their mean is not.
    """
    changes = np.abs(np.diff(values, 3)) / math.sqrt(20)
    typical = 1.4826 * median(changes)
    return typical if values.size >= FEW else max(typical, 1.25 * float(np.mean(changes)))


def _climbing(values: Array) -> bool:
    """Whether later evaluations are higher than earlier ones in most pairs (Kendall), up to the present."""
    recent = values[-16:]
    first, second = np.triu_indices(recent.size, 1)
    return float(np.mean(np.sign(recent[second] - recent[first]))) > 0.5


def level_at(train: Series, step: int) -> float:
    """The training loss about a step: the mean of the outline's last buckets up to it."""
    return float(levels_at(train, np.array([step]))[0])


def levels_at(train: Series, steps: NDArray[np.int64]) -> Array:
    """The same for several steps at once; NaN before the first loss.

    >>> series = Series()
    >>> for step in range(10):
    ...     series.add(step, 10.0 - step)
    >>> levels_at(series, np.array([0, 4, 9])).tolist()
    [10.0, 8.0, 3.0]
    """
    buckets = train.outline.buckets()
    if not buckets:
        return np.full(len(steps), math.nan)
    table = np.array(buckets)
    known = np.searchsorted(table[:, 0], steps, side="right")
    first = known - np.minimum(np.maximum(5, known // 20), known)
    with np.errstate(all="ignore"):
        total = np.concatenate([[0.0], np.cumsum(table[:, 2] - table[0, 2])])  # exact where nothing moves
        return np.asarray(table[0, 2] + (total[known] - total[first]) / (known - first))


def is_gone(chart: Chart, steps: int = 8) -> bool:
    """Whether most losses are no longer finite: then training does not go on, and validation has nothing to follow.

    >>> from torchdoctor.records import Symptom
    >>> chart = Chart.of(loss=[1.0] * 50)
    >>> chart.open_episodes["nan-or-inf"] = Symptom("nan-or-inf", "NU01", "critical", 0.9, 20, 49, count=28)
    >>> is_gone(chart)
    True
    """
    broken = chart.open_episodes.get("nan-or-inf")
    return broken is not None and broken.count > max(steps, 0.5 * (chart.step - broken.first_step))


def adds_up(chart: Chart, evaluations: int = 4, apart: float = 2.0) -> bool:
    """Whether validation is a sum that is never reset: what each evaluation adds is about what training has then.

    >>> chart = Chart.of(loss=[1.0] * 80)
    >>> for step, value in ((19, 1.0), (39, 2.1), (59, 3.0), (79, 4.1)):
    ...     chart.add({"type": "validation", "step": step, "vitals": {"val_loss": value}})
    >>> adds_up(chart)
    True
    """
    series, train = chart["val_loss"], chart["loss"]
    if series.count != len(series) or len(series) < evaluations or not train:
        return False
    values, levels = series.values, levels_at(train, series.steps)
    parts = np.diff(values, prepend=0.0)
    if not bool((parts > 0).all()) or not bool((levels > 0).all()) or not float(values[-1]) > 3 * float(levels[-1]):
        return False
    ratios = parts / levels
    steady = float(parts.max()) < 1.2 * float(parts[0])  # what is learnt by heart gets worse faster and faster
    return steady and float(ratios.max()) < apart and float(ratios.min()) > 1 / apart
