"""What a finding of decay through depth says about one layer."""

from __future__ import annotations

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.symptoms.gradient_vanishing import decay_through_depth


def decay_by_layer(chart: Chart, problem: Problem) -> float:
    """The factor by which each layer divides the gradient; 0 where it did not decay through depth."""
    symptom = problem.get("gradient-vanishing")
    if symptom is None or not symptom.where:  # a collapse of the whole model names no layers
        return 0.0
    decades, layers = decay_through_depth(chart)
    return float(10 ** (max(decades, default=0.0) / max(1, layers - 1)))
