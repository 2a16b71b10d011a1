"""How layers change the size of activations in the forward pass, and of gradients in the backward pass."""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.symptoms.activation_explosion import WEIGHTED
from torchdoctor.symptoms.gradient_vanishing import decay_through_depth

LINEAR = 0.05
"""Share of a gradient that a tanh may remove and still count as linear."""


def decay_by_layer(chart: Chart, problem: Problem) -> float:
    """The factor by which each layer divides the gradient; 0 if it does not decay through depth."""
    symptom = problem.get("gradient-vanishing")
    if symptom is None or not symptom.where:  # if the gradient vanishes everywhere, no layers are named
        return 0.0
    decades, layers = decay_through_depth(chart)
    lost = max([*decades, symptom.value or 0.0])  # the early weights may have shrunk since then
    return float(10 ** (lost / max(1, layers - 1)))


def weight_layers(chart: Chart) -> int:
    """How many linear and convolutional layers ran."""
    return sum(kind in WEIGHTED for kind in chart.fact("modules.kinds", ()))


def gain_by_layer(chart: Chart, *, latest: bool = False) -> tuple[float, float, float]:
    """The median factor by which a layer multiplies activations, and their size after the first and the last layer.

    Taken at the first sample kept (the start of the run, if it is short) or at the latest one. NaN if fewer than three
    layers were seen.
    """
    kinds, rows = chart.fact("modules.kinds", ()), chart.modules("act_rms").matrix()
    columns = [index for index, kind in enumerate(kinds) if kind in WEIGHTED]
    if not len(rows) or rows.shape[1] != len(kinds):
        return math.nan, math.nan, math.nan
    levels = rows[-1 if latest else 0, columns]
    levels = levels[np.isfinite(levels) & (levels > 0)]
    if levels.size < 3:
        return math.nan, math.nan, math.nan
    return float(np.exp(np.median(np.diff(np.log(levels))))), float(levels[0]), float(levels[-1])


def saturating_layers(chart: Chart) -> int:
    """How many sigmoids and tanhs ran, as modules or functions; -1 if the modules are not known."""
    kinds, functions = chart.fact("modules.kinds"), chart.fact("modules.squashed") or {}
    if kinds is None:
        return -1
    return len(functions) + sum(kind in ("Sigmoid", "Tanh", "Hardtanh", "Hardsigmoid") for kind in kinds)


def is_far_from_extremes(chart: Chart) -> bool:
    """Whether the outputs of a typical tanh at the first sample were so small that it was almost linear.

    On average, tanh multiplies a gradient by one minus its mean square. If that is almost one, a gradient that shrinks
    is shrunk by the weights.
    """
    kinds, rows = chart.fact("modules.kinds", ()), chart.modules("act_rms").matrix()
    columns = [index for index, kind in enumerate(kinds) if kind in ("Tanh", "Hardtanh")]
    functions = chart.fact("modules.squashed") or {}
    entering = [index for index, name in enumerate(chart.module_names) if functions.get(name) == "Tanh"]
    found = len(columns) + len(entering)
    if 2 * found <= saturating_layers(chart) or not len(rows) or rows.shape[1] != len(kinds):
        return False  # most of them are sigmoids, which divide a gradient by at least four
    sizes = np.concatenate([rows[0, columns], np.tanh(rows[0, entering])])
    return float(np.median(np.square(sizes))) < LINEAR


def zeros_at_first(chart: Chart, module: str) -> float:
    """The share of a module's outputs that were zero before the first step; NaN if that was not measured."""
    rows = chart.modules("act_zero").rows
    if not rows or rows[0][0] > 0 or module not in chart.module_names:
        return math.nan
    row, index = rows[0][1], chart.module_names.index(module)
    return float(row[index]) if row.size == len(chart.module_names) else math.nan


def silent_at_first(chart: Chart) -> str:
    """The first inner module that output only zeros before the first step, if all outputs were then equal; or "".

    A residual branch that starts at zero is healthy: it does not matter as long as outputs differ.
    """
    rows, names = chart.modules("act_rms").rows, chart.module_names
    if not rows or rows[0][0] > 0 or rows[0][1].size != len(names) or not chart["output_spread"].first < 1e-6:
        return ""
    zero = np.flatnonzero(rows[0][1] == 0)
    return names[int(zero[0])] if zero.size and 0 < zero[0] < len(names) - 1 else ""


def signal_lost_by_layer(chart: Chart) -> float:
    """The median factor by which a layer reduces the share that depends on the input, at the first sample; or NaN."""
    kinds, rows = chart.fact("modules.kinds", ()), chart.modules("act_spread").matrix()
    columns = [index for index, kind in enumerate(kinds) if kind in WEIGHTED]
    if not len(rows) or rows.shape[1] != len(kinds) or len(columns) < 3:
        return math.nan
    shares = rows[0, columns]
    shares = shares[np.isfinite(shares) & (shares > 0)]
    return float(np.exp(-np.median(np.diff(np.log(shares))))) if shares.size > 2 else math.nan
