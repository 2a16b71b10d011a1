"""VA01 validation-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text, share_text
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
    only_training_changed,
    rounded_in_training,
    scores_are_probabilities,
    targets_apart,
    validates_in_training_mode,
)

ASKED_WRONG = "the training targets may be wrong"
"""How the message ends when training is worse than validation without a known reason; causes match on it."""


@dataclass(frozen=True)
class ValidationAnomaly(Detector):
    """The validation loss does something that the training loss does not explain.

    ## What it means
    The number by which you choose the model may be wrong. If it is exactly *constant* while training moves, validation
    uses other weights or a cached result, or evaluates nothing. If it is *worse than that of the untrained model*
    although training has learned, validation data is preprocessed differently, its labels are shifted, or BatchNorm's
    running statistics are wrong or still near their initial values. It may also jump up, once or for good.

    ## How it is told apart
    The validation loss may be below the training loss with dropout, augmentation or label smoothing. A constant gap or
    factor between the two is no anomaly, and a slow rise from the best value is `overfitting`. Reported is:

    - a validation loss that stays exactly the same while training still moves, or grows by the training loss each time;
    - one that was never better than the untrained model although training has learned;
    - a jump in the validation loss while training stays calm: info if it comes back and is rare, otherwise a warning;
    - inputs or targets on another scale than in training, if validation is clearly worse than training;
    - samples that training was given too;
    - a model with dropout or batch statistics that is never in eval mode during validation;
    - a loss that expects scores (logits) but gets probabilities in validation;
    - a gap that takes most of training's gain before any training sample came twice, and stays. This is not
      memorization: training gets information that validation does not get;
    - a training loss far above the validation loss although samples repeat unchanged and nothing makes training harder.

    ## What to do
    Evaluate one *training* batch with the validation code, in `eval()` and `no_grad()`. It must give about the training
    loss. If it does not, compare mode, preprocessing and loss. If it does, look at the validation data.

    ## How to see that it is cured
    The validation loss falls with the training loss from the first evaluations on.

    ## Example
    >>> chart = Chart.of(loss=[2.3 * 0.99**step for step in range(400)], lr=[0.1] * 400)
    >>> for step in range(99, 400, 100):
    ...     chart.put(step, "val_loss", 2.3104)
    >>> ValidationAnomaly().check(chart).message
    'validation loss is exactly 2.31 at 4 evaluations while training loss fell to 0.046'
    """

    code = "VA01"
    name = "validation-anomaly"
    reads = ("val_loss",)
    suggests = ("match-validation", "set-train-mode", "cross-validate")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    closes_after = 3

    scale: float = 8.0
    """Factor between the size of inputs in validation and in training, above which they differ."""
    shifted: float = 0.7
    """Shift of their mean in standard deviations, or doublings of their standard deviation, above which they differ."""
    asked: float = 1.0
    """The same limit for targets."""
    known: float = 0.1
    """Share of validation samples that training was given too, above which this is reported."""
    better: float = 0.2
    """Share by which validation must be better than later training, if nothing makes training harder."""
    worse: float = 0.3
    """Share by which validation must be worse than training before differing data are reported."""
    lost: float = 0.05
    """Share of training's gain that validation may lack if its inputs differ, for example because they are later."""
    evaluations: int = 3
    """Evaluations needed before the shape of the curve is judged."""
    learnt: float = 0.3
    """Share of its first loss by which training must have improved."""
    followed: float = 0.1
    """Share of training's gain by which validation should be better than the untrained model."""
    departs: float = 2.0
    """How far above the untrained model validation must rise, in multiples of what it had gained before."""

    def check(self, chart: Chart) -> Symptom | None:
        """Inputs, targets or mode that differ from training; then a curve that training does not explain."""
        if is_gone(chart) or not chart["loss"] or chart["val_loss"].values.size < 2:
            return None
        return self._treated_otherwise(chart) or self._course(chart)

    def _treated_otherwise(self, chart: Chart) -> Symptom | None:
        """Validation gets other data than training, or the model is in the wrong state there."""
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
        """Constant, worse than untrained, or a jump."""
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
        """Validation is given samples that training was given too."""
        share = known_before(chart)
        if not share > self.known:
            return None
        message = f"{share_text(share)} of the validation samples that were compared also occur in the training set"
        since = int(chart["val_loss"].steps[0])
        return self.symptom(chart, "warning", message, value=share, limit=self.known, confidence=0.95, since=since)

    def _better(self, chart: Chart) -> Symptom | None:
        """Validation is better than training, though nothing makes training harder.

        Validation samples may simply be easier. It is a warning only for a classifier that has hardly learned.
        """
        share = better_than_training(chart)
        if not share > self.better:
            return None
        level, start = median(chart["loss"].last(32)), Progress.of(chart["loss"]).start
        hardly = level > 0.5 * start and chart["val_loss"].latest > 0.6 * start
        stuck = chart.fact("loss.kind") in ("cross-entropy", "bce") and hardly
        severity: Severity = "warning" if stuck else "info"
        message = f"validation loss is {share_text(share)} below training loss, without dropout or augmentation: "
        message += ASKED_WRONG
        since = int(chart["val_loss"].steps[-2])
        return self.symptom(chart, severity, message, value=share, limit=self.better, confidence=0.8, since=since)

    def _fed_otherwise(self, chart: Chart) -> Symptom | None:
        """Inputs of passes without gradients differ from those of training, and validation is clearly worse."""
        size, usual = input_sizes(chart)
        apart = max(size / usual, usual / size) > self.scale or inputs_apart(chart) > self.shifted
        if not apart or not suffers(chart, self.worse / 3 if comes_unchanged(chart) else self.worse):
            return None
        if only_training_changed(chart):
            return None  # input-anomaly says so
        if not max(size / usual, usual / size) > self.scale:
            (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_input", "input"))
            message = f"inputs are about {number_text(found)} ± {number_text(spread)} in validation but about "
            message += f"{number_text(mean)} ± {number_text(deviation)} in training"
            first = int(chart["val_loss"].steps[0])
            severity: Severity = "info" if keeps_up(chart, self.lost) else "warning"
            return self.symptom(chart, severity, message, value=found, limit=mean, confidence=0.8, since=first)
        message = f"inputs are of size {number_text(size)} in validation but {number_text(usual)} in training"
        return self.symptom(chart, "warning", message, value=size, limit=usual, since=int(chart["val_loss"].steps[0]))

    def _asked_otherwise(self, chart: Chart) -> Symptom | None:
        """Targets in validation are on another scale than in training, or those of training were rounded."""
        first = int(chart["val_loss"].steps[0])
        # Single ratings are whole numbers and their means are not, but means are easier to predict.
        if rounded_in_training(chart) and suffers(chart, 0.0):
            message = "all training targets are whole numbers, unlike validation targets: they were rounded"
            return self.symptom(chart, "warning", message, confidence=0.9, since=first)
        if not targets_apart(chart) > self.asked or not suffers(chart, self.worse) or keeps_up(chart, self.lost):
            return None
        (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_target", "target"))
        message = f"targets are about {number_text(found)} ± {number_text(spread)} in validation but about "
        message += f"{number_text(mean)} ± {number_text(deviation)} in training"
        return self.symptom(chart, "warning", message, value=found, limit=mean, confidence=0.8, since=first)

    def _in_training_mode(self, chart: Chart) -> Symptom | None:
        """No pass without gradients was ever in eval mode, though the model behaves differently there."""
        if not validates_in_training_mode(chart):
            return None
        message = "the model is validated in training mode: dropout and batch statistics are active"
        return self.symptom(chart, "warning", message, since=int(chart["val_loss"].steps[0]))

    def _with_first_statistics(self, chart: Chart) -> Symptom | None:
        """BatchNorm's running statistics consist mostly of their initial values, and validation is worse for it."""
        share = first_statistics(chart)
        if not share > 0.5 or not suffers(chart, 0.5):
            return None
        message = f"validation uses BatchNorm statistics that are still {share_text(share)} initial values: momentum "
        message += f"is {number_text(chart.fact('mode.batchnorm_momentum'))}"
        return self.symptom(chart, "warning", message, value=share, limit=0.5, since=int(chart["val_loss"].steps[0]))

    def _of_probabilities(self, chart: Chart) -> Symptom | None:
        """In validation only, the loss gets probabilities instead of scores, and validation is worse for it."""
        if not scores_are_probabilities(chart) or not suffers(chart, self.worse):
            return None
        message = "in validation the loss is given numbers between 0 and 1, in training up to "
        message += f"{number_text(chart['output_absmax'].latest)}: probabilities, where it takes scores (logits)"
        return self.symptom(chart, "warning", message, confidence=0.95, since=int(chart["val_loss"].steps[0]))

    def _early(self, chart: Chart) -> Symptom | None:
        """Validation lacked most of training's gain when all training samples were still new, and still lacks it."""
        found = early_gap(chart)
        if found is None:
            return None
        message = f"validation loss was {number_text(found.validation)} when training was at "
        message += f"{number_text(found.training)} and no sample had come twice. It has lacked "
        message += f"{share_text(found.share)} of what training gained ever since: this gap is not memorization"
        return self.symptom(chart, "warning", message, value=found.share, limit=LACKS, since=found.step, confidence=0.8)
