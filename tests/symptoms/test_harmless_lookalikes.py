"""What looks like a finding and costs nothing, each beside what it must not hide."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.data_starvation import DataStarvation
from torchdoctor.symptoms.dead_units import DeadUnits
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.no_gradient import NoGradient
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly


def cut(*names):
    chart = Chart()
    tensors = [f"blocks.{place}.{part}.weight" for place in range(3) for part in ("fit", "rest")]
    chart.add({"type": "header", "step": 0, "tensors": tensors})
    chart.add({"type": "facts", "step": 2, "facts": {"graph.cut": list(names)}})
    return NoGradient().check(chart).severity


def test_what_the_last_block_hands_on_is_for_nobody():
    assert cut("blocks.2.rest.weight") == "info"
    assert cut("blocks.1.rest.weight") == "warning"
    assert cut("blocks.2.rest.weight", "blocks.2.fit.weight") == "warning"
    assert cut("blocks.1.rest.weight", "blocks.2.rest.weight") == "warning"


@pytest.mark.parametrize(
    ("accuracy", "last", "severity"),
    [
        ([0.7, 0.8, 0.85, 0.86, 0.86, 0.85, 0.86, 0.86, 0.87, 0.86], 1.3, "info"),
        ([0.7, 0.8, 0.85, 0.86, 0.86, 0.858, 0.855, 0.857, 0.856, 0.855], 1.3, "info"),
        ([0.7, 0.8, 0.85, 0.86, 0.86, 0.85, 0.84, 0.83, 0.82, 0.82], 1.3, "warning"),
        ([0.7, 0.8, 0.85, 0.86, 0.86, 0.85, 0.86, 0.86, 0.87, 0.86], 1.5, "warning"),
    ],
    ids=["as many are right", "nearly as many are right", "fewer are right", "far surer of errors"],
)
def test_a_small_rise_of_validation_with_as_many_right(accuracy, last, severity):
    chart = Chart.of(loss=3 * np.exp(-np.arange(1000) / 250))
    losses = [2.5, 1.8, 1.4, 1.2, 1.1, *np.linspace(1.15, last, 5)]
    for number, (loss, right) in enumerate(zip(losses, accuracy, strict=True)):
        chart.put(100 * number + 99, "val_loss", loss)
        chart.put(100 * number + 99, "val_accuracy", right)
    assert Overfitting().check(chart).severity == severity


LATER = {
    "follows": ((1.2, 0.3, 0.06), "info"),
    "does not": ((1.2, 1.0, 0.9), "warning"),
    "both are near the floor": ((0.4, 0.12, 0.1), "info"),
    "falls no further": ((0.4, 0.3, 0.3), "warning"),
}


@pytest.mark.parametrize(("validation", "severity"), LATER.values(), ids=LATER)
def test_validation_of_a_later_time_keeps_up(validation, severity):
    chart = Chart.of(loss=[2.0 * 0.98**step + 0.04 for step in range(300)], lr=[0.1] * 300)
    for step, value in zip((99, 199, 299), validation, strict=True):
        for vital, number in (("idle_input_mean", 1.5), ("idle_input_std", 0.8), ("val_loss", value)):
            chart.put(step, vital, number)
        chart.put(step, "input_mean", 0.0)
        chart.put(step, "input_std", 1.0)
    assert ValidationAnomaly().check(chart).severity == severity


@pytest.mark.parametrize(("batch", "fires"), [(1, False), (32, True)])
def test_a_batch_of_one_has_no_spread(batch, fires):
    chart = Chart.of(target_mean=[0.0, 1.0] * 10, target_std=[0.0] * 20, target_min=[0.0] * 20, target_max=[1.0] * 20)
    chart.context["batch_size"] = batch
    assert (BatchAnomaly().check(chart) is not None) is fires


def test_milliseconds_are_not_worth_a_word():
    assert DataStarvation().check(Chart.of(seconds=[0.011] * 40, data_seconds=[0.008] * 40)) is None
    assert DataStarvation().check(Chart.of(seconds=[0.022] * 40, data_seconds=[0.016] * 40)) is not None


def layers(vital, rows, facts, loss, gradients=()):
    chart = Chart()
    chart.add({"type": "header", "step": 0, "tensors": ["inner.weight", "last.weight"]})
    chart.add({"type": "facts", "step": 0, "facts": facts})
    for step, value in enumerate(loss):
        chart.put(step, "loss", value)
    for number, row in enumerate(rows):
        chart.add({"type": "modules", "step": 25 * number, "vitals": {vital: row}})
        if gradients:
            chart.add({"type": "tensors", "step": 25 * number, "vitals": {"grad_norm": list(gradients)}})
    return chart


def test_a_weight_with_a_gradient_is_not_fed_with_zeros_alone():
    facts = {"modules.names": ["inner", "last"], "modules.kinds": ["Linear"] * 2, "modules.outputs": ["last"]}
    rows, loss = [[1.0, None]] * 3, [2.0] * 75
    assert DeadUnits().check(layers("act_dead", rows, facts, loss, gradients=(0.4, 0.2))) is None
    assert DeadUnits().check(layers("act_dead", rows, facts, loss, gradients=(0.0, 0.2))).severity == "warning"


def test_units_that_die_in_the_first_steps_are_judged_later():
    facts = {"modules.names": ["act", "last"], "modules.kinds": ["ReLU", "Linear"], "modules.outputs": ["last"]}
    rows = [[0.1, None], [0.75, None]]
    assert DeadUnits().check(layers("act_dead", rows, facts, [2.0, 2.6] * 12)).severity == "info"
    assert DeadUnits().check(layers("act_dead", rows, facts, [2.0, 2.6] * 30)).severity == "warning"


@pytest.mark.parametrize(
    ("names", "fires"),
    [
        (["encoder", "mean", "log_variance", "decoder"], True),
        (["body", "critic.2", "twin.2", "actor"], False),
    ],
)
def test_two_critics_near_zero_are_no_code(names, fires):
    facts = {"modules.names": names, "modules.kinds": ["Linear"] * 4, "modules.outputs": names[1:]}
    facts |= {"modules.widths": [32, 1, 1, 20], "modules.entering": [6, 32, 32, 32]}
    rows = [[0.6, 0.25 * 0.6**sample, 0.3 * 0.6**sample, 0.3] for sample in range(14)]
    chart = layers("act_rms", rows, facts, [1.0] * 300)
    for sample in range(14):
        chart.put(25 * sample, "output_spread", 0.4)
    assert (CollapsedOutput().check(chart) is not None) is fires


@pytest.mark.parametrize(
    ("losses", "spread", "severity"),
    [
        (np.linspace(2.0, 0.4, 100), 0.5, "info"),
        (np.linspace(2.0, 0.4, 100), 0.0, "warning"),
        (np.linspace(2.0, 1.6, 100), 0.5, "warning"),
    ],
    ids=["learns from how they are connected", "one answer for all", "learns nothing"],
)
def test_equal_inputs_of_a_graph(losses, spread, severity):
    chart = Chart.of(loss=losses, input_constant=[1.0] * 4, output_spread=[spread] * 4)
    assert InputAnomaly().check(chart).severity == severity
