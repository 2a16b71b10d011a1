import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.memory_growth import MemoryGrowth

RNG = np.random.default_rng(0)
T = np.arange(0, 1000, 25)
GB, MB = 2.0**30, 2.0**20
SCATTERED = np.array([0.4, 2.6, 4.4, 0, 0.9, 1.4, 0.2, 1.1, 2.4, 4.4, 0.4, 2.6, 4.4, 0, 0.9, 1.4, 0.2, 1.1, 2.4, 4.4])
"""Megabytes from look to look in a healthy process that is watched."""


def check(values, vital="memory", every=25, **vitals):
    chart = Chart()
    for number, value in enumerate(values):
        chart.put(every * number, vital, float(value))
    for name, value in vitals.items():
        chart.put(chart.step, name, value)
    return MemoryGrowth().check(chart)


SICK = {
    "a graph kept at every step": GB * (4 + 0.001 * T),
    "with steps of an allocator": GB * (4 + 0.2 * np.floor(0.01 * T)),
    "with noise": GB * (4 + 0.002 * T + 0.005 * RNG.standard_normal(T.size)),
    "little by little": GB * 0.35 + 1.2e5 * T,
    "from the middle of the run on": GB * (0.28 + 5e-4 * np.maximum(T[:30] - 510, 0) + 1e-5 * RNG.random(30)),
}


@pytest.mark.parametrize("values", SICK.values(), ids=SICK)
@pytest.mark.parametrize("vital", ["memory", "host_memory"])
def test_fires(values, vital):
    symptom = check(values, vital)
    assert symptom.severity == "warning"
    assert "MB per step" in symptom.message


def test_a_device_that_is_nearly_full_is_critical():
    assert check(GB * (4 + 0.01 * T), gpu_memory_free=0.1 * GB).severity == "critical"
    assert check(GB * (4 + 0.01 * T), gpu_memory_free=50 * GB).severity == "warning"


HEALTHY = {
    "no readings": [],
    "constant": np.full(T.size, 4 * GB),
    "few samples": GB * (4 + 0.001 * T[:12]),
    "levels off": GB * (4 + 2 * (1 - np.exp(-T / 150))),
    "one step up": GB * np.where(T < 400, 4.0, 6.0),
    "batches of any length": GB * (4 + RNG.random(T.size)),
    "a few megabytes": GB * 4 + 1e4 * T,
    "three lumps of an allocator": GB * (0.66 + 0.016 * np.floor((T + 100) / 250)),
    "five lumps, a validation each, and crumbs": GB * 0.35
    + 8e6 * np.digitize(T, [300, 420, 550, 700, 850])
    + 1e4 * np.arange(T.size),
    "swings, high at last": GB * (0.43 + 0.012 * RNG.random(T.size) + 0.05 * (np.arange(T.size) > T.size - 4)),
    "stands still, and takes three lumps": GB * (0.28 + 0.02 * np.digitize(T, [900, 925, 950])),
    "stands still, and rises by less each time": GB * (0.28 + 0.1 * (1 - np.exp(-np.maximum(T - 850, 0) / 40))),
    "swings, and rises by as much as it swung": GB
    * (0.28 + 0.01 * (np.arange(T.size) % 3 == 0) + 0.012 * np.maximum(np.arange(T.size) - 35, 0)),
    "rises and falls": GB * (4 + 0.5 * np.sin(T / 100)),
}


@pytest.mark.parametrize("values", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(values):
    assert check(values) is None


@pytest.mark.parametrize(("grown", "fires"), [(SCATTERED, False), (np.full(SCATTERED.size, 1.8), True)])
def test_an_allocator_loses_a_few_pieces_by_and_by_and_a_leak_as_much_each_time(grown, fires):
    values = MB * (250 + np.cumsum(grown))
    assert (check(values, "host_memory") is not None) == fires


def test_batches_that_grow_take_more():
    chart = Chart()
    for number, value in enumerate(GB * (4 + 0.001 * T)):
        chart.put(25 * number, "memory", float(value))
        chart.put(25 * number, "input_size", 64.0 + 4 * number)
    assert MemoryGrowth().check(chart) is None


@pytest.mark.parametrize(("vital", "severity"), [("host_memory", "info"), ("memory", "warning")])
def test_a_buffer_of_experience_fills(vital, severity):
    chart = Chart()
    for number, value in enumerate(GB * (0.25 + 1e-4 * T)):
        chart.put(25 * number, vital, float(value))
    chart.add({"type": "facts", "step": 0, "facts": {"loop.acts": True}})
    assert MemoryGrowth().check(chart).severity == severity
    chart.add({"type": "facts", "step": chart.step, "facts": {"graph.kept": 25}})
    assert MemoryGrowth().check(chart).severity == "warning"


def test_graphs_that_are_held_are_a_leak_however_small():
    chart = Chart()
    chart.add({"type": "facts", "step": 73, "facts": {"graph.kept": 2}})
    symptom = MemoryGrowth().check(chart)
    assert (symptom.severity, symptom.first_step) == ("warning", 2)
    chart.add({"type": "facts", "step": 100, "facts": {"graph.kept": None}})
    assert MemoryGrowth().check(chart) is None
