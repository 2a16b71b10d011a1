"""OU02 unexpected-initial-loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class UnexpectedInitialLoss(Detector):
    """The first loss is far above chance level.

    ## What it means
    An untrained model should be at chance level, the loss of a constant guess: ln C for C classes. A much higher first
    loss means that the model is confident and wrong, because its last layer or its inputs are far too large. The first
    steps then only shrink the weights, with large gradients.

    ## How it is told apart
    The first value of `loss_fn` itself must be above three times chance level plus 1. Other terms of the loss do not
    count. About 2 ln C is usual for a head with He initialization; a first loss below ln C means a pretrained model.

    - In regression, the guess is the mean of the targets. The standard deviation of the first outputs must be above 3,
      and above three times that of the targets. Targets that are merely far from zero are `target-anomaly`.
    - It is a warning if the first loss is above ten times chance level of a new classifier, or if no loss was at chance
      level or below in the first 50 steps. Before that it is info.
    - It stays info if the scale may be intended: outputs that do not go directly into the loss (a margin, a
      temperature), or outputs that grow while the loss falls.

    ## What to do
    Check the size of inputs and logits: `model(x).std()` should be about 1 or less. Initialize the last layer with
    small weights and its bias with the logarithms of the class shares.

    ## How to see that it is cured
    The first loss of a new run is within 20 % of ln C.

    ## Example
    >>> chart = Chart.of(criterion=[46.0], output_rms=[48.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 1.609}})
    >>> print(UnexpectedInitialLoss().check(chart))
    step 0: OU02 unexpected-initial-loss (warning): the first loss is 46, chance level is 1.61; outputs are of size 48
    """

    code = "OU02"
    name = "unexpected-initial-loss"
    reads = ("criterion",)
    suggests = ("initialize", "normalize-inputs", "fix-loss")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    closes_after = 1

    ratio: float = 3.0
    """Multiple of chance level, plus 1, above which the first loss is unexpected."""
    grave: float = 10.0
    """Multiple of chance level above which it is a warning at once."""
    patience: int = 50
    """Steps after which a loss still above chance level is a warning."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the first value that the loss function returned with chance level."""
        series, chance = chart["criterion"], chart.fact("loss.chance")
        known = isinstance(chance, float)
        if known and series and chart.facts["loss.chance"].step > int(series.steps[0]):
            return None  # two loss functions alternate: the first value is that of the other one
        if not known:
            chance = self._guess(chart)
        if not chance > 0 or not series or int(series.steps[0]) > 2:
            return None
        first, latest = series.first, series.latest
        if not first > self.ratio * chance + 1:
            return None
        if series.step > 0 and not min(latest, series.lowest) > chance:
            return None  # the loss has been at chance level or below since
        severity: Severity = "info"
        seen = bool(chart["output_rms"] or chart["output_std"])  # else the scale may be a margin or a temperature
        lasts = seen and series.step >= self.patience and not _is_meant(chart)
        # A pretrained model is confident: with other labels that is expensive at first, and soon unlearned.
        fresh = not chart["weights_fresh"] or chart["weights_fresh"].first > 0
        if (known and fresh and first > self.grave * chance) or lasts:
            severity = "warning"
        message = f"the first loss is {number_text(first)}, chance level is {number_text(chance)}"
        if chart["output_rms"]:
            message += f"; outputs are of size {number_text(chart['output_rms'].first)}"
        return self.symptom(
            chart, severity, message, value=first, limit=self.ratio * chance + 1, since=int(series.steps[0])
        )

    def _guess(self, chart: Chart) -> float:
        """The loss of predicting the mean target, if the first outputs vary far more than the targets; else NaN.

        A new model's outputs have a size of about 1 or less. If targets are far from 0, or tiny, that is not its fault.
        """
        output, target = chart["output_std"], chart["pooled_std"].latest
        wild = bool(output) and output.first > max(self.ratio, self.ratio * target)
        return chart["guess_loss"].first if wild and chart["guess_loss"] else math.nan


def _is_meant(chart: Chart) -> bool:
    """Whether outputs grew while the loss fell by a third, as with scaled cosines and a margin."""
    sizes, series = chart["output_rms"], chart["criterion"]
    return bool(sizes) and sizes.latest > 1.1 * sizes.first and series.latest < 0.67 * series.first
