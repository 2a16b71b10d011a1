import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.step_time_regression import StepTimeRegression

RNG = np.random.default_rng(0)
T = np.arange(600)
NOISE = np.exp(0.1 * RNG.standard_normal(600))


def check(seconds):
    return StepTimeRegression().check(Chart.of(seconds=seconds))


def test_time_that_grows_is_a_warning():
    symptom = check((0.05 + 0.0005 * T) * NOISE)
    assert symptom.severity == "warning"
    assert "grows" in symptom.message
    assert symptom.first_step == 20


def test_a_jump_is_a_note_until_it_has_cost_minutes():
    jump = np.where(T < 300, 1.0, 2.5) * NOISE
    symptom = check(0.05 * jump)
    assert symptom.severity == "info"
    assert 280 <= symptom.first_step <= 320
    assert check(2 * jump).severity == "warning"


HEALTHY = {
    "no readings": [],
    "short": 0.05 + 0.001 * T[:120],
    "even": 0.05 * NOISE,
    "a slow start": np.where(T < 15, 5.0, 0.05) * NOISE,
    "single slow steps": np.where(T % 50 == 0, 2.0, 0.05) * NOISE,
    "a slow stretch that is over": np.where((T > 200) & (T < 400), 0.2, 0.05) * NOISE,
    "a little slower": np.where(T < 300, 0.05, 0.07) * NOISE,
    "milliseconds": np.where(T < 300, 0.0005, 0.0015) * NOISE,
}


@pytest.mark.parametrize("seconds", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(seconds):
    assert check(seconds) is None


def test_a_ramp_is_a_warning_however_short_steps_are():
    ramp = 0.0007 * (1 + T / 60) * np.exp(np.abs(0.5 * RNG.standard_normal(600)))
    for growth, found in ((0, True), (1, False)):
        chart = Chart.of(seconds=ramp)
        for step in range(0, 600, 25):
            chart.put(step, "input_size", 32.0 + growth * step)
        symptom = StepTimeRegression().check(chart)
        assert (symptom is not None and symptom.severity == "warning") is found


STAIRS = {
    "others come one by one": np.where(T < 150, 1.0, np.where(T < 300, 1.5, np.where(T < 450, 2.1, 2.9))),
    "once": np.where(T < 200, 1.0, np.where(T < 260, 1 + (T - 200) / 30, 3.0)),
    "quick steps come back": (1 + T / 150) * np.where(T % 60 < 15, 1 / (1 + T / 150), 1.0),
}


@pytest.mark.parametrize("stairs", STAIRS.values(), ids=STAIRS)
@pytest.mark.parametrize("noise", [NOISE, 1 + 0.02 * RNG.random(600)], ids=["wide", "narrow"])
def test_other_work_on_the_device_is_no_growth(stairs, noise):
    chart = Chart.of(seconds=0.04 * stairs * noise, input_size=[32.0] * 600)
    symptom = StepTimeRegression().check(chart)
    assert symptom is None or (symptom.severity == "info" and "grows" not in symptom.message)


@pytest.mark.parametrize(
    ("worked", "size", "facts", "severity"),
    [
        (8.0, 64.0, {}, "warning"),
        (1.2, 64.0, {}, "info"),
        (8.0, math.nan, {}, "info"),
        (8.0, 64.0, {"data.differentiated": True}, "info"),
        (8.0, 64.0, {"zeroing.backwards": [2]}, "info"),
        (8.0, 64.0, {"loop.passes": 6}, "info"),
    ],
    ids=["the process itself", "the machine", "batches are not seen", "attacks", "a second backward", "more passes"],
)
def test_a_leap_is_grave_where_the_process_itself_works_more(worked, size, facts, severity):
    chart = Chart()
    chart.add({"type": "facts", "step": 0, "facts": {"zeroing.backwards": [1], "loop.passes": 1}})
    chart.add({"type": "facts", "step": 160, "facts": facts})
    used = 0.0
    for step in range(400):
        leapt = step >= 150
        chart.put(step, "seconds", 0.008 if leapt else 0.001)
        used += 0.001 * (worked if leapt else 1.0)
        if step % 25 == 0:
            chart.put(step, "processor_seconds", used)
            if size > 0:
                chart.put(step, "input_size", size)
    found = StepTimeRegression().check(chart)
    assert found.severity == severity
    assert found.message.endswith("; the process uses more CPU time per step") is (severity == "warning")


def test_threads_that_spin_on_a_crowded_machine_are_no_more_work():
    def judged(load):
        chart, used = Chart(), 0.0
        for step in range(400):
            leapt = step >= 150
            chart.put(step, "seconds", 0.008 if leapt else 0.001)
            used += 0.008 if leapt else 0.001
            if step % 25 == 0:
                for name, value in (("processor_seconds", used), ("input_size", 64.0), ("host_load", load)):
                    chart.put(step, name, value)
        return StepTimeRegression().check(chart).severity

    assert judged(0.5) == "warning"
    assert judged(2.0) == "info"
