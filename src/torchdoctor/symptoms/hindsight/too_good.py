"""Losses that are too good to be true: no error on samples that were never seen before.

>>> chart = Chart.of(loss=[0.85, 0.2, 0.01, 0.001] + [1e-4, 0.0] * 8, context={"source": "CSV", "steps_per_epoch": 20})
>>> print(*too_good(chart))
step 5: LO07 suspiciously-low-loss (warning): loss is exactly 0 at step 5, in the first epoch, and stays near 0: the ...
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.hindsight.curve import Curve, shown
from torchdoctor.symptoms.progress import is_game
from torchdoctor.symptoms.suspiciously_low_loss import SuspiciouslyLowLoss

FEW = 16
"""Fewest records of the first epoch, or of the perplexity."""
NOTHING = 3e-4
"""Share of its start below which a loss is almost 0."""
EVALUATIONS = 5
"""Fewest evaluations for a finding about accuracy."""
ALL_RIGHT, SURE = 0.9999, 0.01
"""Share of right predictions and validation loss that a model does not reach in its first epoch."""
OVERLAPS = ("val_iou", "val_miou", "val_dice")
"""Shares of pixels, of which no model has every one right at its first evaluation."""
CERTAIN, HELD_OUT = 1.02, 1.05
"""Perplexities below which every token is known in advance, for training and for validation text."""


def right_at_once(chart: Chart) -> Iterator[Symptom]:
    """From the first evaluation on, every held-out prediction is right and the loss is nearly 0.

    >>> chart = Chart.of(loss=[0.2, 1e-4, 1e-5, 1e-5, 0.0], context={"source": "CSV", "clock": "epoch"})
    >>> for step in range(5):
    ...     chart.put(step, "val_loss", 1e-5)
    ...     chart.put(step, "val_accuracy", 1.0)
    >>> print(*right_at_once(chart))
    step 0: LO07 suspiciously-low-loss (warning): validation accuracy is 1 and validation loss 1e-05 from the first ...
    """
    yield from _one_class(chart)
    name = "val_accuracy" if "val_accuracy" in chart else "val_accuracy_top1"
    rates, held_out = Curve.of(chart[name], "validation accuracy"), chart["val_loss"]
    if rates.values.size < EVALUATIONS or not held_out or rates.steps[0] > 1 or chart.context.get("clock") != "epoch":
        return
    top = 1.0 if float(rates.values.max()) <= 1 else 100.0
    first = float(held_out.values[0])
    if rates.start > ALL_RIGHT * top and float(rates.values.min()) > 0.999 * top and 0 <= first < SURE:
        message = f"{rates.name} is {number_text(rates.start)} and validation loss {number_text(first)} from the first "
        message += "evaluation on: the inputs contain the answer, or there is only one answer"
        yield shown(SuspiciouslyLowLoss, rates, 0, "warning", message, value=first, limit=SURE)


def _one_class(chart: Chart) -> Iterator[Symptom]:
    """Predicted and true regions have overlapped to the last pixel since the first evaluation.

    >>> print(*_one_class(Chart.of(val_loss=[0.2, 0.03, 0.013, 0.008, 0.006], val_iou=[1.0] * 5)))
    step 0: LO07 suspiciously-low-loss (warning): validation iou is exactly 1 at all 5 evaluations, also at the ...
    """
    for name in OVERLAPS:
        curve = Curve.of(chart[name], f"validation {name.removeprefix('val_')}")
        if curve.values.size >= EVALUATIONS and bool(np.all(curve.values == 1)) and not is_game(chart):
            message = f"{curve.name} is exactly 1 at all {curve.records} evaluations, also at the first: "
            message += "there may be only one class in the masks, or none is counted"
            yield shown(SuspiciouslyLowLoss, curve, 0, "warning", message, value=1.0)
            return


def _measures_nothing(chart: Chart) -> Iterator[Symptom]:
    """The loss is exactly 0 for most of the run, but the validation accuracy has never risen.

    >>> chart = Chart.of(loss=[2.0, 1.0] + [0.0] * 30, val_accuracy=[0.1] * 10, context={"source": "CSV"})
    >>> print(*too_good(chart))
    step 2: LO07 suspiciously-low-loss (warning): loss is exactly 0 from step 2 on, but validation accuracy stays at ...
    """
    curve, rates = Curve.of(chart["loss"], "loss"), chart["val_accuracy"].values
    zeros = int(np.argmax(np.append(curve.values[::-1] != 0, True)))
    if zeros < max(FEW, curve.values.size // 2) or zeros == curve.values.size or rates.size < EVALUATIONS:
        return
    top, now = 1.0 if float(rates.max()) <= 1 else 100.0, median(rates[-3:])
    if now < 0.5 * top and float(rates.max()) < float(rates[0]) + 0.02 * top:
        since = curve.values.size - zeros
        message = f"loss is exactly 0 from step {int(curve.steps[since])} on, but validation accuracy stays at "
        message += f"{number_text(now)}: the loss does not count the errors, or the samples were learned by heart"
        yield shown(SuspiciouslyLowLoss, curve, since, "warning", message, value=0.0)


def too_good(chart: Chart) -> Iterator[Symptom]:
    """A loss of exactly 0 on new samples, or a perplexity of 1: the inputs contain the answer.

    Samples that come again may have been memorized; then the validation perplexity is higher.
    """
    if is_game(chart) or "reward" in chart:
        return
    yield from _measures_nothing(chart)
    curve, epoch = Curve.of(chart["loss"], "loss"), chart.context.get("steps_per_epoch")
    if isinstance(epoch, int) and curve:
        new = curve.values[curve.steps <= epoch]
        late, exactly = new[new.size // 2 :], new == 0
        if new.size >= FEW and curve.start > 0 and exactly.any() and 0 <= median(late) < NOTHING * curve.start:
            since = int(np.argmax(exactly))
            message = (
                f"{curve.name} is exactly 0 at step {int(curve.steps[since])}, in the first epoch, and stays near 0: "
            )
            message += "the model has never seen these samples"
            yield shown(SuspiciouslyLowLoss, curve, since, "warning", message, value=median(late))
            return
    known, held_out = Curve.of(chart["train_ppl"], "perplexity"), chart["val_ppl"].values
    if known.values.size < FEW or not known.start > 2 * CERTAIN:
        return
    late = known.values[known.values.size // 2 :]
    if 1 <= median(late) < CERTAIN and not (held_out.size and float(held_out.min()) > HELD_OUT):
        since = int(np.argmax(known.values < CERTAIN))
        message = f"{known.name} is {number_text(median(late))}: the model knows nearly every token in advance"
        yield shown(SuspiciouslyLowLoss, known, since, "warning", message, value=median(late), limit=CERTAIN)
