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
    In half precision the loss is multiplied by a scale. If the gradients of a step overflow, the step is skipped and
    the scale is halved. If steps are skipped at every scale, the scale is not the reason: some value is non-finite
    without it, and the run stands still.

    ## How it is told apart
    During the first 30 steps the scaler searches for a scale, and skips are normal. Later about one skip in two
    thousand steps is normal, when the scaler tries a doubled scale.

    ## What to do
    Compute the part that overflows in float32 or bfloat16 (`with torch.autocast("cuda", enabled=False)`), look at the
    batch, and lower the learning rate if gradients grew before. Never set the scale by hand to hide it.

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
    """Number of first steps that are ignored: the scaler searches for its scale."""
    window: int = 100
    """Number of recent steps in which skips are counted."""
    share: float = 0.08
    """Share of these steps that must be skipped for a warning."""
    row: int = 12
    """Steps skipped in a row that are critical."""
    scale: float = 1.0
    """Loss scale below which the scale counts as collapsed: gradients underflow."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test the skips in a row, their share, and the scale."""
        series = chart["skipped"]
        if not series or chart.step < self.search:
            return None
        # Count by step number: a log may contain only the skipped steps.
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
            message = "the scaler still skips steps" if count else "steps are no longer skipped"
        else:
            return None
        if collapsed:
            message += f"; the loss scale has fallen to {number_text(scale)}"
        severity: Severity = "critical" if row >= self.row else "warning"
        since = chart.step if not count else int(steps[-row] if row >= self.row else steps[0])
        return self.symptom(chart, severity, message, value=float(count), limit=self.share * self.window, since=since)


def _row(steps: NDArray[np.int64], now: int) -> int:
    """How many steps in a row, up to now, are among these."""
    ahead = now - np.arange(steps.size)
    return int(np.argmax(np.append(steps[::-1] != ahead, True)))
