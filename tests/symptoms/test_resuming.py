"""A run that was started again: what came back with it, and what did not."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.state_overwritten import StateOverwritten

ADAM = {"optimizer": "Adam", "betas": [0.9, 0.999]}
COSINE = [1e-3 * 0.97**step for step in range(100)]
FLAT = [1e-3] * 100
FALLS = [3.0 * 0.99**step + 0.02 * (-1) ** step for step in range(140)]


def resumed(rates, later, *, memory=0, group=ADAM, losses=None, at=99):
    """A chart of a run that was started again after a step."""
    losses = losses or FALLS
    chart = Chart.of(loss=losses[:100], lr=rates)
    chart.groups = [group]
    chart.resumed.append(at)
    chart.add({"type": "facts", "step": 100, "facts": {"state.at_start": memory}})
    for step, loss in enumerate(losses[100:], 100):
        chart.put(step, "lr", later)
        chart.put(step, "loss", loss)
    return chart


RISEN = [*FALLS[:100], *[2.0] * 40]
SICK = {
    "memory lost, the same recipe from its start": resumed(FLAT, 1e-3),
    "memory lost, and the schedule began anew": resumed(COSINE, 1e-3),
    "momentum lost": resumed(FLAT, 1e-3, group={"optimizer": "SGD", "momentum": 0.9}),
    "the schedule began anew, and the loss rose": resumed(COSINE, 1e-3, memory=100, losses=RISEN),
}
NOTED = {
    "a second phase at another rate": resumed(FLAT, 2e-4),
    "a schedule that begins anew and harms nothing": resumed(COSINE, 1e-3, memory=100),
}
HEALTHY = {
    "all of it came back": resumed(FLAT, 1e-3, memory=100),
    "all of it came back, the schedule too": resumed(COSINE, COSINE[-1], memory=100),
    "plain SGD remembers nothing": resumed(FLAT, 1e-3, group={"optimizer": "SGD", "momentum": 0}),
    "a second run in the same journal": resumed(FLAT, 1e-3, at=500),
}


@pytest.mark.parametrize("chart", SICK.values(), ids=SICK)
def test_fires(chart):
    assert StateOverwritten().check(chart).severity == "warning"


@pytest.mark.parametrize("chart", NOTED.values(), ids=NOTED)
def test_is_a_note(chart):
    assert StateOverwritten().check(chart).severity == "info"


@pytest.mark.parametrize("chart", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(chart):
    assert StateOverwritten().check(chart) is None


@pytest.mark.parametrize(
    ("first", "memory", "losses", "severity"),
    [
        (5000, 0, [1.0, 1.0] + [1.8, 1.9] * 15, "warning"),
        (5000, 0, [1.0, 1.01] * 16, "info"),
        (5000, 300, [1.0, 1.0] + [1.8, 1.9] * 15, None),
        (0, 0, [1.0, 1.0] + [1.8, 1.9] * 15, None),
    ],
)
def test_steps_that_are_counted_from_later_on(first, memory, losses, severity):
    chart = Chart.of(step=first, loss=losses, lr=[1e-3] * len(losses))
    chart.groups = [ADAM]
    chart.add({"type": "facts", "step": first, "facts": {"state.at_start": memory}})
    found = StateOverwritten().check(chart)
    assert (found and found.severity) == severity
