"""batch-size-advice."""

import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.records import INFORMATIVE, Symptom
from torchdoctor.symptoms.batch_size_advice import BatchSizeAdvice, noise_scale

RNG = np.random.default_rng(0)
FALLING = 3.0 - 0.002 * np.arange(600) + 0.05 * RNG.standard_normal(600)
FLAT = 1.0 + 0.05 * RNG.standard_normal(600)


def chart(snr, batch, loss=FALLING, facts=None, context=None, checksums=None):
    """A sample every 25 steps, the first at step 0."""
    built = Chart.of(loss=loss, context=context)
    for number, value in enumerate(snr):
        built.put(25 * number, "gradient_snr", value)
        built.put(25 * number, "gradient_samples", float(batch))
        built.put(25 * number, "input_checksum", float(number) if checksums is None else checksums)
    built.add({"type": "facts", "step": 0, "facts": facts or {}})
    return built


def about(level, spread, count=20):
    return (level + spread * RNG.standard_normal(count)).tolist()


SICK = {
    "all signal": (chart(about(60.0, 10.0), 1024), "times the gradient noise scale"),
    "all noise": (chart(about(0.02, 0.05), 16), "more than"),
    "mostly noise": (chart(about(0.05, 0.01), 16), "about 3"),
}
HEALTHY = {
    "nothing measured": Chart.of(loss=FALLING),
    "balanced": chart(about(1.0, 0.3), 64),
    "some times too large": chart(about(5.0, 1.0), 512),
    "somewhat too small": chart(about(0.3, 0.05), 16),
    "too few samples": chart(about(0.01, 0.01, 8), 16),
    "cannot be told": chart(about(0.02, 1.0), 16),
    "finished, and all noise": chart(about(0.02, 0.05), 16, loss=FLAT),
    "small and all signal": chart(about(60.0, 10.0), 16),
    "signal at the start only": chart([5000.0] * 4 + about(2.0, 0.3, 14), 1024),
    "the whole data set": chart(about(60.0, 10.0), 1024, checksums=7.0),
    "the very same tensor": chart(about(60.0, 10.0), 1024, facts={"data.same_tensor": True}),
    "contrastive": chart(about(0.02, 0.05), 256, facts={"outputs.classes": 256}, context={"batch_size": 256}),
    "less than no signal: samples that are coupled": chart(about(-0.5, 0.1), 128),
}


@pytest.mark.parametrize(("sick", "said"), SICK.values(), ids=SICK)
def test_fires(sick, said):
    found = BatchSizeAdvice().check(sick)
    assert found.severity == "info"
    assert said in found.message


@pytest.mark.parametrize("healthy", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(healthy):
    assert BatchSizeAdvice().check(healthy) is None


@pytest.mark.parametrize(("severity", "advises"), [("info", True), ("warning", False), ("critical", False)])
def test_a_sick_run_gets_no_advice(severity, advises):
    sick = chart(about(0.05, 0.01), 16)
    sick.open_episodes["dead-units"] = Symptom("dead-units", "AC01", severity, 0.9, 2, 448)
    assert (BatchSizeAdvice().check(sick) is not None) is advises


def test_advice_leaves_the_health_of_a_run_alone():
    assert BatchSizeAdvice.name in INFORMATIVE


def test_the_interval_covers_the_scale():
    covered = 0
    for _ in range(200):
        found = noise_scale(chart(about(0.5, 0.4), 64))
        covered += found.low <= 128 <= found.high
        assert found.low <= found.scale <= found.high
    assert covered > 190


def test_no_signal_is_an_infinite_scale():
    found = noise_scale(chart(about(-0.01, 0.2), 64))
    assert found.high == math.inf
    assert noise_scale(chart(about(0.5, 0.1), 64), until=100) is None
