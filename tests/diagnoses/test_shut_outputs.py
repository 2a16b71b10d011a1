"""Outputs that are exactly zero with gradients that are too: something that ends the model is shut."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.diagnoses.saturating_nonlinearity import SaturatingNonlinearity
from torchdoctor.records import Symptom

SILENT = Problem((Symptom("no-gradient", "GR05", "critical", 0.9, 0, 20),))


def strength(**vitals):
    chart = Chart.of(**{"loss": [0.6] * 8, "output_rms": [0.0] * 8, "grad_norm": [0.0] * 8} | vitals)
    return sum(item.weight for item in SaturatingNonlinearity().weigh(chart, SILENT))


def test_outputs_and_gradients_of_zero_are_a_relu_that_is_shut():
    assert strength() > 5


@pytest.mark.parametrize(
    "vitals",
    [
        {"grad_norm": [0.0, 0.1] * 4},  # a last layer that begins with zeros
        {"output_rms": [0.5] * 8},  # a graph that is cut elsewhere
        {"loss": [0.0] * 8},  # nothing is asked for
        {"output_rms": []},
    ],
    ids=["zero last layer", "answers something", "no loss", "outputs unknown"],
)
def test_one_of_them_alone_is_not(vitals):
    assert strength(**vitals) < 0
