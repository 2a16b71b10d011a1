"""The validation loss beside the training loss: changes that training does not explain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, number_text
from torchdoctor.series import Array, Series, median
from torchdoctor.symptoms.overfitting import adds_up, levels_at
from torchdoctor.symptoms.progress import Progress, acts, working_since
from torchdoctor.symptoms.target_values import is_summed
from torchdoctor.symptoms.validation_inputs import comes_unchanged

LATE = 1.25
"""Multiple of the first training loss required in a log from elsewhere: it may begin long after the run's start."""
BEYOND = 1000.0
"""Multiple of the highest loss so far (training's first loss included) at which one evaluation is enough."""
EARLY = 40
"""Steps before which running statistics are not usable yet and training has barely begun."""


class Seen(NamedTuple):
    """What the curve shows: the arguments of a symptom."""

    message: str
    since: int
    value: float
    limit: float | None = None
    confidence: float = 0.9
    severity: Severity = "warning"


@dataclass(frozen=True)
class Course:
    """The evaluations of a run that trains."""

    chart: Chart
    values: Array
    steps: list[int]
    levels: Array
    """The training loss at each of them."""

    @classmethod
    def of(cls, chart: Chart) -> Course:
        """All evaluations in the chart."""
        series = chart["val_loss"]
        levels = levels_at(chart["loss"], series.steps)
        return cls(chart, series.values, [int(step) for step in series.steps], levels)

    @property
    def train(self) -> Series:
        """The training loss, step by step."""
        return self.chart["loss"]

    @property
    def progress(self) -> Progress:
        """How far training has come."""
        return Progress.of(self.train)

    @property
    def level(self) -> float:
        """The training loss at the last evaluation."""
        return float(self.levels[-1])


def added_up(course: Course) -> Seen | None:
    """Each evaluation is the previous one plus about the training loss."""
    if not adds_up(course.chart):
        return None
    before, last = (float(value) for value in course.values[-2:])
    message = f"validation loss grows by {number_text(last - before)} at each evaluation, about the training loss: "
    message += "the running sum is not reset between evaluations"
    return Seen(message, course.steps[0], last)


def empty(course: Course) -> Seen | None:
    """Exactly 0 at every evaluation while no training batch has a loss of 0: no sample was evaluated."""
    costs = course.train.lowest > 0 and course.level > 0.1 * course.progress.start
    if course.values.any() or not costs:
        return None
    message = f"validation loss is exactly 0 at {len(course.steps)} evaluations while training is at "
    message += f"{number_text(course.level)}: nothing may have been evaluated"
    return Seen(message, course.steps[0], 0.0, confidence=0.95)


def constant(course: Course, evaluations: int) -> Seen | None:
    """Exactly the same value while training moves."""
    values = course.values
    same = int(np.argmax(np.append((values != values[-1])[::-1], True)))
    if same < evaluations:
        return None
    start = course.progress.start
    moved = float(course.levels[-same]) - course.level
    times = 1 if same == values.size else 2  # it never moved, not even while the run learned most
    least = max(0.05 * (start - course.level), 1e-3 * abs(start))  # a change in the last digits is no progress
    if not moved > least or not moved > times * course.train.baseline(128).noise:
        return None
    message = f"validation loss is exactly {number_text(float(values[-1]))} at {same} evaluations while training "
    message += f"loss fell to {number_text(course.level)}"
    return Seen(message, course.steps[-same], float(values[-1]), confidence=0.95)


def starts_worse(course: Course, share: float) -> bool:
    """Whether two evaluations suffice: both are clearly worse than the untrained model, the second no better.

    If training has nearly finished, slightly worse is enough.
    """
    start = course.progress.start
    arrived = float(course.levels[1]) < 0.1 * start
    worse = 0.0 if arrived else share * abs(start)
    return course.steps[0] >= EARLY and bool(course.values[1] >= course.values[0] > start + worse)


def untrained(course: Course, learnt: float, followed: float) -> Seen | None:
    """Never better than the untrained model, at any evaluation, although training has learned."""
    values, levels, start, noise = course.values, course.levels, course.progress.start, course.train.baseline(128).noise
    if not start - course.level > max(learnt * abs(start), 5 * noise) or working_since(course.chart) is None:
        return None
    best = median(np.sort(values)[:2])
    if _fall(float(values[0]), best) > max(0.05, 0.3 * _fall(float(levels[0]), course.level)):
        return None  # it falls, on another scale: summed, or in other units
    if is_summed(course.chart) and not float(values.min()) < 2 * start:
        return None  # a sum over more samples than a batch has
    base = untrained_level(course.chart, levels)
    if not best > base - followed * (base - course.level) or best - course.level < 3 * noise:
        return None
    if "source" in course.chart.context and not best > LATE * start:
        return None
    message = f"validation loss was never under {number_text(float(values.min()))} up to step {course.steps[-1]}, "
    message += f"while training loss fell from {number_text(start)} to {number_text(course.level)}"
    return Seen(message, course.steps[0], best, start, confidence=0.8)


def beyond_all(course: Course) -> Seen | None:
    """The latest evaluation is far above anything before: the weights or the validation inputs are broken.

    With BatchNorm, whose young running statistics do the same, and in a log, which is judged at its end, it is info.
    """
    last, high = float(course.values[-1]), max(course.progress.start, float(course.values[:-1].max()))
    if not last > BEYOND * high > 0:
        return None
    message = f"validation loss jumped from {number_text(float(course.values[-2]))} to {number_text(last)}, far above "
    message += f"anything before ({number_text(high)} at most); training loss is {number_text(course.level)}"
    excused = course.chart.fact("mode.batchnorm") or "source" in course.chart.context
    return Seen(message, course.steps[-1], last, BEYOND * high, severity="info" if excused else "warning")


def leapt(course: Course) -> Seen | None:
    """An earlier evaluation above the untrained model that training did not follow."""
    values, progress = course.values, course.progress
    gained = float(values[0]) - float(values.min())
    high = max(progress.start, float(values[0]))
    calm = course.levels < progress.start - 0.5 * progress.descent
    leaps = [
        index
        for index in range(max(1, values.size - 10), values.size - 1)
        if values[index] > high + 0.5 * gained > high and calm[index] and values[index + 1] < high
    ]
    if not leaps:
        return None
    top = max(leaps, key=lambda index: float(values[index]))
    message = f"validation loss jumped to {number_text(float(values[top]))} at step {course.steps[top]}, above the "
    message += f"initial {number_text(high)}, and came back; training loss stayed calm"
    severity: Severity = "warning" if len(leaps) > 2 else "info"
    return Seen(message, course.steps[leaps[0]], float(values[top]), severity=severity)


def stepped_up(course: Course, evaluations: int, share: float) -> Seen | None:
    """Up from one evaluation to the next, without coming back."""
    place = step_up(course.chart, evaluations, share)
    if place is None:
        return None
    before, found = (float(value) for value in course.values[place - 1 : place + 1])
    message = f"validation loss jumped from {number_text(before)} to {number_text(found)} at step {course.steps[place]}"
    return Seen(message + " and stays there; training loss did not", course.steps[place], found, before)


def departed(course: Course, times: float, followed: float) -> Seen | None:
    """Two evaluations in a row are far above the untrained model, the second more, while training stays level.

    Memorization raises validation as well, but then training falls.
    """
    before, levels, progress = course.values[:-2], course.levels, course.progress
    if before.size < 2 or acts(course.chart):
        return None
    then, now = (float(value) for value in course.values[-2:])
    high = max(progress.start, float(before.max()))
    gained = high - float(before[-1])
    least = high + times * max(gained, followed * abs(high))
    calm = 0.7 * levels[-3] < levels[-1] < levels[-3] + 0.5 * progress.descent
    if not gained > followed * abs(high) or not calm or not now > then > least:
        return None
    message = f"validation loss went from {number_text(float(before[-1]))} to {number_text(then)} and then "
    message += f"{number_text(now)}, far above the initial {number_text(high)}; training loss is "
    message += number_text(course.level)
    return Seen(message, course.steps[-2], now, least)


def step_up(chart: Chart, evaluations: int = 3, share: float = 0.3) -> int | None:
    """The evaluation at which validation lost a share of its gain at once and for good while training stayed calm."""
    values, progress = chart["val_loss"].values, Progress.of(chart["loss"])
    levels = levels_at(chart["loss"], chart["val_loss"].steps)
    for place in range(max(evaluations, values.size - 10), values.size - 1):
        before, after = values[:place], values[place:]
        lost = float(after.min() - before[-1])
        gained = max(progress.start, float(before[0])) - float(before.min())
        usual = max(0.0, float(np.diff(before).max()))
        moved = float(levels[place - 1] - levels[place])
        calm = moved > -0.05 * progress.descent and levels[-1] <= levels[place - 1]
        # overfitting costs validation about what training gains: it must be more
        least = max(share * max(gained, progress.start), 3 * usual, 2 * float(np.ptp(after)), 3 * moved)
        if calm and gained > 0 and lost > least:
            return place
    return None


def suffers(chart: Chart, share: float) -> bool:
    """Whether both of the last two evaluations were worse than training at the time by more than this share of it."""
    steps, values = chart["val_loss"].steps[-2:], chart["val_loss"].values[-2:]
    levels = levels_at(chart["loss"], steps)
    return bool((values > levels + share * np.abs(levels)).all())


def keeps_up(chart: Chart, lost: float) -> bool:
    """Whether validation is somewhat worse but fell as much as training, as with data of a later time.

    Much may have been learned before the first evaluation. Near its minimum a loss is easily 50 % higher, and that is
    little compared with what was gained since the first step.
    """
    values, levels = chart["val_loss"].values, levels_at(chart["loss"], chart["val_loss"].steps)
    if float((values[-2:] - levels[-2:]).max()) < lost * Progress.of(chart["loss"]).descent:
        return True
    own, trained = _fall(float(values[0]), float(values[-1])), _fall(float(levels[0]), float(levels[-1]))
    return own > max(0.05, 0.8 * trained) and not suffers(chart, 0.5)


def _fall(first: float, last: float) -> float:
    """By which share of itself a loss fell."""
    return (first - last) / abs(first) if first else 0.0


def never_followed(chart: Chart) -> bool:
    """Whether no evaluation was better than the untrained model."""
    values, train = chart["val_loss"].values, chart["loss"]
    if values.size < 2 or not train:
        return False
    base = untrained_level(chart, levels_at(train, chart["val_loss"].steps))
    # A first loss is usually somewhat above chance level; allow for that.
    times = LATE if "source" in chart.context else 0.95 if base == Progress.of(train).start else 0.9
    return float(values.min()) > times * base


def untrained_level(chart: Chart, levels: Array) -> float:
    """The loss of an untrained model: the first training loss, or chance level if that is lower.

    Chance level counts only if training was far below it at the first evaluation: memorization takes longer.
    """
    start, chance = Progress.of(chart["loss"]).start, chart.fact("loss.chance")
    plain = isinstance(chance, int | float) and chart.fact("loss.reduction") == "mean"
    return float(chance) if plain and levels[0] < 0.6 * chance < 0.6 * start else start


def better_than_training(chart: Chart) -> float:
    """By which share of the training loss the last two evaluations were better, if nothing makes training harder.

    They are compared with the latest training loss, so the speed of learning does not matter. NaN if dropout, batch
    statistics, augmentation, class weights, label smoothing, other loss terms or other weights may explain it.
    """
    steps, values = chart["val_loss"].steps[-2:], chart["val_loss"].values[-2:]
    level = median(chart["loss"].last(32))
    plain = chart["criterion"].last(3).size == 3 and abs(median(chart["criterion"].last(8)) - level) < 0.1 * level
    harder = chart.fact("mode.depends", True) or chart.fact("loss.label_smoothing") or chart["weight_of_common"]
    swapped = chart.fact("state.written") or chart.fact("state.written_always") or chart.fact("state.loaded")
    if not plain or harder or swapped or steps[0] < EARLY or not comes_unchanged(chart) or not chart["idle_known"]:
        return math.nan
    return 1 - float(values.max()) / level
