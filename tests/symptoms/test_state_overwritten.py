"""state-overwritten."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.state_overwritten import StateOverwritten

FALLING = [4.0 - 0.01 * step for step in range(200)]
"""From 4 to 2."""


def noisy(values, size=0.1):
    return [float(value) for value in np.array(values) + size * np.random.default_rng(0).standard_normal(len(values))]


SICK = {
    "weights of the start are back": (FALLING + [3.9] * 40, {"state.written": [[190, 215]]}, 200),
    "again and again": ((FALLING + [3.9] * 40), {"state.written": [[50, 75], [190, 215]]}, 200),
    "noise does not hide it": (noisy(FALLING + [3.5] * 40), {"state.written": [[190, 215]]}, 200),
    "Adam starts anew and loses a quarter": (noisy(FALLING + [2.5] * 40), {"state.restarted": 200}, 200),
    "a loss in thousands": ([1000 * value for value in FALLING + [3.9] * 40], {"state.written": [[190, 215]]}, 200),
}
HEALTHY = {
    "no readings": ([], {}),
    "nothing was written": (FALLING + [3.9] * 40, {}),
    "averaged weights, put back": (noisy(FALLING + [2.0] * 40), {"state.written": [[190, 215]]}),
    "Adam starts anew, and nothing happens": (noisy(FALLING + [2.0] * 40), {"state.restarted": 200}),
    "better weights were loaded": (noisy(FALLING + [1.0] * 40), {"state.written": [[190, 215]]}),
    "a small loss that pruning brings": (noisy(FALLING + [2.3] * 40), {"state.written": [[190, 215]]}),
    "the outer loop of meta-learning": (
        FALLING + [3.9] * 40,
        {"state.written": [[50, 75], [100, 125], [150, 175], [190, 215]]},
    ),
    "the rise is elsewhere": (FALLING[:100] + [3.9] * 140, {"state.written": [[190, 215]]}),
    "long ago": (FALLING + [3.9] * 400, {"state.written": [[190, 215]]}),
    "noise alone": (noisy([4.0] * 240, 0.5), {"state.written": [[190, 215]]}),
    "too early to say": (FALLING + [3.9] * 3, {"state.restarted": 200}),
    "at the first step": ([4.0] * 20, {"state.restarted": 0}),
}


def chart(losses, facts):
    built = Chart.of(loss=losses)
    built.add({"type": "facts", "step": 215, "facts": facts})
    return built


@pytest.mark.parametrize(("losses", "facts", "step"), SICK.values(), ids=SICK)
def test_fires(losses, facts, step):
    found = StateOverwritten().check(chart(losses, facts))
    assert found.severity == "warning"
    assert abs(found.first_step - step) <= 2


@pytest.mark.parametrize(("losses", "facts"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses, facts):
    assert StateOverwritten().check(chart(losses, facts)) is None
