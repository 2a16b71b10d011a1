"""NU02 skipped-steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class SkippedSteps(Detector):
    """The gradient scaler keeps skipping steps, or its scale collapses.

    ## What it means
    In half precision the loss is multiplied by a scale; a step whose gradients overflow is skipped, and the scale
    halved. When it is skipped at every scale, it is not the scale that overflows: some value is not finite by itself,
    and the run stands still.

    ## How it is told apart
    The first steps search for a scale: up to thirty skips there are normal. Later about one in two thousand is, when
    the scaler tries a doubled scale.

    ## What to do
    Compute the part that overflows in float32 or bfloat16 (`with torch.autocast("cuda", enabled=False)`), look at the
    batch, lower the learning rate if gradients grew before. Never set the scale by hand to hide it.

    ## How to see that it is cured
    `scaler.get_scale()` settles between about 1,000 and 100,000, and skips are rare.

    ## Example
    >>> print(SkippedSteps().check(Chart.of(skipped=[0.0] * 60 + [1.0] * 20)))
    step 60: NU02 skipped-steps (critical): the scaler skipped each of the last 20 steps
    """

    code = "NU02"
    name = "skipped-steps"
    reads = ("skipped", "loss_scale")
    suggests = ("change-precision", "scale-lr", "clean-data")
    references = ("https://pytorch.org/docs/stable/amp.html#gradient-scaling", "https://arxiv.org/abs/1710.03740")
    every = 5
    closes_after = 10

    search: int = 30
    """First steps, in which the scaler looks for its scale."""
    window: int = 100
    """Steps that are looked at."""
    share: float = 0.08
    """Share of them that was skipped: a warning."""
    row: int = 12
    """Steps skipped in a row: critical."""
    scale: float = 1.0
    """Loss scale under which gradients are lost to underflow anyway."""

    def check(self, chart: Chart) -> Symptom | None:
        """Skips in a row, their share, and the scale."""
        series = chart["skipped"]
        if not series or chart.step < self.search:
            return None
        # Counted in steps: a log may hold only those that were skipped.
        recent = (series.steps >= self.search) & (series.steps > chart.step - self.window) & (series.values > 0)
        steps = series.steps[recent]
        count = int(steps.size)
        row = _row(steps, chart.step)
        scale = chart["loss_scale"].latest
        collapsed = scale < self.scale and chart["loss_scale"].outline.buckets()[0][3] > 16 * scale
        if row >= self.row:
            message = f"the scaler skipped each of the last {row} steps"
        elif count >= 5 and count > self.share * self.window:
            message = f"the scaler skipped {count} of the last {min(self.window, chart.step - self.search + 1)} steps"
        elif collapsed:
            message = "the scaler still skips steps" if count else "steps are taken again"
        else:
            return None
        if collapsed:
            message += f"; the loss scale has fallen to {number_text(scale)}"
        severity: Severity = "critical" if row >= self.row else "warning"
        since = chart.step if not count else int(steps[-row] if row >= self.row else steps[0])
        return self.symptom(chart, severity, message, value=float(count), limit=self.share * self.window, since=since)


def _row(steps: NDArray[np.int64], now: int) -> int:
    """How many of the latest steps, up to now, are all among these."""
    ahead = now - np.arange(steps.size)
    return int(np.argmax(np.append(steps[::-1] != ahead, True)))
