"""VA01 validation-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.early_gap import LACKS, early_gap
from torchdoctor.symptoms.overfitting import is_gone
from torchdoctor.symptoms.progress import Progress
from torchdoctor.symptoms.validation_curve import (
    Course,
    added_up,
    better_than_training,
    beyond_all,
    constant,
    departed,
    empty,
    keeps_up,
    leapt,
    starts_worse,
    stepped_up,
    suffers,
    untrained,
)
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
    Validation below training is normal with dropout, augmentation or label smoothing, a constant gap or factor is
    no anomaly, and validation that rises slowly from its best is `overfitting`. A loss that is exactly the same
    because training has stopped moving is explained. One leap that heals is a note, unless it is beyond all that
    the run has had; one that stays, from one evaluation to the next and by far more than they ever differed, is no
    overfitting, which grows; nor is one that grows to far above the untrained model while training stays where it
    is. What is fed to the model without gradients is looked at as well: inputs of quite another size are a finding
    where validation is worse for it, and so is a model that is never in eval mode there, if it has dropout or batch
    statistics, and samples that training was given too; nor should a loss that takes scores be given probabilities
    there. A gap that is there in the first pass through the data, while each sample of training is as new as those
    of validation, was not learnt by heart: where it takes most of what training has gained, and stays, training is
    told something that validation is not. Validation that is far better than training is one where training samples
    come again unchanged and nothing else makes training harder.

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
        """Fed or asked otherwise than training, or a curve that training does not explain."""
        if is_gone(chart) or not chart["loss"] or chart["val_loss"].values.size < 2:
            return None
        return self._treated_otherwise(chart) or self._course(chart)

    def _treated_otherwise(self, chart: Chart) -> Symptom | None:
        """Validation is given something else than training is, or the model is in another state there."""
        return (
            self._seen_before(chart)
            or self._fed_otherwise(chart)
            or self._asked_otherwise(chart)
            or self._in_training_mode(chart)
            or self._with_first_statistics(chart)
            or self._of_probabilities(chart)
            or self._better(chart)
        )

    def _course(self, chart: Chart) -> Symptom | None:
        """Constant, worse than untrained, or a leap."""
        course = Course.of(chart)
        if not math.isfinite(chart["val_loss"].latest) or not np.isfinite(course.levels).all():
            return None
        if course.values.size < self.evaluations:
            seen = empty(course)
            if seen is None and starts_worse(course, self.worse / 2):
                seen = untrained(course, self.learnt, self.followed)
            return None if seen is None else self.symptom(chart, **seen._asdict())
        seen = (
            added_up(course)
            or constant(course, self.evaluations)
            or untrained(course, self.learnt, self.followed)
            or beyond_all(course)
            or leapt(course)
            or stepped_up(course, self.evaluations, self.learnt)
            or departed(course, self.departs, self.followed)
        )
        return self._early(chart) if seen is None else self.symptom(chart, **seen._asdict())

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
        if not apart or not suffers(chart, self.worse / 3 if comes_unchanged(chart) else self.worse):
            return None
        if not max(size / usual, usual / size) > self.scale:
            (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_input", "input"))
            message = f"inputs are about {number_text(found)} ± {number_text(spread)} in validation and about "
            message += f"{number_text(mean)} ± {number_text(deviation)} in training"
            first = int(chart["val_loss"].steps[0])
            severity: Severity = "info" if keeps_up(chart, self.lost) else "warning"
            return self.symptom(chart, severity, message, value=found, limit=mean, confidence=0.8, since=first)
        message = f"inputs are of size {number_text(size)} in validation and of {number_text(usual)} in training"
        return self.symptom(chart, "warning", message, value=size, limit=usual, since=int(chart["val_loss"].steps[0]))

    def _asked_otherwise(self, chart: Chart) -> Symptom | None:
        """What validation asks for is on another scale than what training does, or was rounded there."""
        first = int(chart["val_loss"].steps[0])
        # Votes of single judges are whole numbers, and their means are not: these are easier to meet.
        if rounded_in_training(chart) and suffers(chart, 0.0):
            message = "all targets of training are whole numbers, and those of validation are not: they were rounded"
            return self.symptom(chart, "warning", message, confidence=0.9, since=first)
        if not targets_apart(chart) > self.asked or not suffers(chart, self.worse) or keeps_up(chart, self.lost):
            return None
        (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_target", "target"))
        message = f"targets are about {number_text(found)} ± {number_text(spread)} in validation and about "
        message += f"{number_text(mean)} ± {number_text(deviation)} in training"
        return self.symptom(chart, "warning", message, value=found, limit=mean, confidence=0.8, since=first)

    def _in_training_mode(self, chart: Chart) -> Symptom | None:
        """No pass without gradients was ever in eval mode, though the model behaves otherwise there."""
        if not validates_in_training_mode(chart):
            return None
        message = "the model is validated in training mode: dropout and batch statistics are at work"
        return self.symptom(chart, "warning", message, since=int(chart["val_loss"].steps[0]))

    def _with_first_statistics(self, chart: Chart) -> Symptom | None:
        """Most of BatchNorm's running statistics is what they began with, and validation suffers."""
        share = first_statistics(chart)
        if not share > 0.5 or not suffers(chart, 0.5):
            return None
        message = f"validation uses BatchNorm statistics that are still {share:.0%} what they began with: momentum is "
        message += number_text(chart.fact("mode.batchnorm_momentum"))
        return self.symptom(chart, "warning", message, value=share, limit=0.5, since=int(chart["val_loss"].steps[0]))

    def _of_probabilities(self, chart: Chart) -> Symptom | None:
        """The loss makes probabilities of what are probabilities already, in validation alone, which suffers."""
        if not scores_are_probabilities(chart) or not suffers(chart, self.worse):
            return None
        message = "in validation the loss is given numbers between 0 and 1, in training up to "
        message += f"{number_text(chart['output_absmax'].latest)}: probabilities, where it takes scores"
        return self.symptom(chart, "warning", message, confidence=0.95, since=int(chart["val_loss"].steps[0]))

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
