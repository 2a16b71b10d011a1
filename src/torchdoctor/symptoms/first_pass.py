"""How the signal changes through the layers at step 0, before anything is learned."""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import median
from torchdoctor.symptoms.activation_explosion import WEIGHTED

MUFFLED = 0.15
"""Share of its weight's size that the output of a normalization layer normally has at least."""


def fading(chart: Chart) -> tuple[tuple[str, ...], float, float]:
    """Weight layers of a model without normalization, their typical gain at step 0, and the share reaching the last.

    NaN if fewer than three layers are known, or the output of one is zero or not finite.
    """
    names, kinds, rows = chart.module_names, chart.fact("modules.kinds", ()), chart.modules("act_rms").rows
    entry = chart["entry_rms"].first
    if not rows or rows[0][0] > 0 or not len(names) == len(kinds) == rows[0][1].size or not entry > 0:
        return (), math.nan, math.nan
    columns = [index for index, kind in enumerate(kinds) if kind in WEIGHTED]
    sizes = np.array([entry, *rows[0][1][columns]])
    if len(columns) < 3 or chart.fact("modules.normalized") or not ((sizes > 0) & (sizes < math.inf)).all():
        return (), math.nan, math.nan
    return tuple(names[index] for index in columns), median(sizes[1:] / sizes[:-1]), float(sizes[-2] / entry)


def muffled(chart: Chart) -> tuple[tuple[str, ...], float]:
    """Normalization layers, and the typical size of their outputs at step 0 as a share of their weights'; else NaN."""
    names, kinds, rows = chart.module_names, chart.fact("modules.kinds", ()), chart.modules("act_rms").rows
    weights, widths = chart.tensors("weight_norm").rows, chart.fact("modules.widths", ())
    if not rows or rows[0][0] > 0 or not weights or weights[0][0] > 0 or not chart.fact("modules.normalized"):
        return (), math.nan
    known = dict(zip(chart.names, weights[0][1].tolist(), strict=False))
    found = {}
    for name, kind, size, width in zip(names, kinds, rows[0][1].tolist(), widths, strict=False):
        gain = known.get(f"{name}.weight", 0.0) / math.sqrt(max(width, 1))
        if "Norm" in kind and 0 < gain < math.inf and size > 0:  # the first step has already changed the weights
            found[name] = size / gain
    return tuple(found), median(list(found.values())) if found else math.nan
