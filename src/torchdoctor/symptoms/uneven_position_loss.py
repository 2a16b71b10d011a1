"""OU03 uneven-position-loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class UnevenPositionLoss(Detector):
    """The last position of a sequence is far harder than all before it.

    ## What it means
    A model of the next token sees the tokens 1 to T and is asked for 2 to T + 1. All answers but the last stand in the
    input. If the model predicts those and fails at the last one, it reads the answers instead of predicting them: the
    causal mask leaks. Such a loss is wonderful and the model cannot write a sentence.

    ## How it is told apart
    With a sound mask later positions know more and are easier, the last one easiest of all. It is a finding when, over
    several samples, the last position's loss is half as high again as that of the others or more, and clearly above
    it. Losses of single positions are noisy: in a batch of few sequences the difference must be larger.

    ## What to do
    Check the mask: `is_causal=True`, or -inf (not 0, not 1) above the diagonal, before the softmax, in every layer.
    Test: change token t + 1 and see whether the output at t changes.

    ## How to see that it is cured
    `last_position_loss` is at or below `other_position_loss`; the training loss is higher than before, and honest.

    ## Example
    >>> chart = Chart.of(last_position_loss=[2.4] * 3, other_position_loss=[0.2] * 3)
    >>> print(UnevenPositionLoss().check(chart))
    step 0: OU03 uneven-position-loss (warning): loss 2.4 at the last position and 0.2 at all others
    """

    code = "OU03"
    name = "uneven-position-loss"
    reads = ("last_position_loss",)
    suggests = ("fix-mask",)
    references = ("https://arxiv.org/abs/1706.03762",)
    closes_after = 3

    samples: int = 3
    """Samples that are averaged, and that must each point the same way."""
    ratio: float = 1.5
    """Times the loss of the other positions; more where a batch has so few sequences that chance could do it."""
    distance: float = 0.5
    """Nats above the loss of the other positions."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the averages of the last few samples."""
        last, others = chart["last_position_loss"].last(self.samples), chart["other_position_loss"].last(self.samples)
        if min(last.size, others.size) < self.samples or not (last > 1.2 * others).all():
            return None
        value, usual, size = float(last.mean()), float(others.mean()), chart.context.get("batch_size")
        ratio = max(self.ratio, 1 + 3 / math.sqrt(size) if isinstance(size, int) and size > 0 else 2.0)
        if not value > ratio * usual or not value > usual + self.distance:
            return None
        message = f"loss {number_text(value)} at the last position and {number_text(usual)} at all others"
        first = int(chart["last_position_loss"].steps[-self.samples])
        return self.symptom(chart, "warning", message, value=value, limit=ratio * usual, since=first)
