import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.early_gap import early_gap
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

RNG = np.random.default_rng(3)
N = 480
TRAIN = np.maximum(1.0 - 0.02 * np.arange(N), 0.4) + 0.05 * RNG.standard_normal(N)
EVALUATIONS = tuple(range(79, N, 80))


def chart_of(validation, losses=TRAIN, first_again=100, share=0.2, shift=0.0):
    """A run whose samples come again from some step on, as they were."""
    chart = Chart.of(loss=losses, lr=np.full(len(losses), 0.05))
    for step in range(0, N, 20):
        chart.put(step, "input_again", share if step >= first_again else 0.0)
        for kind, mean in (("input", 0.0), ("idle_input", shift)):
            chart.put(step, f"{kind}_mean", mean)
            chart.put(step, f"{kind}_std", 1.0)
    for step in EVALUATIONS:
        chart.put(step, "val_loss", float(validation(step)))
    return chart


SICK = {
    "a column that tells the answer in training": lambda step: 1.05 - 0.0005 * step,
    "falls a little": lambda step: 0.95 - 0.0003 * step,
    "stands": lambda step: 0.9,
}


@pytest.mark.parametrize("validation", SICK.values(), ids=SICK)
def test_a_gap_of_the_first_pass(validation):
    chart = chart_of(validation)
    assert early_gap(chart).step == 79
    assert ValidationAnomaly().check(chart).severity == "warning"


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e4])
def test_of_any_scale(factor):
    assert early_gap(chart_of(lambda step: 0.9 * factor, factor * TRAIN)) is not None


HEALTHY = {
    "follows": chart_of(lambda step: TRAIN[step] + 0.02),
    "a harder set": chart_of(lambda step: 0.62),
    "later than the first pass": chart_of(lambda step: 0.9, first_again=40),
    "augmented": chart_of(lambda step: 0.9, share=0.0),
    "another source": chart_of(lambda step: 0.9, shift=0.8),
    "only at first": chart_of(lambda step: 0.9 if step < 100 else 0.45),
    "only later": chart_of(lambda step: 0.45 if step < 100 else 0.9),
    "in other units": chart_of(lambda step: 3.0),
    "on a scale of its own": chart_of(
        lambda step: 0.9 * 0.995 ** (step - 79), np.where(np.arange(N) < 60, 1.0, 0.4 * 0.995 ** (np.arange(N) - 79))
    ),
    "of its root": chart_of(lambda step: 0.4**0.5),
    "training has not learnt": chart_of(lambda step: 1.3, TRAIN * 0 + 1.0),
    "two evaluations": Chart.of(loss=TRAIN),
}


@pytest.mark.parametrize("chart", HEALTHY.values(), ids=HEALTHY)
def test_silent(chart):
    assert early_gap(chart) is None
