"""OU02 unexpected-initial-loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class UnexpectedInitialLoss(Detector):
    """The first loss is far above that of a guess.

    ## What it means
    A model that knows nothing should say so: with C classes its loss is ln C. A first loss many times that means that
    the model is sure, and wrong: its last layer, or its inputs, are far too large. The first steps then only shrink
    weights, and gradients are large while they do.

    ## How it is told apart
    Twice ln C is usual for a head initialized after He. It must be above three times ln C, and more than 1 above. Where
    targets are numbers, answering their mean is the guess, and the first answers must vary three times as much as the
    targets do, and by more than 3: targets that are merely far from zero are `target-anomaly`. Only
    the value that `loss_fn` itself returns is compared, so that further terms of the loss do not matter. A first loss
    below ln C is a model that has learnt before. It is a note as long as it may heal, and a warning if the loss is
    still above a guess after fifty steps, or was above ten times it. Where the model's own output is not what the loss
    gets, its scale may be meant (a margin, a temperature): a note; so it is where outputs grow while the loss falls:
    then their size is not what the model has to unlearn.

    ## What to do
    Look at the size of inputs and of logits: `model(x).std()` should be near 1 or below. Initialize the last layer with
    small weights and its bias with the logarithms of the class shares.

    ## How to see that it is cured
    The first loss of a new run is within 20 % of ln C.

    ## Example
    >>> chart = Chart.of(criterion=[46.0], output_rms=[48.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 1.609}})
    >>> print(UnexpectedInitialLoss().check(chart))
    step 0: OU02 unexpected-initial-loss (warning): the first loss is 46, that of a guess 1.61; outputs are of size 48
    """

    code = "OU02"
    name = "unexpected-initial-loss"
    reads = ("criterion",)
    suggests = ("initialize", "normalize-inputs", "fix-loss")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    closes_after = 1

    ratio: float = 3.0
    """Times the loss of a guess; it must be 1 above it as well."""
    grave: float = 10.0
    """Times the loss of a guess that are a warning at once."""
    patience: int = 50
    """Steps after which a loss above a guess is a warning."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the first value that the loss returned with the loss of a guess."""
        series, chance = chart["criterion"], chart.fact("loss.chance")
        known = isinstance(chance, float)
        if known and series and chart.facts["loss.chance"].step > int(series.steps[0]):
            return None  # two losses take turns: the first value is that of another
        if not known:
            chance = self._guess(chart)
        if not chance > 0 or not series or int(series.steps[0]) > 2:
            return None
        first, latest = series.first, series.latest
        if not first > self.ratio * chance + 1:
            return None
        if series.step > 0 and not min(latest, series.lowest) > chance:
            return None  # the run has left its beginning behind, for good
        severity: Severity = "info"
        seen = bool(chart["output_rms"] or chart["output_std"])  # else the scale may be a margin's, or a temperature's
        lasts = seen and series.step >= self.patience and not _is_meant(chart)
        # A model that was trained is sure of what it knew: of other labels that costs much, and is soon unlearnt.
        fresh = not chart["weights_fresh"] or chart["weights_fresh"].first > 0
        if (known and fresh and first > self.grave * chance) or lasts:
            severity = "warning"
        message = f"the first loss is {number_text(first)}, that of a guess {number_text(chance)}"
        if chart["output_rms"]:
            message += f"; outputs are of size {number_text(chart['output_rms'].first)}"
        return self.symptom(
            chart, severity, message, value=first, limit=self.ratio * chance + 1, since=int(series.steps[0])
        )

    def _guess(self, chart: Chart) -> float:
        """What answering the mean costs where targets are numbers and the first answers are far wilder than they are.

        A fresh model's answers are about 0 to 1: targets that are merely far from 0, or tiny, are no fault of its own.
        """
        output, target = chart["output_std"], chart["pooled_std"].latest
        wild = bool(output) and output.first > max(self.ratio, self.ratio * target)
        return chart["guess_loss"].first if wild and chart["guess_loss"] else math.nan


def _is_meant(chart: Chart) -> bool:
    """Whether outputs have grown and the loss has fallen by a third: cosines times a scale, with a margin."""
    sizes, series = chart["output_rms"], chart["criterion"]
    return bool(sizes) and sizes.latest > 1.1 * sizes.first and series.latest < 0.67 * series.first
