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
"""A gradient norm below this counts as zero: the step could not learn anything."""
ABOUT_ZERO = 0.1
"""Share of its descent below which a loss is near zero, at its start and now."""
RARE = 0.1
"""Share of zero-gradient steps above which they are usual: all answers of a group were right, or no triplet hard."""


@dataclass(frozen=True)
class GradientInstability(Detector):
    """The gradient norm fluctuates wildly for a long time, and the loss does not improve.

    ## What it means
    The sizes of consecutive gradients differ by large factors. The optimizer's running averages mean little, and the
    loss bounces instead of falling. An explosion or divergence often follows.

    ## How it is told apart
    Small batches have heavy-tailed norms in healthy runs: typical swings by a factor of 2 (0.7 in log space) are
    common, and wider ones are harmless while the loss falls or once the data is memorized. Swings about the trend must
    be wider than a factor of 3.5 for the whole window, and the loss must not improve. It is a warning only if the loss
    has given back part of its progress. This does not apply to losses that need not stay low (of a GAN or a policy).

    ## What to do
    Clip the gradient norm, then lower the learning rate or use a larger batch.

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
    """Latest values over which the swings must last."""
    history: int = 64
    """Values needed before anything is reported."""
    swing: float = 1.25
    """Spread of the log norm about its trend above which it is reported: a typical swing by a factor of 3.5."""
    floor: float = 0.05
    """Share of the first loss below which the run counts as converged."""
    lost: float = 0.25
    """Share of its descent that the loss must have given back for a warning."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the spread of the norm about its trend with the limit, then check what the loss did."""
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
        scatter = float(losses.std())  # with one sample per batch, most losses may be equal and a few far off
        sure = now - before > 2.5 * scatter / math.sqrt(half) or given_back > 4 * scatter
        lost = progress.descent > 0.05 * abs(progress.start) and given_back > self.lost * progress.descent
        if lost and sure and not is_game(chart) and not _came_back_to_zero(progress, now):
            severity = "warning"
        factor = math.exp(min(_swing(base), 300.0))
        message = (
            f"gradient norm swings by a factor of {number_text(factor)} around {number_text(math.exp(base.centre))} "
            f"while the loss went from {number_text(before)} to {number_text(now)}"
        )
        since = int(chart["grad_norm"].steps[-base.count])
        return self.symptom(chart, severity, message, value=_swing(base), limit=self.swing, confidence=0.8, since=since)

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether the baseline's spread is below the limit: coming values do not change it."""
        base = chart["grad_norm"].upcoming(self.window, log=True)
        return base.count < self.history or not _swing(base) > self.swing

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The same, with the baseline before and after the first coming finite value."""
        base = chart["grad_norm"].baseline(self.window, log=True)
        before = base.count < self.history or not _swing(base) > self.swing
        calm = before and self.is_calm(chart, {})
        return np.full(len(coming), CALM if calm else LOOK, dtype=np.int8)


def _swing(base: Baseline) -> float:
    """The spread about the trend, or from value to value if that is smaller: a new level is not a swing."""
    return min(base.noise, 1.25 * base.jitter)


def _came_back_to_zero(progress: Progress, now: float) -> bool:
    """Whether the loss began near zero, went below and is near zero again, as that of a policy that became certain.

    A policy loss weights choices by their advantage, which vanishes once all choices are good.
    """
    return max(abs(progress.start), abs(now)) < ABOUT_ZERO * progress.descent
