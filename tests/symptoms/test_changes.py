"""A leap at a change that the loop makes on purpose is info while the run recovers."""

from __future__ import annotations

import numpy as np
import pytest

from torchdoctor.examination import Examination
from torchdoctor.settings import Settings
from torchdoctor.symptoms import build
from torchdoctor.symptoms.changes import change_before, recovers

EXPECTED = ("loss-spike", "gradient-explosion", "loss-divergence")
BEFORE = 120
"""Steps before the change."""
TOLD = [[BEFORE, "2 tensors joined in the optimizer"]]


def found(losses, norms, changes=TOLD, **facts):
    """The severities of what is found, by name, if the loop has changed something before a leap."""
    rng = np.random.default_rng(0)
    early = 2.3 * 0.97 ** np.arange(BEFORE) + 0.4
    examination = Examination(Settings())
    series = np.concatenate([early, losses]) * np.exp(0.03 * rng.standard_normal(BEFORE + len(losses)))
    sizes = np.concatenate([np.ones(BEFORE), norms]) * np.exp(0.1 * rng.standard_normal(BEFORE + len(losses)))
    for step, (loss, norm) in enumerate(zip(series, sizes, strict=True)):
        if step == BEFORE:
            told = {"loop.changes": changes, **facts}
            examination.take({"type": "facts", "step": step, "facts": told})
        examination.take({"type": "vitals", "step": step, "vitals": {"loss": loss, "grad_norm": norm, "lr": 1e-3}})
    report = examination.report()
    return {item.name: item.severity for item in report.symptoms if item.name in EXPECTED}, report


STEPS = np.arange(200)
RELEARNT = 5.0 * 0.95**STEPS + 0.5, 40 * 0.9**STEPS + 1.0
CHANCE = np.maximum(2.7, 5.0 * 0.9**STEPS), 40 * 0.9**STEPS + 1.0
HIGHER = 4.0 * 0.9**STEPS + 1.5, 40 * 0.9**STEPS + 1.0
GROWING = 3.0 * 1.05 ** np.minimum(STEPS, 80), 40.0 * 1.02 ** np.minimum(STEPS, 80)
ABSURD = 900.0 * 0.97**STEPS, 40.0 * 0.97**STEPS

STAYING = np.full(200, 2.0), 40 * 0.9**STEPS + 1.0
SLOWLY = 2.0 * 0.995**STEPS, 40 * 0.9**STEPS + 1.0

HEALTHY = {"learnt again": RELEARNT, "learnt up to a higher floor": HIGHER, "learnt slowly": SLOWLY}
SICK = {
    "never below a guess": CHANCE,
    "stays at its new level": STAYING,
    "grows": GROWING,
    "hundreds of times the untrained loss": ABSURD,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_leap_at_a_change_is_info_if_the_run_recovers(name):
    severities, report = found(*HEALTHY[name])
    assert severities and set(severities.values()) == {"info"}
    assert any("at step 120 2 tensors joined in the optimizer" in symptom.message for symptom in report.symptoms)
    severities, _ = found(*HEALTHY[name], changes=[])
    assert set(severities.values()) != {"info"}


@pytest.mark.parametrize("name", SICK)
def test_a_leap_at_a_change_is_a_warning_if_it_does_not(name):
    severities, _ = found(*SICK[name])
    assert set(severities.values()) - {"info"}


def test_a_leap_that_healed_is_not_blamed_for_a_later_one():
    losses, norms = np.concatenate([RELEARNT[0], np.full(100, 5.0)]), np.concatenate([RELEARNT[1], np.ones(100)])
    _, report = found(losses, norms)
    leaps = [item for item in report.symptoms if item.name in EXPECTED and item.first_step < BEFORE + 20]
    assert leaps and {item.severity for item in leaps} == {"info"}
    assert not any("has stayed near" in item.message for item in leaps)


def test_a_new_optimizer_after_a_load_is_no_plan():
    """The state of the old one was not loaded."""
    severities, _ = found(*RELEARNT, **{"state.loaded": [BEFORE]})
    assert set(severities.values()) - {"info"}


def test_a_change_long_ago_explains_nothing():
    severities, _ = found(*RELEARNT, changes=[[BEFORE - 60, "2 tensors joined in the optimizer"]])
    assert set(severities.values()) - {"info"}


def test_damaged_facts_are_no_changes():
    from torchdoctor.chart import Chart

    chart = Chart.of(loss=[1.0] * 20)
    chart.add({"type": "facts", "step": 3, "facts": {"loop.changes": None}})
    assert change_before(chart, 3) is None and recovers(chart, 10)


def test_the_preset_of_the_paper_judges_as_published():
    assert not any(detector.expects_changes for detector in build(Settings(preset="paper")))
