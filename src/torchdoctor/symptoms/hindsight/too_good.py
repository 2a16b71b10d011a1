"""Losses that are too good to be true: nothing is left to learn of samples that were never seen before.

>>> chart = Chart.of(loss=[0.85, 0.2, 0.01, 0.001] + [1e-4, 0.0] * 8, context={"source": "CSV", "steps_per_epoch": 20})
>>> print(*too_good(chart))
step 5: LO07 suspiciously-low-loss (warning): loss is 0 to the last digit from step 5 on, in the first pass through ...
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
"""Records of the first pass through the data that tell how it went."""
NOTHING = 3e-4
"""Share of its start that a loss is which is next to nothing."""
CERTAIN, HELD_OUT = 1.02, 1.05
"""Perplexities of a text of which every token is known before it comes; the latter of one that is held out."""


def too_good(chart: Chart) -> Iterator[Symptom]:
    """A loss of exactly nothing on new samples, or a perplexity of one: the answer is among the inputs.

    What is seen again may have been learnt by heart, and validation that is far above it says so.
    """
    if is_game(chart) or "reward" in chart:
        return
    curve, epoch = Curve.of(chart["loss"], "loss"), chart.context.get("steps_per_epoch")
    if isinstance(epoch, int) and curve:
        new = curve.values[curve.steps <= epoch]
        late, exactly = new[new.size // 2 :], new == 0
        if new.size >= FEW and curve.start > 0 and exactly.any() and 0 <= median(late) < NOTHING * curve.start:
            since = int(np.argmax(exactly))
            message = f"{curve.name} is 0 to the last digit from step {int(curve.steps[since])} on, in the first pass "
            message += "through the data: of samples that it has never seen, nothing is left to learn"
            yield shown(SuspiciouslyLowLoss, curve, since, "warning", message, value=median(late))
            return
    known, held_out = Curve.of(chart["train_ppl"], "perplexity"), chart["val_ppl"].values
    if known.values.size < FEW or not known.start > 2 * CERTAIN:
        return
    late = known.values[known.values.size // 2 :]
    if 1 <= median(late) < CERTAIN and not (held_out.size and float(held_out.min()) > HELD_OUT):
        since = int(np.argmax(known.values < CERTAIN))
        message = f"{known.name} is {number_text(median(late))}: nearly every token is known before it comes"
        yield shown(SuspiciouslyLowLoss, known, since, "warning", message, value=median(late), limit=CERTAIN)
