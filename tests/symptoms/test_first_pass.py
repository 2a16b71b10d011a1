"""Signals that fade, or are not normalized, before the first step."""

import math
import warnings

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.gradient_vanishing import GradientVanishing

PLAIN = ("Linear", "ReLU", "Linear", "ReLU", "Linear")
NORMED = ("Linear", "LayerNorm", "Linear", "LayerNorm", "Linear")


def first(sizes, kinds=PLAIN, entry=1.0, step=0, normalized=0, gains=8.0):
    names = [f"m{index}" for index in range(len(kinds))]
    tensors = [f"{name}.weight" for name, kind in zip(names, kinds, strict=True) if kind != "ReLU"]
    chart = Chart()
    facts = {"modules.names": names, "modules.kinds": list(kinds), "modules.normalized": normalized}
    chart.add({"type": "header", "step": -1, "tensors": tensors, "context": {}})
    chart.add({"type": "facts", "step": 0, "facts": facts | {"modules.widths": [64] * len(names)}})
    chart.add({"type": "modules", "step": step, "vitals": {"act_rms": list(sizes)}})
    chart.put(step, "entry_rms", entry)
    rows = {"grad_norm": [1.0] * len(tensors), "weight_norm": [gains] * len(tensors)}
    chart.add({"type": "tensors", "step": step, "vitals": rows})
    return chart


SICK = {
    "weights too small": first([0.02, 0.014, 2e-4, 1.4e-4, 2e-6]),
    "of small inputs": first([0.004, 0.003, 4e-5, 3e-5, 4e-7], entry=0.2),
    "eps too large": first([0.6, 0.1, 0.1, 0.11, 0.2], NORMED, normalized=2),
}
HEALTHY = {
    "torch's own": first([0.6, 0.43, 0.28, 0.19, 0.1]),
    "a last layer near zero": first([0.6, 0.43, 0.28, 0.19, 1e-6]),
    "a first layer that is small": first([0.001, 0.0007, 5e-4, 4e-4, 3e-4]),
    "a branch that begins at zero": first([0.6, 0.43, 0.0, 0.0, 0.1]),
    "values that overflow": first([math.inf, math.inf, math.inf, math.inf, math.inf], entry=3e4),
    "seen later": first([0.02, 0.014, 2e-4, 1.4e-4, 2e-6], step=40),
    "normalized": first([0.6, 1.0, 0.5, 0.9, 0.2], NORMED, normalized=2),
    "weights that the first step ruined": first([0.6, 1.0, 0.5, 0.9, 0.2], NORMED, normalized=2, gains=float("inf")),
    "gains that begin small": first([0.6, 0.1, 0.1, 0.1, 0.2], NORMED, normalized=2, gains=0.8),
}


@pytest.mark.parametrize("chart", SICK.values(), ids=SICK)
def test_fires(chart):
    assert GradientVanishing().check(chart).severity == "warning"


@pytest.mark.parametrize("chart", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(chart):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert GradientVanishing().check(chart) is None
