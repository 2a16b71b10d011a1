"""What becomes of a signal in the first pass, before anything was learnt."""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import median
from torchdoctor.symptoms.activation_explosion import WEIGHTED

MUFFLED = 0.15
"""Share of their weights' size that normalization layers give at least."""


def fading(chart: Chart) -> tuple[tuple[str, ...], float, float]:
    """The layers of a model without normalization, what each makes of its input at step 0, and what reaches the last.

    NaN where fewer than three layers were seen, or one of them gave nothing at all.
    """
    names, kinds, rows = chart.module_names, chart.fact("modules.kinds", ()), chart.modules("act_rms").rows
    entry = chart["entry_rms"].first
    if not rows or rows[0][0] > 0 or not len(names) == len(kinds) == rows[0][1].size or not entry > 0:
        return (), math.nan, math.nan
    columns = [index for index, kind in enumerate(kinds) if kind in WEIGHTED]
    sizes = np.array([entry, *rows[0][1][columns]])
    if len(columns) < 3 or chart.fact("modules.normalized") or not (sizes > 0).all():
        return (), math.nan, math.nan
    return tuple(names[index] for index in columns), median(sizes[1:] / sizes[:-1]), float(sizes[-2] / entry)


def muffled(chart: Chart) -> tuple[tuple[str, ...], float]:
    """Normalization layers, and what they typically gave at step 0 of the size of their weights; NaN if unknown."""
    names, kinds, rows = chart.module_names, chart.fact("modules.kinds", ()), chart.modules("act_rms").rows
    weights, widths = chart.tensors("weight_norm").rows, chart.fact("modules.widths", ())
    if not rows or rows[0][0] > 0 or not weights or weights[0][0] > 0 or not chart.fact("modules.normalized"):
        return (), math.nan
    known = dict(zip(chart.names, weights[0][1].tolist(), strict=False))
    found = {}
    for name, kind, size, width in zip(names, kinds, rows[0][1].tolist(), widths, strict=False):
        gain = known.get(f"{name}.weight", 0.0) / math.sqrt(max(width, 1))
        if "Norm" in kind and 0 < gain < math.inf and size > 0:  # read after the first step, which may ruin a weight
            found[name] = size / gain
    return tuple(found), median(list(found.values())) if found else math.nan
