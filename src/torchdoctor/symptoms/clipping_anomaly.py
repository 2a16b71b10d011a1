"""GR04 clipping-anomaly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import has_gained, median_ratio


@dataclass(frozen=True)
class ClippingAnomaly(Detector):
    """Clipping cuts every step to nothing, or comes too late to cut anything.

    ## What it means
    Clipping is there for rare outliers. If the threshold is a hundredth of the usual norm, each step is a hundredth of
    what the learning rate says. If `clip_grad_norm_` is called after `optimizer.step()`, it clips gradients that were
    already applied.

    ## How it is told apart
    Clipping most steps to a third or a tenth is common and healthy. Adam, LAMB and sign methods do not feel the scale
    of gradients: with them tight clipping hardly slows anything, and nothing is said. With SGD the weights must
    hardly move as well. A summed loss has norms of hundreds, and a threshold of 1 with a rate to match trains well:
    where the loss has fallen by a fifth, nothing is said. Gradients that still carry a loss scale are another matter:
    the threshold then is thousands of times smaller than it was meant to be, and Adam feels it at its eps.

    ## What to do
    Set the threshold to about the usual norm (its 90th percentile), between `backward()` and `step()`; with a gradient
    scaler, after `scaler.unscale_(optimizer)`: before it, the norm is that of scaled gradients.

    ## How to see that it is cured
    A few percent of the steps are clipped, and update ratios are about 1e-3.

    ## Example
    >>> chart = Chart.of(grad_norm=[50.0] * 100, clip=[0.01])
    >>> chart.groups = [{"optimizer": "SGD"}]
    >>> ClippingAnomaly().check(chart).message
    'every step is clipped at 0.01, to 2.00e-04 of its norm of 50'
    """

    code = "GR04"
    name = "clipping-anomaly"
    reads = ("grad_norm", "facts/clip.after_step")
    suggests = ("set-clip-norm",)
    references = ("https://arxiv.org/abs/1211.5063",)
    every = 25
    closes_after = 4

    share: float = 0.01
    """Share of its norm that is left of a step that is cut to nothing."""
    steps: int = 64
    """Steps that are looked at; nine of ten must be cut so."""
    ratio: float = 1e-4
    """Share of themselves by which weights move at the most where clipping holds them back."""

    def check(self, chart: Chart) -> Symptom | None:
        """Too late, or too tight for an optimizer that feels it."""
        if chart.fact("clip.after_step"):
            message = "gradients are clipped after the step that applies them: clip between backward() and step()"
            return self.symptom(chart, "warning", message, since=chart.facts["clip.after_step"].step, confidence=0.95)
        clip, norms = chart["clip"].latest, chart["grad_norm"].last(self.steps)
        if not clip > 0 or norms.size < self.steps or chart["grad_norm"].step - chart["clip"].steps[0] < self.steps:
            return None
        if is_scaled(chart) and float(np.mean(clip < self.share * norms)) > 0.9:
            message = f"clipped at {number_text(clip)} while the norm, times the loss scale, is "
            message += f"{number_text(median(norms))}: scaler.unscale_(optimizer) comes first"
            return self.symptom(chart, "warning", message, value=clip, limit=median(norms), confidence=0.9)
        plain = chart.groups and all(group.get("optimizer") == "SGD" for group in chart.groups)
        if not plain or not float(np.mean(clip < self.share * norms)) > 0.9:
            return None
        typical, moved = median(norms), median_ratio(chart)
        if moved > self.ratio or has_gained(chart["loss"]):
            return None
        severity: Severity = "warning" if moved <= self.ratio else "info"  # unknown: NaN is neither
        left = number_text(clip / typical)
        message = f"every step is clipped at {number_text(clip)}, to {left} of its norm of {number_text(typical)}"
        return self.symptom(chart, severity, message, value=clip, limit=self.share * typical)


def is_scaled(chart: Chart, steps: int = 64) -> bool:
    """Whether norms are those of an ordinary gradient times a large loss scale: nobody has unscaled them yet."""
    scale, norms = chart["loss_scale"].latest, chart["grad_norm"].last(steps)
    return bool(norms.size) and scale >= 1024 and 0.05 * scale < median(norms) < 30 * scale
