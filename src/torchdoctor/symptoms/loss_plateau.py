"""LO03 loss-plateau."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress, outline_levels, trend_gain


@dataclass(frozen=True)
class LossPlateau(Detector):
    """The loss stopped falling well above zero.

    ## What it means
    For a long part of the run the loss has not improved, although the learning rate would allow it to. Either this is
    the best that model and data can do, or something holds the run back. The loss alone cannot tell which, so this is
    info. It is a warning if the cause is visible: the learning rate went to zero while the loss was still falling, or
    the gradient vanished when progress stopped.

    ## How it is told apart
    A loss that flattens gradually still falls, and a trend test sees it. At the end of a schedule, near zero, or after
    a planned cut of the learning rate, a flat loss is convergence. Short runs are not judged: the window is at least
    300 values and a quarter of the run.

    ## What to do
    Compare with the validation loss. If the run has not converged, raise the learning rate for a while, check the
    schedule, and check that all parameters change.

    ## How to see that it is cured
    The loss falls below the plateau's level by more than its noise.

    ## Example
    >>> losses = [6.0 - 0.005 * step for step in range(800)] + [2.0, 2.01, 1.99] * 300
    >>> print(LossPlateau().check(Chart.of(loss=losses, lr=[1e-3] * 1700)))
    step 1274: LO03 loss-plateau (info): loss has stayed at 2 since step 1274, at learning rate 0.001
    """

    code = "LO03"
    name = "loss-plateau"
    reads = ("loss",)
    suggests = ("change-schedule", "scale-lr", "ask-for-help")
    references = ("https://arxiv.org/abs/1506.01186",)
    every = 200
    closes_after = 3

    steps: int = 300
    """Minimum number of values in a plateau."""
    share: float = 0.25
    """Minimum share of the run in a plateau."""
    gain: float = 0.01
    """Gain in the window, as a share of the run's descent, above which it is not a plateau."""
    floor: float = 0.05
    """Share of the first loss below which a flat loss counts as converged."""
    annealed: float = 0.1
    """Share of the highest learning rate below which a flat loss is the end of a schedule."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test the trend of the last quarter of the run, then check whether the learning rate explains it."""
        series = chart["loss"]
        if series.count < 3 * self.steps:
            return None
        levels = outline_levels(series)
        width = math.ceil(levels.size * max(self.share, self.steps / series.count))
        window, before = levels[-width:], levels[-2 * width : -width]
        progress = Progress.of(series)
        level = median(window)
        if not progress.is_learning(series.baseline(128).noise) or abs(level) < self.floor * abs(progress.start):
            return None
        gain, doubt = trend_gain(window)
        if gain > 3 * doubt or gain + 2 * doubt > self.gain * progress.descent:
            return None
        earlier, _ = trend_gain(before)
        since = int(series.outline.columns()[0][-width])
        return self._judged(chart, level, since, earlier / progress.descent, progress)

    def _judged(self, chart: Chart, level: float, since: int, earlier: float, progress: Progress) -> Symptom | None:
        rate, highest, lowest, previous = _rates(chart, since)
        severity: Severity = "info"
        message = f"loss has stayed at {number_text(level)} since step {since}"
        if rate is not None:
            if highest < 1e-3 * previous and earlier > 0.05:
                severity = "warning"
                message += f"; the learning rate fell to {number_text(rate)} while the loss was still falling"
            elif rate < self.annealed * previous or lowest < 0.7 * previous:
                return None
            else:
                message += f", at learning rate {number_text(rate)}"
        if severity == "info" and earlier > 0.2 and level > 0.25 * progress.start > 0 and _norm_died(chart, since):
            severity = "warning"
            message += "; the gradient norm fell below 1 % of its earlier level when progress stopped"
        return self.symptom(chart, severity, message, value=level, confidence=0.7, since=since)


def _rates(chart: Chart, since: int) -> tuple[float | None, float, float, float]:
    """The learning rate now, its highest and lowest since a step, and the highest before it."""
    starts, lows, _, highs = chart["lr"].outline.columns()
    if not starts.size:
        return None, 0.0, 0.0, 0.0
    inside = starts >= since
    before = float(highs[~inside].max(initial=0.0))
    inside[-1] = True
    return chart["lr"].latest, float(highs[inside].max()), float(lows[inside].min()), before


def _norm_died(chart: Chart, since: int) -> bool:
    """Whether the gradient norm since a step is below 1 % of what it was before."""
    starts, _, means, _ = chart["grad_norm"].outline.columns()
    inside = starts >= since
    return median(means[inside]) < 0.01 * median(means[~inside])
