import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.data_starvation import DataStarvation

RNG = np.random.default_rng(0)
SAMPLES = (0, 1, 2, 4, 8, 16, 25, 50, 75, 100, 125)


def check(step_seconds, wait, steps=SAMPLES, untimed=(), slow_from=0, **vitals):
    chart = Chart()
    for step in range(130):
        if step not in untimed:
            chart.put(step, "seconds", (step_seconds if step >= slow_from else 0.02) * (1 + 0.1 * RNG.random()))
        if step in steps:
            chart.put(step, "data_seconds", wait(step))
    for name, value in vitals.items():
        chart.put(129, name, value)
    return DataStarvation().check(chart)


def test_fires():
    symptom = check(0.1, lambda step: 0.08, gpu_utilisation=12.0)
    assert symptom.severity == "warning"
    assert "the device is 12 % busy" in symptom.message
    assert check(0.02, lambda step: 0.015) is not None


def test_a_wait_that_begins_is_known_from_three_looks():
    assert check(0.1, lambda step: 0.08 if step >= 75 else 0.001, slow_from=70) is not None
    assert check(0.1, lambda step: 0.08 if step >= 75 else 0.001) is None  # steps take what they took before
    assert check(0.1, lambda step: 0.08 if step >= 100 else 0.001, slow_from=70) is None


HEALTHY = {
    "a busy machine": (0.1, lambda step: 0.08 if step % 2 else 0.01, {}),
    "fed well": (0.1, lambda step: 0.01, {}),
    "a third": (0.1, lambda step: 0.033, {}),
    "only workers that start": (0.1, lambda step: 0.09 if step < 10 else 0.001, {}),
    "single pauses": (0.1, lambda step: 5.0 if step == 50 else 0.001, {}),
    "a tiny model": (0.001, lambda step: 0.0008, {}),
    "too few looks": (0.1, lambda step: 0.08, {"steps": (0, 1, 2, 16, 25)}),
    "a validation before each look": (0.1, lambda step: 0.08, {"untimed": SAMPLES}),
    "something else at each look, longer than a step": (0.01, lambda step: 0.2, {}),
    "a device that works": (0.1, lambda step: 0.08, {"gpu_utilisation": 97.0}),
}


@pytest.mark.parametrize(("seconds", "wait", "more"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(seconds, wait, more):
    assert check(seconds, wait, **more) is None


def test_without_readings():
    assert DataStarvation().check(Chart.of(seconds=np.ones(50))) is None
