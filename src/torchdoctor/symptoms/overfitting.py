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
"""Number of evaluations below which their noise is not well known."""
NEXT_TO_NOTHING = 0.02
"""Rise as a share of the validation loss that is only info if validation had gained less than five times as much."""
VISIBLE = 0.01
"""Rise as a share of the validation loss below which it is not told: rounded, both numbers look the same."""
RIGHT = frozenset({"acc", "accuracy", "top1", "f1", "auc", "auroc"})
"""Words in the names of metrics that say how many answers are right."""
LENIENT = frozenset({"top2", "top3", "top5", "top10"})
"""Words in the names of metrics for which one of several guesses must be right."""
MOSTLY, NEARLY = 0.9, 0.4
"""Validation accuracy, or share of its gap to perfect that it closed, from which a validation loss that stands still
does not mean that training data was memorized."""


@dataclass(frozen=True)
class Overfitting(Detector):
    """The validation loss gets worse while the training loss gets better.

    ## What it means
    The model memorizes its training data. Since the best step, every further step makes it worse on data that it has
    not seen.

    ## How it is told apart
    The validation loss rises from its best, over several evaluations, by more than its noise and by a share of what
    it had gained, while the training loss keeps falling. A constant gap between training and validation is not
    overfitting; validation below training is normal with dropout. If training gets worse too, something else is wrong.
    A validation loss that stands still is overfitting as well, if the training loss has fallen to less than a tenth
    of its start and validation followed for less than 40 % of the way.

    A rise is reported as info if

    - the training loss is not known;
    - it is small, and errors are about as many as at the best loss: the model is only more confident in them;
    - validation has gained next to nothing so far, and lost less: training may not have begun to work;
    - validation rose nearly as far before, and came back;
    - there is no dropout, and training has not reached the best validation loss, which was then a lucky one.

    ## What to do
    Keep the weights of the best step. More dropout or weight decay, augmentation, more data, a smaller model.

    ## How to see that it is cured
    The best validation loss is lower than before, and comes later.

    ## Example
    >>> chart = Chart.of(loss=[3.0 * 0.98**step for step in range(200)])
    >>> for number, loss in enumerate([2.5, 1.5, 1.0, 0.9, 1.0, 1.1, 1.25, 1.4]):
    ...     chart.put(25 * number + 24, "val_loss", loss)
    >>> Overfitting().check(chart).message
    'validation loss rose from 0.9 at step 99 to 1.25 by step 199 while the training loss fell to 0.0591'
    """

    code = "GE01"
    name = "overfitting"
    reads = ("val_loss",)
    suggests = ("raise-dropout", "set-weight-decay", "stop-at-best", "augment-data")
    references = ("https://jmlr.org/papers/v15/srivastava14a.html",)
    closes_after = 2

    evaluations: int = 5
    """Evaluations needed before anything is reported."""
    patience: int = 3
    """Evaluations needed since the best one."""
    steps: int = 30
    """Steps needed since the best evaluation of a live run: evaluations at every step drift with single batches."""
    moderate: float = 0.05
    """Share of its gain that validation must have lost for a warning."""
    severe: float = 0.25
    """Share of its gain that validation must have lost for a critical finding."""
    deviations: float = 4.0
    """Noise deviations of the validation loss that the rise must exceed."""
    left: float = 0.1
    """Share of the first training loss below which the training data counts as memorized."""
    followed: float = 0.4
    """Share of the fall of the training loss below which validation counts as not having followed."""

    def check(self, chart: Chart) -> Symptom | None:
        """Report a validation loss that rose from its best, or that stands still far above the training loss."""
        if adds_up(chart) or is_gone(chart):  # a sum that is never reset is not a loss
            return None
        return self._risen(chart) or self._by_heart(chart) or self._soon(chart)

    def _soon(self, chart: Chart) -> Symptom | None:
        """Each evaluation since the best is worse than the one before, by much in all, while training falls fast."""
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
        # If training data is memorized, or this is the third rise in a row, less of a rise is enough.
        by_heart, again = later < self.left * min(start, lowest), best <= values.size - 1 - self.patience
        share, own = (self.moderate, 0.1) if by_heart else (2 * self.moderate, 0.15) if again else (self.severe, 0.25)
        least = max(share * (start - lowest), own * abs(lowest), 2 * _drawn_up(values[: best + 1]))
        if again and not by_heart:
            least = max(least, 1.5 * self.deviations * evaluation_noise(arrived(values, best)))
        if not now - lowest > least or not 0 < later < min((0.8 if again else 0.5) * then, lowest):
            return None  # if training has not fallen below the best validation loss, that was a lucky one
        if again and now - lowest < 0.2 * abs(lowest) and _is_as_right(chart, best):
            return None
        message = (
            f"validation loss rose from {number_text(lowest)} at step {step} to {number_text(now)} by step {last} "
        )
        message += f"while the training loss fell to {number_text(later)}"
        return self.symptom(chart, "warning", message, value=now, limit=lowest, confidence=0.8, since=step)

    def _is_too_soon(self, chart: Chart, best: int) -> bool:
        steps = chart["val_loss"].steps
        return "source" not in chart.context and int(steps[-1] - steps[best]) < self.steps

    def _by_heart(self, chart: Chart) -> Symptom | None:
        """The validation loss stands still near its start, while the training loss is close to zero."""
        validation, train = chart["val_loss"], chart["loss"]
        values = validation.values
        if values.size < self.evaluations or not train:
            return None
        start, level = Progress.of(train).start, level_at(train, int(validation.steps[-1]))
        way, best = start - level, float(values.min())
        if not 0 < level < self.left * start or not 0 < start - best < self.followed * way:
            return None
        recent = values[-self.patience - 1 :]
        if not float(np.ptp(recent)) > 0:  # exactly equal: nothing was evaluated anew, see validation-anomaly
            return None
        if not float(recent[0] - recent[1:].min()) < 0.02 * way or not float(values.max()) < 2 * start:
            return None
        if _is_mostly_right(chart):
            return None
        message = f"validation loss stays at {number_text(median(recent))} up to step {int(validation.steps[-1])} "
        message += f"while the training loss fell from {number_text(start)} to {number_text(level)}"
        since = int(validation.steps[-self.patience - 1])
        return self.symptom(chart, "warning", message, value=median(recent), limit=start, confidence=0.8, since=since)

    def _risen(self, chart: Chart) -> Symptom | None:
        """Compare the current validation level with its best, and the training loss at both times."""
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
        if not rise > max(limit, VISIBLE * abs(float(smooth[best]))) or not _climbing(values[best:]):
            return None
        nearby = range(max(0, best - 1), min(values.size, best + 2))
        lowest = min(nearby, key=lambda index: float(values[index]))
        best_step = int(validation.steps[lowest])
        then, later = level_at(train, best_step), level_at(train, int(validation.steps[-1]))
        if not (math.isnan(then) or later < then):
            return None
        grave = max(self.severe * gained, limit, 0.1 * abs(float(smooth[best])))  # a small gain is no great loss
        severity: Severity = "critical" if rise > grave else "warning"
        best_text = f"{number_text(float(values[lowest]))} at step {best_step}"
        message = f"validation loss rose from {best_text} to {number_text(now)} by step {int(validation.steps[-1])}"
        if math.isnan(then):
            severity = "info"
            message += "; the training loss is not known"
        else:
            message += f" while the training loss fell to {number_text(later)}"
            level = abs(float(smooth[best]))
            idle = rise < NEXT_TO_NOTHING * level and gained < 5 * NEXT_TO_NOTHING * level  # it has not begun to learn
            as_before = rise < 1.5 * _drawn_up(smooth[: best + 1])
            lucky = later > level and not chart.context.get("dropout")  # training is no harder than validation
            right = rise < 0.2 * level and _is_as_right(chart, lowest)
            if severity == "warning" and (idle or as_before or lucky or right):
                severity = "info"
        return self.symptom(chart, severity, message, value=now, limit=float(smooth[best]) + limit, since=best_step)


def _is_as_right(chart: Chart, best: int, more: float = 1.05) -> bool:
    """Whether there are about as many errors as at the best validation loss."""
    count = len(chart["val_loss"].values)
    names = [name for name in chart.vitals if name.startswith("val_") and RIGHT & set(name.split("_"))]
    for right in (chart[name].values for name in names):
        if right.size == count:
            wrong = (1.0 if float(right.max()) <= 1 else 100.0) - right
            return median(wrong[-3:]) <= more * median(wrong[max(0, best - 1) : best + 2])
    return False


def _is_mostly_right(chart: Chart) -> bool:
    """Whether a validation accuracy is 90 % or more, or has closed nearly half of its gap to that and kept it.

    Then the loss may stay high, as label smoothing makes it.
    """
    names = [name for name in chart.vitals if name.startswith("val_") and RIGHT & set(name.split("_"))]
    rates = [chart[name].values for name in names if not LENIENT & set(name.split("_"))]
    return any(_is_learned(rate / (1.0 if float(rate.max()) <= 1 else 100.0)) for rate in rates if rate.size)


def _is_learned(rate: Array) -> bool:
    first, now = float(rate[0]), median(rate[-3:])
    return now >= MOSTLY or (now - first > NEARLY * (1 - first) and now > 0.95 * float(rate.max()))


def arrived(values: Array, best: int, share: float = 0.2, fewest: int = 5) -> Array:
    """The evaluations from the first one near the best on: the steep fall before them must not count as noise.

    >>> arrived(np.array([4.3, 1.9, 1.6, 1.5, 1.6, 1.7]), 3).tolist()
    [1.9, 1.6, 1.5, 1.6, 1.7]
    """
    near = values < values[best] + share * (values[0] - values[best])
    return values[min(int(np.argmax(near)), max(0, values.size - fewest)) :] if near.any() else values


def _drawn_up(values: Array) -> float:
    """The farthest that validation has risen above its best so far.

    >>> _drawn_up(np.array([3.0, 2.0, 2.5, 1.0, 1.2, 0.9]))
    0.5
    """
    return float((values - np.minimum.accumulate(values)).max(initial=0.0))


def smoothed(values: Array) -> Array:
    """Medians of three, so that one lucky evaluation is not the best step; an end is at least its neighbor's median."""
    inner = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return np.concatenate([np.maximum(values[:1], inner[:1]), inner, np.maximum(values[-1:], inner[-1:])])


def evaluation_noise(values: Array) -> float:
    """The noise of an evaluation, from third differences, which remove trend and curvature.

    The median of only a few may be far too low by chance, so their mean counts as well.
    """
    changes = np.abs(np.diff(values, 3)) / math.sqrt(20)
    typical = 1.4826 * median(changes)
    return typical if values.size >= FEW else max(typical, 1.25 * float(np.mean(changes)))


def _climbing(values: Array) -> bool:
    """Whether, among the last 16 evaluations, the later one is higher in most pairs (Kendall's tau above 0.5)."""
    recent = values[-16:]
    first, second = np.triu_indices(recent.size, 1)
    return float(np.mean(np.sign(recent[second] - recent[first]))) > 0.5


def level_at(train: Series, step: int) -> float:
    """The training loss around a step: the mean of the outline's last buckets up to it."""
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
        total = np.concatenate([[0.0], np.cumsum(table[:, 2] - table[0, 2])])  # exact if the loss is constant
        return np.asarray(table[0, 2] + (total[known] - total[first]) / (known - first))


def is_gone(chart: Chart, steps: int = 8) -> bool:
    """Whether most losses since the first non-finite one are non-finite too: then there is no training to compare with.

    >>> from torchdoctor.records import Symptom
    >>> chart = Chart.of(loss=[1.0] * 50)
    >>> chart.open_episodes["nan-or-inf"] = Symptom("nan-or-inf", "NU01", "critical", 0.9, 20, 49, count=28)
    >>> is_gone(chart)
    True
    """
    broken = chart.open_episodes.get("nan-or-inf")
    return broken is not None and broken.count > max(steps, 0.5 * (chart.step - broken.first_step))


def adds_up(chart: Chart, evaluations: int = 4, apart: float = 2.0) -> bool:
    """Whether the validation loss is a sum that is never reset: each evaluation adds about the training loss.

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
    steady = float(parts.max()) < 1.2 * float(parts[0])  # with overfitting the increments would grow
    steady = steady and float(values[-1]) > 2 * float(values[0])  # or be small compared with where it began
    return steady and float(ratios.max()) < apart and float(ratios.min()) > 1 / apart
