"""VA01 validation-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.early_gap import LACKS, early_gap
from torchdoctor.symptoms.overfitting import adds_up, is_gone, levels_at
from torchdoctor.symptoms.progress import Progress, acts, working_since
from torchdoctor.symptoms.validation_inputs import (
    comes_unchanged,
    first_statistics,
    input_sizes,
    inputs_apart,
    known_before,
    moments,
    rounded_in_training,
    scores_are_probabilities,
    targets_apart,
    validates_in_training_mode,
)

LATE = 1.25
"""Times the first training loss, in other people's logs: it may have been written long after the start."""

ASKED_WRONG = "what it is asked for may be wrong"
"""How the finding ends where training is worse than validation for no reason."""


@dataclass(frozen=True)
class ValidationAnomaly(Detector):
    """The validation loss does what the training loss does not explain.

    ## What it means
    The number by which you choose the model may be wrong. It is *constant* to the last digit while training moves:
    validation runs on other weights, on one cached result, or on nothing. It is *worse than untrained* while training
    has learnt: validation data is fed or preprocessed differently, its labels are shifted, or BatchNorm's running
    statistics are off, or still those that they began with. Or it leaps up, for one evaluation or for good.

    ## How it is told apart
    Validation below training is normal with dropout, augmentation or label smoothing, a constant gap or factor is no
    anomaly, and validation that rises slowly from its best is `overfitting`. A loss that is exactly the same because
    training has stopped moving is explained. One leap that heals is a note; one that stays, from one evaluation to the
    next and by far more than they ever differed, is no overfitting, which grows; nor is one that grows to far above the
    untrained model while training stays where it is. What is fed to the model without gradients is looked at as well:
    inputs of quite another size are a finding where validation is worse for it, and so is a model that is never in eval
    mode there, if it has dropout or batch statistics, and samples that training was given too; nor should a loss that
    takes scores be given probabilities there. A gap that is there in the first pass through the data, while each sample
    of training is as new as those of validation, was not learnt by heart: where it takes most of what training has
    gained, and stays, training is told something that validation is not. Validation that is far better than training is
    one where training samples come again unchanged and nothing else makes training harder.

    ## What to do
    Evaluate one *training* batch with the validation code, in `eval()` and `no_grad()`: it must give about the training
    loss. If not, the difference is in mode, preprocessing or the loss. If it does, look at the validation data.

    ## How to see that it is cured
    The first evaluations fall with the training loss.

    ## Example
    >>> chart = Chart.of(loss=[2.3 * 0.99**step for step in range(400)], lr=[0.1] * 400)
    >>> for step in range(99, 400, 100):
    ...     chart.put(step, "val_loss", 2.3104)
    >>> ValidationAnomaly().check(chart).message
    'validation loss is exactly 2.31 at 4 evaluations while training fell to 0.046'
    """

    code = "VA01"
    name = "validation-anomaly"
    reads = ("val_loss",)
    suggests = ("match-validation", "set-train-mode", "cross-validate")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    closes_after = 3

    scale: float = 8.0
    """Times by which inputs in validation are larger or smaller than in training."""
    shifted: float = 0.7
    """Deviations by which their mean is shifted, or doublings of their deviation."""
    asked: float = 1.0
    """The same of the numbers that are asked for."""
    known: float = 0.1
    """Share of validation's samples that training was given before."""
    better: float = 0.2
    """Share by which validation is better than training later, where nothing makes training harder."""
    worse: float = 0.3
    """Share by which validation is worse than training, where that is a consequence."""
    lost: float = 0.05
    """Share of training's gain that validation may lack where its inputs are others, as at a later time."""
    evaluations: int = 3
    """Evaluations that must be known."""
    learnt: float = 0.3
    """Share of its first loss that training must have gained."""
    followed: float = 0.1
    """Share of training's gain that validation should have followed at least."""
    departs: float = 2.0
    """Times what validation had gained that it is above the untrained model, where it has left training."""

    def check(self, chart: Chart) -> Symptom | None:
        """Constant, worse than untrained, or a leap."""
        series, train = chart["val_loss"], chart["loss"]
        values = series.values
        if is_gone(chart):
            return None
        if train and values.size >= 2:
            found = self._seen_before(chart) or self._fed_otherwise(chart) or self._asked_otherwise(chart)
            found = found or self._in_training_mode(chart)
            found = found or self._with_first_statistics(chart) or self._of_probabilities(chart) or self._better(chart)
            if found is not None:
                return found
        if values.size < 2 or not train or not math.isfinite(series.latest):
            return None
        steps = [int(step) for step in series.steps]
        levels = levels_at(train, series.steps)
        if not np.isfinite(levels).all():
            return None
        if values.size < self.evaluations:
            empty = self._empty(chart, levels, steps)
            return empty or (self._untrained(chart, levels, steps) if self._starts_worse(chart) else None)
        return (
            self._added_up(chart)
            or self._constant(chart, levels, steps)
            or self._untrained(chart, levels, steps)
            or self._leap(chart, levels, steps)
            or self._stepped_up(chart, steps)
            or self._departed(chart, levels, steps)
            or self._early(chart)
        )

    def _starts_worse(self, chart: Chart) -> bool:
        """Whether two evaluations are enough: both are clearly worse than the untrained model, and the second is worst.

        Running statistics need some dozens of steps to be of use. Where training has little left to learn, worse is
        enough.
        """
        values, steps = chart["val_loss"].values, chart["val_loss"].steps
        start = Progress.of(chart["loss"]).start
        arrived = float(levels_at(chart["loss"], steps)[1]) < 0.1 * start
        worse = 0.0 if arrived else self.worse / 2 * abs(start)
        return int(steps[0]) >= 40 and bool(values[1] >= values[0] > start + worse)

    def _seen_before(self, chart: Chart) -> Symptom | None:
        """Validation is given samples that training has been given."""
        share = known_before(chart)
        if not share > self.known:
            return None
        message = f"{share:.0%} of the samples of a validation are known from training, of which a part was looked at"
        since = int(chart["val_loss"].steps[0])
        return self.symptom(chart, "warning", message, value=share, limit=self.known, confidence=0.95, since=since)

    def _better(self, chart: Chart) -> Symptom | None:
        """Validation is better than training, though nothing makes training harder.

        It may be of easier samples, a calmer time, or labels may be what they are: only of classes that are hardly
        learnt, by validation either, it is a warning.
        """
        share = better_than_training(chart)
        if not share > self.better:
            return None
        level, start = median(chart["loss"].last(32)), Progress.of(chart["loss"]).start
        hardly = level > 0.5 * start and chart["val_loss"].latest > 0.6 * start
        stuck = chart.fact("loss.kind") in ("cross-entropy", "bce") and hardly
        severity: Severity = "warning" if stuck else "info"
        message = f"training is worse than validation by {share:.0%} of itself, without dropout or augmentation: "
        message += ASKED_WRONG
        since = int(chart["val_loss"].steps[-2])
        return self.symptom(chart, severity, message, value=share, limit=self.better, confidence=0.8, since=since)

    def _fed_otherwise(self, chart: Chart) -> Symptom | None:
        """Inputs without gradients are of another scale than those of training, and validation suffers."""
        size, usual = input_sizes(chart)
        apart = max(size / usual, usual / size) > self.scale or inputs_apart(chart) > self.shifted
        if not apart or not self._suffers(chart, self.worse / 3 if comes_unchanged(chart) else self.worse):
            return None
        if not max(size / usual, usual / size) > self.scale:
            (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_input", "input"))
            message = f"inputs are about {number_text(found)} ± {number_text(spread)} in validation and about "
            message += f"{number_text(mean)} ± {number_text(deviation)} in training"
            first = int(chart["val_loss"].steps[0])
            severity: Severity = "info" if self._keeps_up(chart) else "warning"
            return self.symptom(chart, severity, message, value=found, limit=mean, confidence=0.8, since=first)
        message = f"inputs are of size {number_text(size)} in validation and of {number_text(usual)} in training"
        return self.symptom(chart, "warning", message, value=size, limit=usual, since=int(chart["val_loss"].steps[0]))

    def _asked_otherwise(self, chart: Chart) -> Symptom | None:
        """What validation asks for is on another scale than what training does, or was rounded there."""
        first = int(chart["val_loss"].steps[0])
        # Votes of single judges are whole numbers, and their means are not: these are easier to meet.
        if rounded_in_training(chart) and self._suffers(chart, 0.0):
            message = "all targets of training are whole numbers, and those of validation are not: they were rounded"
            return self.symptom(chart, "warning", message, confidence=0.9, since=first)
        if not targets_apart(chart) > self.asked or not self._suffers(chart, self.worse) or self._keeps_up(chart):
            return None
        (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_target", "target"))
        message = f"targets are about {number_text(found)} ± {number_text(spread)} in validation and about "
        message += f"{number_text(mean)} ± {number_text(deviation)} in training"
        return self.symptom(chart, "warning", message, value=found, limit=mean, confidence=0.8, since=first)

    def _keeps_up(self, chart: Chart) -> bool:
        """Whether validation, if somewhat worse, fell as much as training did: a later time, a trend that goes on.

        Much may have been learnt before the first evaluation. Near its floor a loss is soon half as much again, and
        little of what was gained since the first step is lost with that.
        """
        values, levels = chart["val_loss"].values, levels_at(chart["loss"], chart["val_loss"].steps)
        if float((values[-2:] - levels[-2:]).max()) < self.lost * Progress.of(chart["loss"]).descent:
            return True
        own, trained = _fall(float(values[0]), float(values[-1])), _fall(float(levels[0]), float(levels[-1]))
        return own > max(0.05, 0.8 * trained) and not self._suffers(chart, 0.5)

    def _in_training_mode(self, chart: Chart) -> Symptom | None:
        """No pass without gradients was ever in eval mode, though the model behaves otherwise there."""
        if not validates_in_training_mode(chart):
            return None
        message = "the model is validated in training mode: dropout and batch statistics are at work"
        return self.symptom(chart, "warning", message, since=int(chart["val_loss"].steps[0]))

    def _with_first_statistics(self, chart: Chart) -> Symptom | None:
        """Most of BatchNorm's running statistics is what they began with, and validation suffers."""
        share = first_statistics(chart)
        if not share > 0.5 or not self._suffers(chart, 0.5):
            return None
        message = f"validation uses BatchNorm statistics that are still {share:.0%} what they began with: momentum is "
        message += number_text(chart.fact("mode.batchnorm_momentum"))
        return self.symptom(chart, "warning", message, value=share, limit=0.5, since=int(chart["val_loss"].steps[0]))

    def _of_probabilities(self, chart: Chart) -> Symptom | None:
        """The loss makes probabilities of what are probabilities already, in validation alone, which suffers."""
        if not scores_are_probabilities(chart) or not self._suffers(chart, self.worse):
            return None
        message = "in validation the loss is given numbers between 0 and 1, in training up to "
        message += f"{number_text(chart['output_absmax'].latest)}: probabilities, where it takes scores"
        return self.symptom(chart, "warning", message, confidence=0.95, since=int(chart["val_loss"].steps[0]))

    def _suffers(self, chart: Chart, share: float) -> bool:
        """Whether the last two evaluations were clearly worse than training at the time."""
        steps, values = chart["val_loss"].steps[-2:], chart["val_loss"].values[-2:]
        levels = levels_at(chart["loss"], steps)
        return bool((values > levels + share * np.abs(levels)).all())

    def _added_up(self, chart: Chart) -> Symptom | None:
        """Each evaluation is that of before and as much again as training's loss."""
        if not adds_up(chart):
            return None
        values, steps = chart["val_loss"].values, chart["val_loss"].steps
        message = f"validation loss grows by {number_text(float(values[-1] - values[-2]))} an evaluation, which is "
        message += "about the training loss: the sum of the evaluations before is not reset"
        return self.symptom(chart, "warning", message, value=float(values[-1]), confidence=0.9, since=int(steps[0]))

    def _empty(self, chart: Chart, levels: Array, steps: list[int]) -> Symptom | None:
        """Nothing at all, twice, while every batch of training costs something: no sample was evaluated."""
        costs = chart["loss"].lowest > 0 and float(levels[-1]) > 0.1 * Progress.of(chart["loss"]).start
        if chart["val_loss"].values.any() or not costs:
            return None
        message = f"validation loss is exactly 0 at {len(steps)} evaluations while training is at "
        message += f"{number_text(float(levels[-1]))}: nothing may have been evaluated"
        return self.symptom(chart, "warning", message, value=0.0, confidence=0.95, since=steps[0])

    def _constant(self, chart: Chart, levels: Array, steps: list[int]) -> Symptom | None:
        values = chart["val_loss"].values
        same = int(np.argmax(np.append((values != values[-1])[::-1], True)))
        if same < self.evaluations:
            return None
        start = Progress.of(chart["loss"]).start
        moved = float(levels[-same] - levels[-1])
        times = 1 if same == values.size else 2  # it has never moved, not even while the run learnt most
        least = max(0.05 * (start - float(levels[-1])), 1e-3 * abs(start))  # the last digit of a guess is no progress
        if not moved > least or not moved > times * chart["loss"].baseline(128).noise:
            return None
        message = (
            f"validation loss is exactly {number_text(float(values[-1]))} at {same} evaluations while training fell "
            f"to {number_text(float(levels[-1]))}"
        )
        return self.symptom(chart, "warning", message, value=float(values[-1]), confidence=0.95, since=steps[-same])

    def _untrained(self, chart: Chart, levels: Array, steps: list[int]) -> Symptom | None:
        """Never better than the untrained model, in any evaluation, although training has learnt."""
        values, progress = chart["val_loss"].values, Progress.of(chart["loss"])
        gained = progress.start - float(levels[-1])
        noise = chart["loss"].baseline(128).noise
        if not gained > max(self.learnt * abs(progress.start), 5 * noise) or working_since(chart) is None:
            return None
        best = median(np.sort(values)[:2])
        own, trained = _fall(float(values[0]), best), _fall(float(levels[0]), float(levels[-1]))
        if own > max(0.05, 0.3 * trained):  # it falls on a scale of its own: summed, or in other units
            return None
        base = untrained_level(chart, levels)
        if not best > base - self.followed * (base - float(levels[-1])) or best - float(levels[-1]) < 3 * noise:
            return None
        if "source" in chart.context and not best > LATE * progress.start:
            return None
        message = (
            f"validation loss was never under {number_text(float(values.min()))} while training fell from "
            f"{number_text(progress.start)} to {number_text(float(levels[-1]))}"
        )
        return self.symptom(chart, "warning", message, value=best, limit=progress.start, confidence=0.8, since=steps[0])

    def _leap(self, chart: Chart, levels: Array, steps: list[int]) -> Symptom | None:
        """One evaluation above the untrained model that was not the last: training did not follow it."""
        values, progress = chart["val_loss"].values, Progress.of(chart["loss"])
        gained = float(values[0]) - float(values.min())
        high = max(progress.start, float(values[0]))
        calm = levels < progress.start - 0.5 * progress.descent
        leaps = [
            index
            for index in range(max(1, values.size - 10), values.size - 1)
            if values[index] > high + 0.5 * gained > high and calm[index] and values[index + 1] < high
        ]
        if not leaps:
            return None
        severity: Severity = "warning" if len(leaps) > 2 else "info"
        top = max(leaps, key=lambda index: float(values[index]))
        message = (
            f"validation loss leapt to {number_text(float(values[top]))} at step {steps[top]}, above the "
            f"{number_text(high)} that the run began with, and came back; training stayed calm"
        )
        return self.symptom(chart, severity, message, value=float(values[top]), since=steps[leaps[0]])

    def _stepped_up(self, chart: Chart, steps: list[int]) -> Symptom | None:
        place = step_up(chart, self.evaluations, self.learnt)
        if place is None:
            return None
        before, found = (float(value) for value in chart["val_loss"].values[place - 1 : place + 1])
        message = f"validation loss went from {number_text(before)} to {number_text(found)} at step {steps[place]} "
        return self.symptom(
            chart, "warning", message + "and stays; training did not", value=found, limit=before, since=steps[place]
        )

    def _departed(self, chart: Chart, levels: Array, steps: list[int]) -> Symptom | None:
        """Two evaluations in a row are far above the untrained model, each more, and training has noticed nothing.

        What is learnt by heart takes validation there as well, but while training falls.
        """
        values, progress = chart["val_loss"].values, Progress.of(chart["loss"])
        before, after = values[:-2], values[-2:]
        if before.size < 2 or acts(chart):
            return None
        high = max(progress.start, float(before.max()))
        gained = high - float(before[-1])
        least = high + self.departs * max(gained, self.followed * abs(high))
        calm = 0.7 * levels[-3] < levels[-1] < levels[-3] + 0.5 * progress.descent
        if not gained > self.followed * abs(high) or not calm or not after[1] > after[0] > least:
            return None
        message = f"validation loss went from {number_text(float(before[-1]))} to {number_text(float(after[0]))} and "
        message += f"{number_text(float(after[1]))}, far above the {number_text(high)} that it began with; training "
        message += f"is at {number_text(float(levels[-1]))}"
        return self.symptom(chart, "warning", message, value=float(after[1]), limit=least, since=steps[-2])

    def _early(self, chart: Chart) -> Symptom | None:
        """Validation lacked most of what training had gained when all samples were new to it, and still does."""
        found = early_gap(chart)
        if found is None:
            return None
        message = f"validation loss was {number_text(found.validation)} when training was at "
        message += (
            f"{number_text(found.training)} and no sample had come twice, and it lacks {found.share:.0%} of what "
        )
        message += "training has gained ever since: none of that is known by heart"
        return self.symptom(chart, "warning", message, value=found.share, limit=LACKS, since=found.step, confidence=0.8)


def step_up(chart: Chart, evaluations: int = 3, share: float = 0.3) -> int | None:
    """The evaluation at which validation lost a share of its gain at once and for good, though training stayed calm."""
    values, progress = chart["val_loss"].values, Progress.of(chart["loss"])
    levels = levels_at(chart["loss"], chart["val_loss"].steps)
    for place in range(max(evaluations, values.size - 10), values.size - 1):
        before, after = values[:place], values[place:]
        lost = float(after.min() - before[-1])
        gained = max(progress.start, float(before[0])) - float(before.min())
        usual = max(0.0, float(np.diff(before).max()))
        moved = float(levels[place - 1] - levels[place])
        calm = moved > -0.05 * progress.descent and levels[-1] <= levels[place - 1]
        # what training gains at the expense of validation is of the same size
        least = max(share * max(gained, progress.start), 3 * usual, 2 * float(np.ptp(after)), 3 * moved)
        if calm and gained > 0 and lost > least:
            return place
    return None


def _fall(first: float, last: float) -> float:
    """The share of itself that a loss lost."""
    return (first - last) / abs(first) if first else 0.0


def never_followed(chart: Chart) -> bool:
    """Whether no evaluation was better than the untrained model."""
    values, train = chart["val_loss"].values, chart["loss"]
    if values.size < 2 or not train:
        return False
    base = untrained_level(chart, levels_at(train, chart["val_loss"].steps))
    # Seldom is a guess exactly even; where training began is worse than one, and that much is forgiven.
    times = LATE if "source" in chart.context else 0.95 if base == Progress.of(train).start else 0.9
    return float(values.min()) > times * base


def untrained_level(chart: Chart, levels: Array) -> float:
    """The loss of a model that knows nothing: where training began; or a guess, where that is less.

    The latter only where training was far below it at the first evaluation: what is learnt by heart takes longer.
    """
    start, chance = Progress.of(chart["loss"]).start, chart.fact("loss.chance")
    plain = isinstance(chance, int | float) and chart.fact("loss.reduction") == "mean"
    return float(chance) if plain and levels[0] < 0.6 * chance < 0.6 * start else start


def better_than_training(chart: Chart) -> float:
    """By which share of training's loss the last two evaluations were better, where nothing makes training harder.

    Later training is what counts, so that it does not matter how fast it learns. NaN where dropout, batch statistics,
    augmentation, weights of classes, label smoothing, other terms of the loss, or other weights may explain it.
    """
    steps, values = chart["val_loss"].steps[-2:], chart["val_loss"].values[-2:]
    level = median(chart["loss"].last(32))
    plain = chart["criterion"].last(3).size == 3 and abs(median(chart["criterion"].last(8)) - level) < 0.1 * level
    harder = chart.fact("mode.depends", True) or chart.fact("loss.label_smoothing") or chart["weight_of_common"]
    swapped = chart.fact("state.written") or chart.fact("state.written_always") or chart.fact("state.loaded")
    if not plain or harder or swapped or steps[0] < 40 or not comes_unchanged(chart) or not chart["idle_known"]:
        return math.nan
    return 1 - float(values.max()) / level
