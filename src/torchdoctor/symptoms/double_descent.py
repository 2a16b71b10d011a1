"""GE03 double-descent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.overfitting import evaluation_noise, smoothed


@dataclass(frozen=True)
class DoubleDescent(Detector):
    """Validation loss got worse for a while, then better than ever.

    ## What it means
    The first minimum was not the best one. On little or noisy data, the validation loss of large models may have a
    first minimum, a peak where they begin to fit single samples, and a second, lower minimum. Stopping at the peak
    gives the worst model.

    ## How it is told apart
    The peak must last for several evaluations and exceed their noise, and the new level must be below the old best by
    more than noise. One bad evaluation is not a peak, and one lucky evaluation is not a second descent.

    ## What to do
    Keep training while it improves. If early stopping is on, its patience must be longer than the peak.

    ## How to see that it is cured
    There is nothing to cure. The run ends at its best validation loss.

    ## Example
    >>> chart = Chart()
    >>> for number, loss in enumerate([2.0, 1.5, 1.2, 1.3, 1.5, 1.6, 1.5, 1.3, 1.1, 1.0, 0.9]):
    ...     chart.put(100 * number, "val_loss", loss)
    >>> print(DoubleDescent().check(chart))
    step 200: GE03 double-descent (info): validation loss rose from 1.2 to 1.5, then fell to 1, a new best
    """

    code = "GE03"
    name = "double-descent"
    reads = ("val_loss",)
    suggests = ("keep-training",)
    references = ("https://arxiv.org/abs/1912.02292", "https://arxiv.org/abs/1812.11118")
    closes_after = 20

    evaluations: int = 8
    """Evaluations needed before anything is reported."""
    hump: float = 0.1
    """Height of the peak above the first minimum, as a share of the total gain, above which it counts."""
    deviations: float = 4.0
    """Standard deviations of an evaluation's noise that both the peak and the new best must exceed."""

    def check(self, chart: Chart) -> Symptom | None:
        """Look for the highest peak after an earlier best, and compare the present level with that best."""
        series = chart["val_loss"]
        values = series.values
        if values.size < self.evaluations or not math.isfinite(series.latest):
            return None
        smooth = smoothed(values)
        now = float(smooth[-1])
        lowest = np.minimum.accumulate(smooth)
        peak = int(np.argmax(smooth - lowest))
        first = int(np.argmin(smooth[: peak + 1]))
        best, height = float(smooth[first]), float(smooth[peak])
        lasts = int(np.argmax(np.append(smooth[peak:] < best, True)))
        hump = values[first + 1 : peak + lasts]
        if peak - first < 2 or values.size - 1 - peak < 2 or hump.size < 3:
            return None
        # Noise is larger where values are high, so it is taken from the values around the peak.
        noise = evaluation_noise(values[max(0, first - self.evaluations) : peak + lasts + self.evaluations])
        limit = max(self.hump * (float(values[0]) - now), self.deviations * noise)
        if not height - best > limit > 0 or not median(hump) - best > 0.4 * (height - best):
            return None
        if not best - now > max(self.deviations * noise, 0.2 * (height - best)):
            return None
        message = (
            f"validation loss rose from {number_text(float(values[first]))} to {number_text(height)}, then fell to "
            f"{number_text(now)}, a new best"
        )
        return self.symptom(chart, "info", message, value=now, limit=best, since=int(series.steps[first]))
