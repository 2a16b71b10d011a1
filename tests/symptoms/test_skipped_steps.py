import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.skipped_steps import SkippedSteps

T = np.arange(400)
RNG = np.random.default_rng(0)


def check(skipped, **vitals):
    return SkippedSteps().check(
        Chart.of(skipped=np.asarray(skipped, dtype=float), loss=np.ones(len(skipped)), **vitals)
    )


SICK = {
    "each of the last": (T >= 380, "critical"),
    "one in five": (T % 5 == 0, "warning"),
    "from the beginning on": (T[:60] >= 0, "critical"),
}


@pytest.mark.parametrize(("skipped", "severity"), SICK.values(), ids=SICK)
def test_fires(skipped, severity):
    symptom = check(skipped)
    assert symptom.severity == severity
    assert symptom.value > 4


def test_a_scale_that_collapsed():
    scale = np.maximum(65536.0 * 0.5 ** (T // 20), 1e-3)
    symptom = check(T % 20 == 0, loss_scale=scale)
    assert symptom.severity == "warning"
    assert "loss scale has fallen" in symptom.message


def test_a_log_that_holds_only_the_skipped_steps():
    chart = Chart.of(loss=np.ones(400))
    for step in (100, 250, 390):
        chart.put(step, "skipped", 1.0)
    assert SkippedSteps().check(chart) is None


HEALTHY = {
    "no scaler": [],
    "none": T < 0,
    "the search for a scale": T < 18,
    "now and then": T % 200 == 199,
    "a few at random": RNG.random(400) < 0.01,
}


@pytest.mark.parametrize("skipped", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(skipped):
    assert check(skipped) is None


def test_a_small_scale_from_the_start_is_a_choice():
    assert check(T < 0, loss_scale=np.full(400, 0.5)) is None
