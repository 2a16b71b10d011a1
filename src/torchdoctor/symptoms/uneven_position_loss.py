"""OU03 uneven-position-loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class UnevenPositionLoss(Detector):
    """The loss at the last position of a sequence is far higher than at all others.

    ## What it means
    A next-token model sees the tokens 1 to T and predicts 2 to T + 1, so all answers but the last are in its input. If
    it predicts those well and fails at the last one, it reads the answers: the causal mask leaks. The loss looks very
    good, but the model cannot generate text. The same holds for the next values of a series, if a convolution is padded
    on both sides or a recurrent layer also runs backwards.

    ## How it is told apart
    With a correct mask, later positions have more context and are easier, the last one easiest of all. It is reported
    if, over several samples, the loss at the last position is at least 1.5 times that at the others and clearly above
    it. Losses of single positions are noisy, so with few sequences per batch the ratio must be larger. Squared errors
    are noisier still: the last must be more than four times the others. The loss at the others must be below chance
    level: a model that is worse than that does not read the answers, and a state that explodes is worst at the end.

    ## What to do
    Check the mask: `is_causal=True`, or -inf (not 0, not 1) above the diagonal, before the softmax, in every layer.
    To test it, change token t + 1 and see whether the output at t changes.

    ## How to see that it is cured
    `last_position_loss` is at or below `other_position_loss`; the training loss is higher than before, but correct.

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
    """Samples that are averaged; the last position must be worse in each of them."""
    ratio: float = 1.5
    """Multiple of the loss at the other positions above which it is reported; larger if a batch has few sequences."""
    distance: float = 0.5
    """Distance to the loss at the other positions, in nats, that must be exceeded as well."""
    error: float = 4.0
    """Multiple of the squared error at the other positions above which it is reported for numbers."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the averages of the last few samples."""
        return self._numbers(chart) or self._tokens(chart)

    def _numbers(self, chart: Chart) -> Symptom | None:
        last, others = given_away(chart)
        if not last > self.error * others:
            return None
        message = f"squared error {number_text(last)} at the last position of a series and {number_text(others)} before"
        first = int(chart["last_position_error"].steps[-self.samples])
        return self.symptom(chart, "warning", message, value=last, limit=self.error * others, since=first)

    def _tokens(self, chart: Chart) -> Symptom | None:
        last, others = chart["last_position_loss"].last(self.samples), chart["other_position_loss"].last(self.samples)
        if min(last.size, others.size) < self.samples or not (last > 1.2 * others).all():
            return None
        value, usual, size = float(last.mean()), float(others.mean()), chart.context.get("batch_size")
        ratio = max(self.ratio, 1 + 3 / math.sqrt(size) if isinstance(size, int) and size > 0 else 2.0)
        if not value > ratio * usual or not value > usual + self.distance or is_at_chance(chart, usual):
            return None
        message = f"loss {number_text(value)} at the last position and {number_text(usual)} at all others"
        first = int(chart["last_position_loss"].steps[-self.samples])
        return self.symptom(chart, "warning", message, value=value, limit=ratio * usual, since=first)


def is_at_chance(chart: Chart, loss: float) -> bool:
    """Whether a loss is known to be at chance level or above: then the answers are not read from the input.

    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 4.6}})
    >>> is_at_chance(chart, 1.5e9), is_at_chance(chart, 0.2), is_at_chance(Chart(), 1.5e9)
    (True, False, False)
    """
    chance = chart.fact("loss.chance")
    return isinstance(chance, int | float) and loss >= chance


def given_away(chart: Chart, samples: int = 3) -> tuple[float, float]:
    """The error at the last position of a series, and at those before it; NaN unless the last is always far worse.

    The others must have improved since the start: a model that has learned nothing does not read the answers either.
    Nor does one that is worse than a constant guess, if that is known.
    """
    last, others = chart["last_position_error"], chart["other_position_error"]
    ends, before = last.last(samples), others.last(samples)
    if min(ends.size, before.size) < samples or not (ends > 2 * before).all() or not before[-1] < 0.5 * others.first:
        return math.nan, math.nan
    guesses = chart["guess_loss"].last(samples) if chart.fact("loss.kind") == "mse" else before[:0]
    if guesses.size == samples and before.mean() >= guesses.mean():
        return math.nan, math.nan
    return float(ends.mean()), float(before.mean())
