import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.double_descent import DoubleDescent

RNG = np.random.default_rng(0)
T = np.arange(30)
NOISE = RNG.standard_normal(30)


def check(values):
    chart = Chart()
    for number, value in enumerate(values):
        chart.put(50 * number, "val_loss", float(value))
    return DoubleDescent().check(chart)


HUMP = np.interp(T, [0, 5, 12, 29], [3.0, 1.2, 1.8, 0.8])


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_fires_once_the_old_best_is_passed(noise):
    symptom = check(HUMP + noise * NOISE)
    assert symptom.severity == "info"
    assert 200 <= symptom.first_step <= 400
    assert check(HUMP[:17] + noise * NOISE[:17]) is None


HEALTHY = {
    "no readings": [],
    "few": [2, 1, 2, 1],
    "falling": 2 * np.exp(-T / 8) + 1,
    "noise": 1 + 0.1 * NOISE,
    "falling with noise": 2 - 0.03 * T + 0.1 * NOISE,
    "one bad evaluation": np.where(T == 10, 3.0, 2 - 0.03 * T),
    "overfitting": 1 + 0.05 * np.abs(T - 8),
    "back to the old best, not past it": np.interp(T, [0, 5, 12, 29], [3.0, 1.0, 1.6, 1.0]),
    "constant": np.full(30, 1.0),
}


@pytest.mark.parametrize("values", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(values):
    assert check(values) is None


@pytest.mark.parametrize("noise", [0.03, 0.06])
def test_noise_that_is_larger_where_values_are_high_is_no_hump(noise):
    fall = 0.5 + 1.8 * np.exp(-np.arange(1000) / 170)
    for seed in range(5):
        assert check(fall * (1 + noise * np.random.default_rng(seed).standard_normal(1000))) is None
