"""Where a non-finite value was first seen in a forward pass."""

from __future__ import annotations

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem


def origin_kind(chart: Chart, problem: Problem) -> tuple[str, str]:
    """Kind ("input", "weights", "output") and module of the first origin of the problem; empty where none was seen."""
    symptom = problem.get("nan-or-inf")
    for origin in chart.origins:
        if symptom is not None and symptom.first_step - 1 <= origin["step"] <= symptom.last_step + 1:
            return str(origin.get("kind", "")), str(origin.get("module") or "the model")
    return "", ""
