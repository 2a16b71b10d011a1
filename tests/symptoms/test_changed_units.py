"""Inputs and targets that change their unit or their order in mid-run: what is said, and since when."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import rank
from torchdoctor.records import Symptom
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.target_anomaly import TargetAnomaly
from torchdoctor.symptoms.target_values import leap_of_size
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

RNG = np.random.default_rng(0)
LOOKS = range(24, 500, 25)


def _targets(sizes):
    """Targets of these sizes at the close looks, and outputs that stay near 1."""
    chart = Chart()
    chart.add({"type": "facts", "step": 0, "facts": {"loss.kind": "mse", "loss.reduction": "mean"}})
    sizes = dict(zip(LOOKS, sizes, strict=False))
    for step in range(500):
        chart.put(step, "loss", 0.1 * (1 + 0.1 * RNG.standard_normal()))
        if step in sizes:
            chart.put(step, "target_mean", 0.0)
            chart.put(step, "target_std", sizes[step])
            chart.put(step, "output_rms", 1.0)
    return chart


def test_targets_in_another_unit_from_mid_run_on_are_dated():
    found = TargetAnomaly().check(_targets([1.0] * 10 + [1000.0] * 9))
    assert found.first_step == 274
    assert found.message.endswith("targets were of size 1 up to step 249")


ORDINARY = {
    "steady": [1.0] * 19,
    "heavy-tailed": [1.0] * 7 + [40.0] + [1.0] * 11,
    "grown by the model": [1.5**look for look in range(19)],
    "twice as large": [1.0] * 10 + [2.5] * 9,
    "large from the start": [1000.0] * 19,
    "now large, now small": [1.0, 1000.0] * 9,
}


@pytest.mark.parametrize("sizes", ORDINARY.values(), ids=ORDINARY)
def test_other_targets_have_not_leapt(sizes):
    assert leap_of_size(_targets(sizes)).since < 0


def test_targets_in_another_unit_are_not_wrong_labels():
    chart = _targets([1.0] * 10 + [1000.0] * 9)
    for step in range(255, 500):
        chart["loss"].values[step] = 1e6
    chart.episodes.append(Symptom("loss-divergence", "LO02", "critical", 0.9, 260, 499))
    assert rank(chart)[0].cause == "unnormalized-targets"
    assert "1000 from step 274 on" in " ".join(rank(chart)[0].evidence)


def _collisions(values):
    chart = Chart.of(target_collision=values, pooled_collision=[0.1] * len(values))
    chart.context["batch_size"] = 32
    return BatchAnomaly().check(chart)


def test_data_that_is_sorted_from_mid_run_on_is_dated():
    assert _collisions([0.1] * 20 + [1.0, 1.0, 0.4, *[1.0] * 9]).first_step == 20
    assert _collisions([1.0, 1.0, 1.0, 0.4, *[1.0] * 9]).first_step == 0


def _inputs(sizes, idle=1.0, rise=1.5):
    chart = Chart()
    for step in range(500):
        late = step >= 255
        chart.put(step, "loss", 0.5 + 2 * 0.9**step + rise * late + 0.02 * RNG.standard_normal())
        if step % 25 == 24:
            size = sizes[step // 25]
            chart.put(step, "entry_rms", size)
            for kind, value in (("input", size), ("idle_input", idle)):
                chart.put(step, f"{kind}_mean", 0.0)
                chart.put(step, f"{kind}_std", value)
            chart.put(step, "val_loss", 0.6 + 3.0 * late)
    return chart


@pytest.mark.parametrize("late", [2, 3, 9])
def test_inputs_that_have_changed_for_good_do_not_swing(late):
    chart = Chart.of(entry_rms=[1.0] * 10 + [117.0] * late)
    found = InputAnomaly().check(chart)
    assert found is None or "not all scaled alike" not in found.message


def test_validation_is_not_to_blame_if_only_training_inputs_changed():
    chart = _inputs([1.0] * 10 + [117.0] * 10)
    assert "went from a size of 1 to 117" in InputAnomaly().check(chart).message
    assert ValidationAnomaly().check(chart) is None
    assert "in validation" in ValidationAnomaly().check(_inputs([117.0] * 20)).message
