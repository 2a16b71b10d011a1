"""What begins again and again, and what begins alike for all: warm-ups that are cut off, and paths from one start."""

import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.schedule_anomaly import ScheduleAnomaly
from torchdoctor.symptoms.target_anomaly import TargetAnomaly

RISE = [1e-6 + 1e-5 * step for step in range(25)]
SICK_RATES = {
    "a warm-up of each epoch": RISE * 8,
    "one in the midst of an epoch": RISE * 6 + RISE[:11],
    "epochs that differ by a batch": (RISE + RISE[:24]) * 4,
    "a rate of SGD, from a tenth": [0.01 + 0.005 * step for step in range(30)] * 5,
}
HEALTHY_RATES = {
    "one warm-up": [1e-5 * step for step in range(1, 200)],
    "a warm-up, then the same rate": RISE + [RISE[-1]] * 175,
    "warm restarts": [1e-3 * (1 + math.cos(math.pi * (step % 25) / 25)) / 2 for step in range(200)],
    "warm restarts that warm up": (RISE[::5] + [2e-4 * (1 - 0.04 * step) for step in range(20)]) * 8,
    "a triangle that comes down as it rose": (RISE + RISE[::-1]) * 4,
    "a warm-up, a stay, and again": (RISE + [RISE[-1]] * 25) * 4,
    "begun anew once": RISE * 2 + [1e-6 + 1e-5 * step for step in range(150)],
    "later warm-ups that go higher": [0.1**stage * 1e-5 * step for stage in (3, 2, 1, 0) for step in range(1, 40)],
}


@pytest.mark.parametrize("rates", SICK_RATES.values(), ids=SICK_RATES)
def test_a_warm_up_that_is_cut_off_again_and_again_is_found(rates):
    found = ScheduleAnomaly().check(Chart.of(lr=rates, loss=[2.0] * len(rates)))
    assert found is not None
    assert found.severity == "warning"
    assert "begins anew" in found.message


@pytest.mark.parametrize("rates", HEALTHY_RATES.values(), ids=HEALTHY_RATES)
def test_restarts_and_whole_warm_ups_are_meant(rates):
    assert ScheduleAnomaly().check(Chart.of(lr=rates, loss=[2.0] * len(rates))) is None


def labelled(losses, looks, size=8):
    """A run of four classes in which all labels looked at were of one."""
    chart = Chart.of(loss=losses, pooled_classes=[])
    chart.context["batch_size"] = size
    chart.add({"type": "facts", "step": 0, "facts": {"loss.classes": 4, "loss.chance": 1.386}})
    for look in range(looks):
        chart.put(len(losses) - looks + look, "pooled_classes", 1.0)
    return chart


def test_losses_of_nothing_say_that_all_labels_are_one():
    found = TargetAnomaly().check(labelled([1.4, 0.7, 0.2, *[1e-4] * 97], looks=9))
    assert found is not None
    assert "of one class" in found.message


@pytest.mark.parametrize(
    ("losses", "looks"),
    [
        ([1.4, 0.7, 0.2, *([1e-4] * 19 + [0.3]) * 5], 9),  # something else comes now and then
        ([1.4, 0.7, 0.2, *[0.05] * 97], 9),  # what is there costs something
        ([1.4, 0.7, 0.2, *[1e-4] * 97], 5),  # few were looked at
    ],
    ids=["rare objects", "not solved", "few samples"],
)
def test_pictures_without_an_object_are_no_proof(losses, looks):
    assert TargetAnomaly().check(labelled(losses, looks)) is None


def path(runs, backwards=1):
    """A model whose first pass is given the same for all samples, and so answers the same."""
    zeros = [0.0] * 8
    chart = Chart.of(loss=[1.0] * 8, input_blank=[1.0] * 8, input_constant=[1.0] * 8, output_spread=zeros)
    facts = {"modules.names": ["f"], "modules.repeated": {"f": runs} if runs > 1 else {}}
    chart.add({"type": "facts", "step": 7, "facts": facts | {"zeroing.backwards": [backwards]}})
    return chart


def test_a_path_may_begin_alike_for_all():
    assert InputAnomaly().check(path(5)) is None
    assert CollapsedOutput().check(path(5)) is None


@pytest.mark.parametrize(("runs", "backwards"), [(1, 1), (2, 1), (8, 8)], ids=["once", "a pair", "accumulated"])
def test_batches_of_nothing_are_found_where_each_is_all_there_is(runs, backwards):
    assert InputAnomaly().check(path(runs, backwards)) is not None


CREEP = [1e-3] * 250 + [1e-3 * 1.02**step for step in range(100)]
NOISE = np.random.default_rng(1).standard_normal(350)
FLAT_LOSS = 0.02 + 0.2 * np.exp(-np.arange(350) / 40) + 0.001 * NOISE


@pytest.mark.parametrize(
    ("rates", "losses", "found"),
    [
        (CREEP, FLAT_LOSS, True),
        (CREEP, FLAT_LOSS - 1e-4 * np.maximum(np.arange(350) - 250, 0), False),  # it is for the better
        (CREEP[:300], FLAT_LOSS[:300], False),  # 2.6 times as high
        ([1e-4 * 1.02**step for step in range(350)], FLAT_LOSS, False),  # a test of rates, from the first step on
        ([1e-3] * 50 + CREEP[250:] + [7e-3] * 200, FLAT_LOSS, False),  # a late warm-up, and its level since
        ([1e-2] * 100 + [1e-3] * 150 + CREEP[250:], FLAT_LOSS, False),  # the run has known higher ones
    ],
)
def test_a_rate_that_creeps_up_from_its_level_is_found(rates, losses, found):
    symptom = ScheduleAnomaly().check(Chart.of(lr=rates, loss=losses))
    assert (symptom is not None) == found
    assert not found or (symptom.severity == "warning" and 248 <= symptom.first_step <= 252)
