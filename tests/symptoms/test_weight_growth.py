"""weight-growth."""

import math

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.weight_growth import WeightGrowth, lone_leap

SICK = {
    "doubles again and again": ([2 ** (k / 2) for k in range(16)], "warning"),
    "grows in a line, far": ([1 + 4.0 * k for k in range(16)], "warning"),
    "ten times and still growing": ([2 ** (k / 4.5) for k in range(16)], "info"),
}
HEALTHY = {
    "nothing known": [],
    "constant": [3.0] * 16,
    "shrinks": [3.0 - 0.1 * k for k in range(16)],
    "grows and flattens": [1 + 9 * (1 - math.exp(-k / 2)) for k in range(16)],
    "grows like a square root": [math.sqrt(1 + k) for k in range(64)],
    "too few samples": [2.0**k for k in range(7)],
    "from zero": [0.0] + [2.0**k for k in range(12)],
    "not finite": [2.0**k for k in range(12)] + [math.inf],
}


def chart(norms):
    built = Chart()
    built.names = ("a.weight", "norm.weight")
    for number, norm in enumerate(norms):
        built.add({"type": "tensors", "step": 25 * number, "vitals": {"weight_norm": [norm, 1.0]}})
    return built


@pytest.mark.parametrize(("norms", "severity"), SICK.values(), ids=SICK)
def test_fires(norms, severity):
    found = WeightGrowth().check(chart(norms))
    assert (found.severity, found.where) == (severity, ("a.weight",))
    assert "times from step 0 to step 375, and " in found.message and found.message.endswith(" to step 375")


@pytest.mark.parametrize("norms", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(norms):
    assert WeightGrowth().check(chart(norms)) is None


LEAPS = {
    "one of three": ([3.0, 2.0, 1.0], [3.0, 9e4, 1.0], True),
    "all of them, by a step too large": ([3.0, 2.0, 1.0], [3e4, 9e4, 1e4], False),
    "a bias that begins at next to nothing": ([3.0, 2.0, 1e-4], [3.0, 2.0, 0.1], False),
    "a layer that is reset": ([3.0, 2.0, 0.5], [3.0, 2.0, 12.0], False),
}


@pytest.mark.parametrize(("before", "after", "fires"), LEAPS.values(), ids=LEAPS)
def test_a_weight_that_something_else_wrote_to(before, after, fires):
    built = Chart()
    built.names = ("a.weight", "b.weight", "b.bias")
    for step, norms in enumerate([before, before, before, after]):
        built.add({"type": "tensors", "step": 25 * step, "vitals": {"weight_norm": norms}})
    found = WeightGrowth().check(built)
    assert (found is not None) == fires
    assert not fires or (found.severity, found.where) == ("warning", ("b.weight",))


@pytest.mark.parametrize(("loss", "severity"), [(lambda step: 100 * 0.99**step, "info"), (lambda step: 2.0, "warning")])
def test_growth_that_pays_is_a_note(loss, severity):
    """A regression in hundreds has to grow its weights thirtyfold; a run that learns nothing has not."""
    chart = Chart.of(loss=[loss(step) for step in range(600)])
    chart.names = ("a.weight", "b.weight")
    for step in range(0, 600, 25):
        chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": [2 ** (step / 90), 1.0]}})
    assert WeightGrowth().check(chart).severity == severity


@pytest.mark.parametrize(("loss", "severity"), [(lambda step: 1e6 - 1e4 * step, "info"), (lambda step: 2.0, "warning")])
def test_growth_that_pays_from_the_start_is_a_note(loss, severity):
    chart = Chart.of(loss=[loss(step) for step in range(60)])
    chart.names = ("a.weight", "b.weight")
    for step in (0, 1, 2, 4, 8, 16, 25, 50):
        chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": [0.1 + 2 * step, 0.1]}})
    assert WeightGrowth().check(chart).severity == severity


def test_a_norm_that_overflows_alone_is_a_leap_while_losses_and_gradients_are_numbers():
    rows = [[3.0, 2.0, 4.0]] * 3 + [[3.1, math.inf, 4.0]]
    for broken in (False, True):
        built = Chart.of(loss=[1.0, math.nan] if broken else [1.0, 1.0])
        built.names = ("a.weight", "b.weight", "c.weight")
        for number, row in enumerate(rows):
            built.add({"type": "tensors", "step": 25 * number, "vitals": {"weight_norm": row}})
        found = WeightGrowth().check(built)
        assert (found is None) is broken
        assert broken or found.where == ("b.weight",)


@pytest.mark.parametrize(("others", "alone"), [(1.0, True), (math.inf, False)])
def test_what_is_left_of_a_run_that_broke_did_not_leap_alone(others, alone):
    built = Chart.of(loss=[1.0, 1.0, math.nan])
    built.names = ("a.weight", "b.weight", "b.bias")
    for number, row in enumerate([[3.0, 2.0, 4.0], [3.0 * others, 2.0 * others, 4e9]]):
        built.add({"type": "tensors", "step": number, "vitals": {"weight_norm": row}})
    assert (lone_leap(built) is not None) is alone
