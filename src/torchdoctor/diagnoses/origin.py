"""Where a non-finite value was first seen in a forward pass."""

from __future__ import annotations

import re

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem

TOTAL = re.compile(
    "Linear|Conv.d|.*ReLU|.?ELU|SiLU|Tanh|Sigmoid|Flatten|Dropout.*|Identity|Embedding|.*Norm.*|.*Pool.d"
)
"""Modules that make finite values of finite values, short of overflow."""


def is_a_plain_stack(chart: Chart) -> bool:
    """Whether the model is a `Sequential` of ordinary layers: then there is no division or mask of its own in it.

    >>> chart = Chart.of(context={"model": {"class": "Sequential"}}, loss=[1.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": ["Linear", "ReLU", "Linear"]}})
    >>> is_a_plain_stack(chart)
    True
    """
    kinds = chart.fact("modules.kinds", ())
    whole = (chart.context.get("model") or {}).get("class") == "Sequential"
    return whole and bool(kinds) and all(TOTAL.fullmatch(kind) for kind in kinds)


def origin_kind(chart: Chart, problem: Problem) -> tuple[str, str]:
    """Kind ("input", "weights", "output", "between") and module of the first origin; empty where none was seen."""
    symptom = problem.get("nan-or-inf")
    for origin in chart.origins:
        if symptom is not None and symptom.first_step - 1 <= origin["step"] <= symptom.last_step + 1:
            return str(origin.get("kind", "")), str(origin.get("module") or "the model")
    return "", ""
