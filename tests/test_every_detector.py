"""The contract that every detector keeps."""

import inspect
import math
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from torchdoctor import symptoms
from torchdoctor.chart import Chart
from torchdoctor.errors import SettingsError
from torchdoctor.examination import Examination
from torchdoctor.settings import Settings
from torchdoctor.symptoms import DETECTORS, PAPER_DETECTORS, build
from torchdoctor.treatments import ACTIONS

SECTIONS = (
    "## What it means",
    "## How it is told apart",
    "## What to do",
    "## How to see that it is cured",
    "## Example",
)
NOT_RULES = {"__init__", "detector", "first_pass", "leaps", "paper", "progress", "resuming", "tails", "tensor_leaps"}
NOT_RULES |= {"early_gap", "input_drift", "setbacks", "target_values", "targets_given", "validation_curve"}
NOT_RULES |= {"changes", "validation_inputs"}
VITALS = ("loss", "grad_norm", "lr", "val_loss", "clip", "skipped", "grad_nonfinite")
every_detector = pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
every_preset = pytest.mark.parametrize("preset", ["default", "paper"])


@every_detector
def test_metadata_is_complete(detector):
    assert re.fullmatch(r"[A-Z]{2}\d{2}", detector.code)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", detector.name)
    assert Path(inspect.getfile(detector)).stem == detector.name.replace("-", "_")
    assert detector.__name__ == detector.name.title().replace("-", "")
    assert detector.reads
    assert detector.suggests
    assert all(link.startswith("https://") for link in detector.references)
    assert detector.references
    assert set(detector.suggests) <= {action.slug for action in ACTIONS}


@every_detector
def test_the_docstring_is_the_documentation(detector):
    document = inspect.getdoc(detector)
    assert [document.index(section) for section in SECTIONS] == sorted(document.index(section) for section in SECTIONS)
    assert ">>>" in document
    source = inspect.getsource(detector)
    for field in fields(detector):
        assert re.search(rf'    {field.name}: \w+ = .*\n    """', source), f"{field.name} is not explained"


def test_codes_and_names_are_unique_and_every_file_is_listed():
    assert (
        len({detector.code for detector in DETECTORS})
        == len({detector.name for detector in DETECTORS})
        == len(DETECTORS)
    )
    files = {path.stem for path in Path(symptoms.__file__).parent.glob("*.py")} - NOT_RULES
    assert files == {detector.name.replace("-", "_") for detector in DETECTORS}
    names = {(rule.code, rule.name) for rule in DETECTORS}
    assert {(rule.code, rule.name) for rule in PAPER_DETECTORS} <= names


@every_preset
def test_silent_on_an_empty_chart(preset):
    assert {detector.check(Chart()) for detector in build(Settings(preset=preset))} == {None}


HOSTILE = [0.0, -1.0, 1e38, math.inf, math.nan, -math.inf, 1e-38, -1e38, 5e-324]


@every_preset
@pytest.mark.parametrize("seed", range(4))
def test_hostile_readings_raise_nothing(preset, seed):
    rng = np.random.default_rng(seed)
    chart = Chart()
    chart.add({"type": "header", "step": 0, "tensors": ["a.weight", "b.weight"] * 4})
    detectors = build(Settings(preset=preset))
    for step in range(200):
        if step % 10 == 0:
            rows = {name: rng.choice(HOSTILE, 8).tolist() for name in ("grad_norm", "weight_norm", "update_ratio")}
            chart.add({"type": "tensors", "step": step, "vitals": rows})
            for detector in detectors:
                detector.check(chart)
        for vital in VITALS:
            chart.put(step, vital, float(rng.choice(HOSTILE)))
        for detector in detectors:
            detector.check(chart)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_constant_of_any_size_is_no_alarm(value):
    if not math.isfinite(value):
        return
    examination = Examination(Settings())
    for step in range(400):
        examination.take({"type": "vitals", "step": step, "vitals": {"loss": value, "grad_norm": abs(value)}})
    assert examination.chart.episodes == []
    assert examination.chart.notes == []


def test_poison_neither_blinds_nor_wedges_any_of_them():
    rng = np.random.default_rng(0)
    examination = Examination(Settings())
    for step in range(1300):
        norm, loss = float(np.exp(0.2 * rng.standard_normal())), float(2 + 0.05 * rng.standard_normal())
        if step in (200, 205):
            norm = loss = math.nan if step == 200 else math.inf
        if step == 1280:
            norm *= 100
        examination.take({"type": "vitals", "step": step, "vitals": {"loss": loss, "grad_norm": norm}})
    found = [(symptom.name, symptom.first_step, symptom.count) for symptom in examination.chart.episodes]
    assert found == [("nan-or-inf", 200, 2), ("gradient-explosion", 1280, 1)]


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ({"select": ("loss-spike",)}, ["loss-spike"]),
        ({"select": ("LO01", "MU")}, ["loss-spike", "multiple-pathologies"]),
        ({"select": ("GR",), "ignore": ("GR02", "GR04")}, ["gradient-explosion", "gradient-instability"]),
    ],
)
def test_selection(selection, names):
    assert [detector.name for detector in build(Settings(**selection))] == names


def test_thresholds_reach_their_detector():
    built = build(Settings(thresholds={"gradient-explosion": {"ratio": 20}, "LO01": {"window": 64}}))
    by_name = {detector.name: detector for detector in built}
    assert by_name["gradient-explosion"].ratio == 20.0
    assert by_name["loss-spike"].window == 64


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"select": ("loss-spkie",)}, "select: there is no finding 'loss-spkie'. Did you mean 'loss-spike'?"),
        ({"ignore": ("XX",)}, "ignore: there is no finding 'XX'"),
        ({"thresholds": {"gradient-explosoin": {}}}, "Did you mean 'gradient-explosion'?"),
        ({"thresholds": {"gradient-explosion": {"raito": 2}}}, "has no threshold 'raito'. Did you mean 'ratio'?"),
        ({"thresholds": {"nan-or-inf": {"ratio": 2}}}, "nan-or-inf has no threshold 'ratio'. It has none."),
        (
            {"thresholds": {"gradient-explosion": {"ratio": "big"}}},
            "must be a number above zero (its default is 6.0), not 'big'",
        ),
        ({"thresholds": {"gradient-explosion": {"ratio": True}}}, "must be a number"),
        ({"thresholds": {"gradient-explosion": {"ratio": math.nan}}}, "must be a number"),
        ({"thresholds": {"gradient-explosion": {"ratio": -1}}}, "above zero"),
        ({"thresholds": {"gradient-explosion": {"window": 1.5}}}, "must be a whole number"),
    ],
)
def test_mistakes_in_settings_say_what_came_and_what_was_expected(settings, text):
    with pytest.raises(SettingsError, match=re.escape(text)):
        build(Settings(**settings))
