"""update-ratio-abnormal."""

import math

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.update_ratio_abnormal import UpdateRatioAbnormal

NAN = math.nan
NAMES = ("a.weight", "a.bias", "b.weight", "norm.weight", "c.weight")
FALLING = [2.3 * math.exp(-step / 40) for step in range(200)]
FLAT = [2.3] * 200


def rows(*weights: float, count: int = 8) -> list[list[float]]:
    first, second, third = weights
    return [[first, 5.0, second, 5.0, third]] * count


SICK = {
    "too large, loss flat": (rows(0.3, 0.2, 0.15), FLAT, [0.1] * 200, "warning"),
    "too large, loss falls all the same": (rows(0.3, 0.2, 0.15), FALLING, [0.1] * 200, "info"),
    "torn down in the first steps": (rows(30.0, 90.0, 2.0, count=2), [2.3, *[3e4] * 20], [0.1] * 21, "warning"),
    "too small from the start": (rows(1e-8, 2e-8, 5e-9), FLAT, [1e-9] * 200, "warning"),
}
HEALTHY = {
    "usual": (rows(1e-3, 2e-3, 3e-3), FALLING, [0.1] * 200),
    "large first steps of tiny weights": (rows(30.0, 90.0, 2.0, count=2), [2.3, *[2.5] * 20], [0.1] * 21),
    "one layer large": (rows(1e-3, 2e-3, 0.9), FALLING, [0.1] * 200),
    "large for some samples only": (rows(0.3, 0.3, 0.3, count=5) + rows(1e-2, 1e-2, 1e-2), FLAT, [0.1] * 200),
    "sinks as the loss converges": (rows(1e-3, 1e-3, 1e-3) + rows(1e-9, 1e-9, 1e-9), FALLING, [0.1] * 200),
    "end of a cosine": (rows(1e-8, 1e-8, 1e-8), FLAT, [0.1] * 100 + [1e-6] * 100),
    "start of a warm-up": (rows(1e-8, 1e-8, 1e-8) + rows(1e-3, 1e-3, 1e-3, count=2), FALLING, [0.1] * 200),
    "weights of zero": (rows(NAN, NAN, NAN), FALLING, [0.1] * 200),
    "too few samples": (rows(0.3, 0.2, 0.15, count=4), FLAT, [0.1] * 200),
}


def chart(ratios, loss, rates):
    built = Chart.of(loss=loss, lr=rates)
    built.names = NAMES
    for number, row in enumerate(ratios):
        built.add({"type": "tensors", "step": 12 * number, "vitals": {"update_ratio": row}})
    return built


@pytest.mark.parametrize(("ratios", "loss", "rates", "severity"), SICK.values(), ids=SICK)
def test_fires(ratios, loss, rates, severity):
    assert UpdateRatioAbnormal().check(chart(ratios, loss, rates)).severity == severity


@pytest.mark.parametrize(("ratios", "loss", "rates"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(ratios, loss, rates):
    assert UpdateRatioAbnormal().check(chart(ratios, loss, rates)) is None
