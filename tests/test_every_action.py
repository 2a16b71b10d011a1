"""The contract that every action keeps."""

import ast
import re
import subprocess
import sys

import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, rank
from torchdoctor.records import Symptom
from torchdoctor.symptoms import DETECTORS
from torchdoctor.treatments import ACTIONS, prescribe
from torchdoctor.treatments.parameters import RULES
from torchdoctor.treatments.prescription import SUGGESTED
from torchdoctor.treatments.priors import PRIORS

BY_SLUG = {action.slug: action for action in ACTIONS}
every_action = pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.slug)


@every_action
def test_metadata_is_complete(action):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", action.slug)
    assert action.safety in ("show", "ask", "apply")
    assert 0.5 <= action.prior <= 0.99
    assert action.summary.endswith(".")
    assert action.when.endswith(".")
    assert action.check.endswith(".")
    assert all(link.startswith("https://") for link in action.references)
    assert set(re.findall(r"\{(\w+)\}", action.code)) == set(action.parameters)
    assert all(low < high for low, high in action.parameters.values())


@every_action
def test_some_cause_or_finding_leads_to_it(action):
    assert action.slug in {slug for rule in (*CAUSES, *DETECTORS) for slug in rule.suggests}


@every_action
def test_its_code_is_python_that_could_be_pasted(action):
    if not action.code.startswith(("torchdoctor ", "nvidia-smi ")):
        ast.parse(action.code.format(**dict.fromkeys(action.parameters, "0.5")))
    ast.parse(action.blind)


def test_a_rule_for_parameters_is_for_an_action_that_has_it():
    assert set(RULES) <= set(BY_SLUG)
    assert {action.slug for action in ACTIONS if action.parameters} <= set(RULES)


def test_priors_speak_of_things_that_exist():
    triggers = {rule.name for rule in (*DETECTORS, *CAUSES)}
    for (trigger, slug), prior in PRIORS.items():
        assert trigger in triggers
        assert slug in SUGGESTED[trigger]  # numbers only: what is suggested, the finding or the cause says
        assert slug in BY_SLUG
        assert 0.5 <= prior <= 0.99


@pytest.mark.parametrize("severity", ["info", "warning", "critical"])
@pytest.mark.parametrize("repeats", [1, 2, 3, 5])
@pytest.mark.parametrize("name", [detector.name for detector in DETECTORS if detector.name != "multiple-pathologies"])
def test_parameters_and_confidence_stay_in_range(name, repeats, severity):
    for scale in (1e-9, 1.0, 1e9):
        chart = Chart.of(loss=[2.0] * 400, grad_norm=[scale] * 400, context={"dropout": [0.45]})
        chart.episodes += [Symptom(name, "", severity, 0.9, 60 * number, 60 * number) for number in range(repeats)]
        treated, merged = prescribe(chart, rank(chart))
        for suggestion in [*merged, *(item for diagnosis in treated for item in diagnosis.suggestions)]:
            action = BY_SLUG[suggestion.action]
            assert 0.5 <= suggestion.confidence <= 0.99
            assert suggestion.reason
            assert "{" not in suggestion.code
            known = bool(suggestion.parameters) or not action.blind  # else the present value is not known
            assert set(suggestion.parameters) == (set(action.parameters) if known else set())
            for key, value in suggestion.parameters.items():
                low, high = action.parameters[key]
                assert low <= value <= high, (key, value)


def test_suggesting_needs_no_torch():
    code = "import sys, torchdoctor.treatments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
