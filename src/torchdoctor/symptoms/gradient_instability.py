"""GR03 gradient-instability."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Baseline, median
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, Detector, Outlook
from torchdoctor.symptoms.progress import Progress, is_game

NOTHING = 1e-20
"""A gradient norm that is none: of a step from which nothing could be learnt."""
ABOUT_ZERO = 0.1
"""Share of its descent that a loss may be away from zero at its start, and now, if it came back."""
RARE = 0.1
"""Share of such steps from which on they are the loop's way: all answers of a group were right, no triplet was hard."""


@dataclass(frozen=True)
class GradientInstability(Detector):
    """The gradient norm fluctuates wildly, for a sustained time, and the loss gains nothing.

    ## What it means
    Consecutive steps disagree about how far to go by large factors. The optimizer's averages mean little, and the run
    bounces instead of descending; often the step before an explosion or a divergence.

    ## How it is told apart
    Small batches have heavy-tailed norms in perfect health: a typical swing of 2 (0.7 in log space) is common, and even
    more is harmless while the loss falls or once the data is memorized. Swings must be wider than that about
    their own trend for the whole window, and the loss must not be improving; it is a warning only where the loss has
    lost ground. Losses that need not stay low (of players, of a policy) have none to lose.

    ## What to do
    Clip the gradient norm, then lower the learning rate or enlarge the batch.

    ## How to see that it is cured
    The norm stays within a factor of about three of its median, and the loss falls again.

    ## Example
    >>> norms = [0.05, 1.0, 20.0, 0.3, 6.0, 0.02, 50.0, 2.0] * 17
    >>> losses = [3.0 - 0.03 * step for step in range(68)] + [1.0 + 0.04 * step for step in range(68)]
    >>> GradientInstability().check(Chart.of(grad_norm=norms, loss=losses)).severity
    'warning'
    """

    code = "GR03"
    name = "gradient-instability"
    reads = ("grad_norm",)
    suggests = ("set-clip-norm", "scale-lr")
    references = ("https://arxiv.org/abs/1905.11881",)
    every = 10
    closes_after = 10

    window: int = 128
    """Values over which the swings must last."""
    history: int = 64
    """Values that must be known before anything is said."""
    swing: float = 1.25
    """The least spread of log-norm about its trend: typical swings of a factor 3.5."""
    floor: float = 0.05
    """Share of the first loss under which a run counts as arrived."""
    lost: float = 0.25
    """Share of its descent that the loss must have given back to make it a warning."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the spread of the norm about its trend with the limit, then ask what the loss did meanwhile."""
        base = chart["grad_norm"].baseline(self.window, log=True)
        if base.count < self.history or not _swing(base) > self.swing:
            return None
        losses = chart["loss"].last(self.window)
        if losses.size < self.history or (chart["grad_norm"].last(self.window) < NOTHING).mean() > RARE:
            return None
        half = losses.size // 2
        before, now = median(losses[:half]), median(losses[half:])
        progress = Progress.of(chart["loss"])
        if now < before or abs(now) < self.floor * abs(progress.start):
            return None
        severity: Severity = "info"
        given_back = now - progress.best
        scatter = float(losses.std())  # of batches of one sample most losses may be alike, and the rest far off
        sure = now - before > 2.5 * scatter / math.sqrt(half) or given_back > 4 * scatter
        lost = progress.descent > 0.05 * abs(progress.start) and given_back > self.lost * progress.descent
        if lost and sure and not is_game(chart) and not _came_back_to_zero(progress, now):
            severity = "warning"
        factor = math.exp(min(_swing(base), 300.0))
        message = (
            f"gradient norm swings by a factor of {number_text(factor)} about {number_text(math.exp(base.centre))} "
            f"while the loss went from {number_text(before)} to {number_text(now)}"
        )
        since = int(chart["grad_norm"].steps[-base.count])
        return self.symptom(chart, severity, message, value=_swing(base), limit=self.swing, confidence=0.8, since=since)

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """The spread is the baseline's, whatever comes."""
        base = chart["grad_norm"].upcoming(self.window, log=True)
        return base.count < self.history or not _swing(base) > self.swing

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The same of the baseline before and after the first finite value that comes."""
        base = chart["grad_norm"].baseline(self.window, log=True)
        before = base.count < self.history or not _swing(base) > self.swing
        calm = before and self.is_calm(chart, {})
        return np.full(len(coming), CALM if calm else LOOK, dtype=np.int8)


def _swing(base: Baseline) -> float:
    """The spread about the trend, or from value to value where that is smaller: a new level is no swing."""
    return min(base.noise, 1.25 * base.jitter)


def _came_back_to_zero(progress: Progress, now: float) -> bool:
    """Whether the loss began at zero, went below and is at zero again: that of a policy that has become sure of itself.

    It is what is chosen, weighed by how much better than usual it is: nothing is once all choices are good.
    """
    return max(abs(progress.start), abs(now)) < ABOUT_ZERO * progress.descent
