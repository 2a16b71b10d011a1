"""AC03 activation-explosion."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import TINY, Array, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import is_game, is_hurt

WEIGHTED = ("Linear", "Conv1d", "Conv2d", "Conv3d", "Bilinear", "ConvTranspose1d", "ConvTranspose2d")
HALF_LIMIT = 65504.0
"""The largest finite float16 number."""


@dataclass(frozen=True)
class ActivationExplosion(Detector):
    """The scale of activations grows by orders of magnitude, through depth or over time.

    ## What it means
    Each layer multiplies its input: a factor of 4 per layer is a factor of a million after ten layers. The loss starts
    far too high, gradients explode, and 16-bit numbers overflow. Growth over time means that the weights run away.

    ## How it is told apart
    The residual stream of a pre-norm transformer grows a little with every block, which is fine. Reported are:

    - Steady growth through at least four weight layers, by a factor of more than 1,000 in all. It is info if the
      targets are as large and the loss is not in trouble.
    - A hidden layer at 1,000 times its early level, or at 100 times if the loss is in trouble. It is info if the loss
      has fallen below 30 % of its first value.
    - Values near the largest float16 number, if the run uses float16.

    ## What to do
    If it is there from the start: He or Xavier initialization, normalization layers, inputs with standard deviation 1.
    If it grows over time: a lower learning rate, gradient clipping, weight decay. For attention logits, normalize
    queries and keys.

    ## How to see that it is cured
    `act_rms` of the last layer stays below 100 times that of the first.

    ## Example
    >>> chart = Chart()
    >>> names = [f"layers.{index}" for index in range(6)]
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.names": names, "modules.kinds": ["Linear"] * 6}})
    >>> chart.add({"type": "modules", "step": 0, "vitals": {"act_rms": [8.0**index for index in range(1, 7)]}})
    >>> print(ActivationExplosion().check(chart))  # doctest: +NORMALIZE_WHITESPACE
    step 0: AC03 activation-explosion (warning): activations grow by a factor of 8 per layer: from 8 to 2.62e+05
    through 6 layers
    """

    code = "AC03"
    name = "activation-explosion"
    reads = ("modules/act_rms", "modules/act_absmax")
    suggests = ("initialize", "add-normalization", "normalize-inputs", "scale-lr", "set-clip-norm")
    references = ("https://arxiv.org/abs/1502.01852", "https://arxiv.org/abs/2302.05442")
    closes_after = 3

    layers: int = 4
    """Number of weight layers needed to judge growth through depth."""
    depth: float = 1000.0
    """Growth factor from the first weight layer to the last above which growth through depth is reported,"""
    factor: float = 1.8
    """if the median growth factor per layer is above this too."""
    time: float = 1000.0
    """Multiple of its early level above which a hidden layer is reported; a tenth of this if the loss is in trouble."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check the latest sample for growth through depth, then for growth over time, then against float16's limit."""
        names, kinds = chart.module_names, chart.fact("modules.kinds", ())
        rows = chart.modules("act_rms").matrix()
        if not rows.size or rows.shape[1] != len(names) or len(kinds) != len(names):
            return self._half(chart)
        columns = np.array([index for index, kind in enumerate(kinds) if kind in WEIGHTED], dtype=np.intp)
        return self._through_depth(chart, rows, columns) or self._over_time(chart, rows, columns) or self._half(chart)

    def _through_depth(self, chart: Chart, rows: Array, columns: np.ndarray) -> Symptom | None:
        levels = rows[-1, columns]
        known = np.isfinite(levels) & (levels > 0)
        if known.sum() < self.layers:
            return None
        logs, depth = np.log(levels[known]), np.flatnonzero(known)
        first, second = np.triu_indices(logs.size, 1)
        factor = math.exp(median((logs[second] - logs[first]) / (depth[second] - depth[first])))
        total = math.exp(min(float(logs[-1] - logs[0]), 300.0))
        if not (factor > self.factor and total > self.depth) or levels[known][-1] < chart["entry_rms"].latest:
            return None  # or the signal had faded, and is only back at the size of the input
        low, high = number_text(math.exp(logs[0])), number_text(math.exp(logs[-1]))
        message = f"activations grow by a factor of {number_text(factor)} per layer: from {low} to {high} through"
        where = tuple(chart.module_names[int(index)] for index in columns[known][-3:])
        size = max(abs(chart["target_mean"].latest), chart["target_std"].latest)
        asked = chart["loss"].count > 8 and levels[known][-1] < 2 * size and not is_hurt(chart)
        severity: Severity = "info" if asked else "warning"
        return self.symptom(
            chart, severity, f"{message} {logs.size} layers", value=total, limit=self.depth, where=where
        )

    def _over_time(self, chart: Chart, rows: Array, columns: np.ndarray) -> Symptom | None:
        outputs = chart.fact("modules.outputs", ())
        columns = np.array([index for index in columns if chart.module_names[index] not in outputs], dtype=np.intp)
        if len(rows) < 5 or not columns.size:
            return None
        with np.errstate(all="ignore"):
            early = np.sort(rows[:4, columns], axis=0)[1]
            # A layer that begins near zero has no level of its own: it is compared with that of the others.
            levels = rows[:4, columns][rows[:4, columns] > 0]
            usual = median(levels) if levels.size else math.nan
            growth = np.min(rows[-2:, columns], axis=0) / np.maximum(early, 0.1 * usual + TINY)
        growth = np.where(np.isfinite(growth), growth, 0.0)
        worst = int(np.argmax(growth))
        hurt = is_hurt(chart) or (not is_game(chart) and _has_lost(chart))
        if not growth[worst] > self.time / (10 if hurt else 1):
            return None
        severity: Severity = "warning" if hurt or not _has_learnt(chart) else "info"
        column = int(columns[worst])
        name = chart.module_names[column]
        times = number_text(float(growth[worst]))
        message = (
            f"activations of {chart.called(column)} have grown by a factor of {times} since the first steps checked"
        )
        return self.symptom(chart, severity, message, value=float(growth[worst]), limit=self.time, where=(name,))

    def _half(self, chart: Chart) -> Symptom | None:
        precision = [chart.context.get("autocast"), *(chart.context.get("precision") or ())]
        row = chart.modules("act_absmax").latest
        if "float16" not in precision or row.size != len(chart.module_names):
            return None
        largest = np.where(np.isfinite(row), row, 0.0)
        worst = int(np.argmax(largest))
        if not largest[worst] > HALF_LIMIT / 2:
            return None
        name = chart.module_names[worst]
        message = (
            f"values of {chart.called(worst)} reach {number_text(float(largest[worst]))}; float16 only goes up to 65504"
        )
        return self.symptom(chart, "warning", message, value=float(largest[worst]), limit=HALF_LIMIT, where=(name,))


def _has_lost(chart: Chart) -> bool:
    """Whether the loss is above its first value."""
    loss = chart["loss"]
    return loss.baseline(32).recent > abs(loss.first) > 0


def _has_learnt(chart: Chart) -> bool:
    """Whether the loss has fallen below 30 % of its first value."""
    loss = chart["loss"]
    return bool(loss) and loss.baseline(32).recent < 0.3 * loss.first
