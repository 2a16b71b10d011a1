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
"""The largest number of a 16-bit float."""


@dataclass(frozen=True)
class ActivationExplosion(Detector):
    """The scale of activations grows through depth or over time, by orders of magnitude.

    ## What it means
    Each layer multiplies what it gets: a factor of four a layer is a million after ten. The loss begins far too high,
    gradients explode, 16-bit numbers overflow. Over time: weights run away, and with them what the layers put out.

    ## How it is told apart
    Outputs in thousands are right where targets are: on their way there, a note. The residual stream of a pre-norm
    transformer grows a little with every block. So what counts is steady growth through at least four weight layers, by
    a thousand in all; or a hidden layer at a thousand times its early level, a hundred times where the loss is in
    trouble too. Values near the end of 16-bit floats count where the run computes in them.

    ## What to do
    From the start: He or Xavier initialization, normalization layers, inputs of deviation 1. Over time: lower the
    learning rate, clip gradients, weight decay; for attention logits, normalize queries and keys.

    ## How to see that it is cured
    `act_rms` of the last layer is within a hundred times that of the first, and stays there.

    ## Example
    >>> chart = Chart()
    >>> names = [f"layers.{index}" for index in range(6)]
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.names": names, "modules.kinds": ["Linear"] * 6}})
    >>> chart.add({"type": "modules", "step": 0, "vitals": {"act_rms": [8.0**index for index in range(1, 7)]}})
    >>> print(ActivationExplosion().check(chart))
    step 0: AC03 activation-explosion (warning): activations grow 8 times a layer: from 8 to 2.62e+05 through 6 layers
    """

    code = "AC03"
    name = "activation-explosion"
    reads = ("modules/act_rms", "modules/act_absmax")
    suggests = ("initialize", "add-normalization", "normalize-inputs", "scale-lr", "set-clip-norm")
    references = ("https://arxiv.org/abs/1502.01852", "https://arxiv.org/abs/2302.05442")
    closes_after = 3

    layers: int = 4
    """Weight layers that growth through depth needs."""
    depth: float = 1000.0
    """Times that activations grow through depth."""
    factor: float = 1.8
    """Times that they grow from a layer to the next, typically."""
    time: float = 1000.0
    """Times a hidden layer's early level; a tenth of it where the loss is in trouble."""

    def check(self, chart: Chart) -> Symptom | None:
        """The latest row through depth, then against the early ones, then against the end of 16-bit floats."""
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
            return None  # or the signal died on its way, and is back at the size that it came in with
        low, high = number_text(math.exp(logs[0])), number_text(math.exp(logs[-1]))
        message = f"activations grow {number_text(factor)} times a layer: from {low} to {high} through"
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
            # A layer that begins at zero has no level of its own: that of the others is what it may come up to.
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
        message = f"activations of {chart.called(column)} have grown {times} times since they were first seen"
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
            f"values of {chart.called(worst)} reach {number_text(float(largest[worst]))}; a 16-bit float ends at 65504"
        )
        return self.symptom(chart, "warning", message, value=float(largest[worst]), limit=HALF_LIMIT, where=(name,))


def _has_lost(chart: Chart) -> bool:
    loss = chart["loss"]
    return loss.baseline(32).recent > abs(loss.first) > 0


def _has_learnt(chart: Chart) -> bool:
    loss = chart["loss"]
    return bool(loss) and loss.baseline(32).recent < 0.3 * loss.first
