"""What looks like an illness and is a design: each beside the case that it is told apart from."""

import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.loss_oscillation import LossOscillation
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.schedule_anomaly import ScheduleAnomaly
from torchdoctor.symptoms.unexpected_initial_loss import UnexpectedInitialLoss

NAN = math.nan


def entering(size, made, spread):
    """Inputs of a size, and what the first layer makes of them."""
    chart = Chart.of(entry_rms=[size] * 3, entry_absmax=[3 * size] * 3)
    chart.add({"type": "facts", "step": 0, "facts": {"modules.names": ["0"], "modules.kinds": ["Linear"]}})
    chart.add({"type": "modules", "step": 0, "vitals": {"act_rms": [made], "act_spread": [spread]}})
    return chart


@pytest.mark.parametrize(
    ("size", "made", "spread", "sick"),
    [
        (1000.0, 580.0, 0.9, True),
        (1000.0, 0.6, 0.9, False),  # the first weights are a thousandth
        (1e-5, 0.3, 1e-4, True),  # what is left is the bias
        (1e-5, 0.9, 0.9, False),
    ],
)
def test_a_first_layer_may_be_made_for_the_size_of_its_inputs(size, made, spread, sick):
    found = InputAnomaly().check(entering(size, made, spread))
    assert (found is not None and found.severity == "warning") == sick


@pytest.mark.parametrize(("zeros", "severity"), [(0.92, "info"), (0.3, "warning")])
def test_rows_without_an_entry_are_part_of_a_sparse_table(zeros, severity):
    chart = Chart.of(input_blank=[0.15] * 3, input_zero=[zeros] * 3, context={"input_shape": [64, 60]})
    assert InputAnomaly().check(chart).severity == severity


@pytest.mark.parametrize(("criterion", "sick"), [(3.2, True), (0.4, False)])
def test_outputs_of_a_batch_of_equal_samples_are_equal(criterion, sick):
    chart = Chart()
    for step in (0, 25, 50, 75, 100):
        for name, value in (("output_spread", 0.0), ("guess_loss", 3.2), ("criterion", criterion)):
            chart.put(step, name, value)
    assert (CollapsedOutput().check(chart) is not None) == sick


def evaluated(values, every, **metrics):
    steps = every * len(values)
    chart = Chart.of(loss=[3.0 * 0.99 ** (200 * step / steps) for step in range(steps)])
    for number, value in enumerate(values):
        chart.put(every * number + every - 1, "val_loss", value)
        for name, row in metrics.items():
            chart.put(every * number + every - 1, name, row[number])
    return chart


DOWN = [1 + 1.5 * math.exp(-number / 3) for number in range(14)]
CLIMB = [*DOWN, *(DOWN[-1] + 0.02 * number for number in range(1, 9))]
WAVE = [*DOWN[:8], *(DOWN[7] + 0.3 * math.sin(number / 2) for number in range(1, 7)), *CLIMB[8:]]


@pytest.mark.parametrize(
    ("values", "every", "metrics", "severity"),
    [
        (CLIMB, 20, {}, "warning"),
        (CLIMB, 1, {}, None),  # an evaluation a step: eight steps are no time
        (CLIMB, 20, {"val_acc": [0.04 * number for number in range(22)]}, "info"),
        (WAVE, 20, {}, "info"),  # it rose as far before, and came back
    ],
)
def test_validation_that_rises_a_little(values, every, metrics, severity):
    found = Overfitting().check(evaluated(values, every, **metrics))
    assert (found and found.severity) == severity


@pytest.mark.parametrize(("turns", "severity"), [(False, "warning"), (True, "info")])
def test_tasks_in_turn_have_levels_of_their_own(turns, severity):
    chart = Chart.of(loss=[3.0, 1.0, 2.9, 1.1] * 50, lr=[0.5] * 200)
    chart.names = ("a.weight", "b.weight")
    for number, step in enumerate(range(0, 200, 10)):
        here = [1.0, NAN] if number else [NAN, 1.0]  # looks fall on one task nearly always
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": here if turns else [1.0, 1.0]}})
    assert LossOscillation().check(chart).severity == severity


@pytest.mark.parametrize(("kind", "sick"), [("StepLR", True), ("SWALR", False)])
def test_a_schedule_of_averaged_weights_begins_late(kind, sick):
    chart = Chart.of(lr=[0.1] * 100, loss=list(np.linspace(2, 1, 100)))
    chart.add({"type": "facts", "step": 0, "facts": {"schedule.class": kind, "schedule.stepped": False}})
    for step in range(9, 100, 10):
        chart.put(step, "val_loss", 2.0 - 0.01 * step)
    assert (ScheduleAnomaly().check(chart) is not None) == sick


@pytest.mark.parametrize(("fresh", "severity"), [(1.0, "warning"), (0.0, "info")])
def test_a_trained_model_is_sure_of_other_labels(fresh, severity):
    chart = Chart.of(criterion=[46.0], output_rms=[48.0], weights_fresh=[fresh])
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 1.609}})
    assert UnexpectedInitialLoss().check(chart).severity == severity
