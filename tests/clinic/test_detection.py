"""The small version of benchmarks/detection.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from torchdoctor.clinic.data import Corpus, load_text
from torchdoctor.clinic.detection import Alarm, acute_faults, chronic_faults, match, watched_run
from torchdoctor.clinic.faults import Fault, JumpLearningRate, ScaleGradients
from torchdoctor.clinic.injection import Injection
from torchdoctor.clinic.patient import RECIPES

SEEDS = (0, 1)
AT = 130


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(load_text())


def _names(faults: Sequence[Fault]) -> str:
    return " and ".join(map(str, faults))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("faults", acute_faults(AT), ids=_names)
def test_an_acute_fault_is_found_within_three_steps(faults: Sequence[Fault], seed: int, corpus: Corpus) -> None:
    detections, alarms = watched_run(replace(RECIPES["tiny"], seed=seed), faults, until=AT + 8, corpus=corpus)
    assert [detection.injection.step for detection in detections] == [AT] * len(faults)
    assert all(detection.in_time for detection in detections), detections
    assert min(alarm.step for alarm in alarms) >= AT


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_without_faults_is_left_in_peace(seed: int, corpus: Corpus) -> None:
    detections, alarms = watched_run(replace(RECIPES["tiny"], seed=seed), corpus=corpus)
    assert (detections, alarms) == ([], [])


def test_every_kind_of_fault_is_tried() -> None:
    tried = {type(fault) for faults in (*acute_faults(0), *chronic_faults(0)) for fault in faults}
    assert tried == set(Fault.__subclasses__())
    assert all(fault.acute for faults in acute_faults(0) for fault in faults)
    assert not any(fault.acute for faults in chronic_faults(0) for fault in faults)


def test_only_the_right_alarm_counts() -> None:
    explosion = Injection(100, ScaleGradients(20, at=100))
    early, wrong, late = (
        Alarm(99, "gradient-explosion", "warning"),
        Alarm(100, "overfitting", "critical"),
        Alarm(104, "gradient-explosion", "warning"),
    )
    assert match(explosion, [early, wrong]).alarm is None
    assert not match(explosion, [early, wrong]).in_time
    assert match(explosion, [early, wrong, late]) == (explosion, late)
    assert not match(explosion, [late]).in_time
    assert match(Injection(100, JumpLearningRate(9, at=100)), [late._replace(step=103)]).in_time
