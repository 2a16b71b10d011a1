"""The contract that every cause keeps."""

import inspect
import re
from pathlib import Path

import pytest

from torchdoctor import diagnoses
from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Evidence, Problem, rank
from torchdoctor.diagnoses.cause import CERTAIN
from torchdoctor.records import INFORMATIVE, Symptom
from torchdoctor.symptoms import DETECTORS
from torchdoctor.treatments import ACTIONS

SECTIONS = ("## What it is", "## How to confirm it", "## What to change", "## How to see it cured")
NOT_CAUSES = {
    *(
        "__init__",
        "calibration",
        "cause",
        "configuration",
        "depth",
        "at_the_break",
        "findings",
        "lasting_leaps",
        "mechanisms",
        "origin",
        "precursors",
    ),
    "ranking",
}
NAMES = [detector.name for detector in DETECTORS if detector.name not in INFORMATIVE]
every_cause = pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)


@every_cause
def test_metadata_is_complete(cause):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cause.name)
    assert Path(inspect.getfile(cause)).stem == cause.name.replace("-", "_")
    assert cause.explains
    assert set(cause.explains) <= set(NAMES)
    assert set(cause.suggests) <= {action.slug for action in ACTIONS}
    assert cause.suggests or cause.name == "converged"
    assert cause.references
    assert all(link.startswith("https://") for link in cause.references)
    document = inspect.getdoc(cause)
    assert [document.index(section) for section in SECTIONS] == sorted(document.index(section) for section in SECTIONS)


def test_every_file_is_listed():
    files = {path.stem for path in Path(diagnoses.__file__).parent.glob("*.py")} - NOT_CAUSES
    assert files == {cause.name.replace("-", "_") for cause in CAUSES}
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)


@every_cause
def test_evidence_can_be_weighed_where_nothing_is_known(cause):
    for name in cause.explains:
        problem = Problem((Symptom(name, "", "warning", 0.9, 5, 5),))
        for item in cause().weigh(Chart(), problem):
            assert isinstance(item, Evidence)
            assert abs(item.weight) <= CERTAIN
            assert item.text


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_has_causes_whose_probabilities_sum_to_one(name):
    chart = Chart.of(loss=[2.0] * 100, grad_norm=[1.0] * 100, lr=[1e-3] * 100)
    chart.episodes.append(Symptom(name, "", "warning", 0.9, 60, 60))
    found = rank(chart)
    assert len(found) > 1
    assert {item.cause for item in found} >= {"unknown"}
    assert sum(item.probability for item in found) == pytest.approx(1)
    assert [item.probability for item in found] == sorted((item.probability for item in found), reverse=True)
    assert all(item.problem == 1 and item.symptoms == (name,) for item in found)


def test_unknown_says_what_to_measure_next_for_every_finding():
    for name in NAMES:
        chart = Chart()
        chart.episodes.append(Symptom(name, "", "warning", 0.9, 60, 60))
        (unknown,) = [item for item in rank(chart) if item.cause == "unknown"]
        assert unknown.evidence
