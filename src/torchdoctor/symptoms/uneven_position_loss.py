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
    causal mask leaks. Such a loss is wonderful and the model cannot write a sentence. So it is with the next values of
    a series: a convolution that is padded on both sides, or a recurrence that also runs backwards, has read them.

    ## How it is told apart
    With a sound mask later positions know more and are easier, the last one easiest of all. It is a finding when, over
    several samples, the last position's loss is half as high again as that of the others or more, and clearly above
    it. Losses of single positions are noisy: in a batch of few sequences the difference must be larger. Squared errors
    of numbers, more so: there the last must have several times that of the places before it.

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
    reads = ("last_position_loss", "last_position_error")
    suggests = ("fix-mask",)
    references = ("https://arxiv.org/abs/1706.03762",)
    closes_after = 3

    samples: int = 3
    """Samples that are averaged, and that must each point the same way."""
    ratio: float = 1.5
    """Times the loss of the other positions; more where a batch has so few sequences that chance could do it."""
    distance: float = 0.5
    """Nats above the loss of the other positions."""
    error: float = 4.0
    """Times the squared error of the other places, where numbers are asked for."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the averages of the last few samples."""
        return self._numbers(chart) or self._tokens(chart)

    def _numbers(self, chart: Chart) -> Symptom | None:
        last, others = given_away(chart)
        if not last > self.error * others:
            return None
        message = f"squared error {number_text(last)} at the last place of a series, {number_text(others)} before it"
        first = int(chart["last_position_error"].steps[-self.samples])
        return self.symptom(chart, "warning", message, value=last, limit=self.error * others, since=first)

    def _tokens(self, chart: Chart) -> Symptom | None:
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


def given_away(chart: Chart, samples: int = 3) -> tuple[float, float]:
    """The error at the last place of a series, and at those before it; NaN where the last is not the harder throughout.

    Only once the others are better than at first: a model that has learnt nothing has not read the answers either.
    """
    last, others = chart["last_position_error"], chart["other_position_error"]
    ends, before = last.last(samples), others.last(samples)
    if min(ends.size, before.size) < samples or not (ends > 2 * before).all() or not before[-1] < 0.5 * others.first:
        return math.nan, math.nan
    return float(ends.mean()), float(before.mean())
