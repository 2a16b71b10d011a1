"""A log that is renamed or emptied while it is watched keeps what it was found to hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.live.growing import append, seen

from torchdoctor.live.sight import Sight
from torchdoctor.live.ward import Ward
from torchdoctor.settings import Settings


def rows(first: int, last: int, sick: int = -1) -> str:
    values = [(step, math.nan if step == sick else 2 - step / 1000) for step in range(first, last)]
    return "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in values)


def look(ward: Ward) -> Sight:
    for log in ward.places[0]._logs.values():
        log._due = float("-inf")  # it rests otherwise
    (sight,) = seen(ward)
    return sight


@pytest.mark.parametrize("kept", [True, False])
def test_a_log_that_is_rotated_keeps_its_finding(tmp_path: Path, kept: bool) -> None:
    path = tmp_path / "train.jsonl"
    append(path, rows(0, 410, sick=400))
    ward = Ward([path], Settings())
    assert look(ward).report.health == "critical"
    path.rename(tmp_path / "train.jsonl.1")
    assert look(ward).report.health == "critical"
    if not kept:
        (tmp_path / "train.jsonl.1").unlink()
    for first in (410, 440, 700):
        append(path, rows(first, first + 30 if first < 700 else 800))
        sight = look(ward)
        assert (sight.report.health, sight.state) == ("critical", "running")
        assert [item.first_step for item in sight.report.symptoms if item.name == "nan-or-inf"] == [400]
    assert sight.report.step == 799


def test_twice(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append(path, rows(0, 410, sick=400))
    ward = Ward([path], Settings())
    look(ward)
    for first in (410, 500):
        path.write_text(rows(first, first + 20))
        look(ward)
        append(path, rows(first + 20, first + 90))
        sight = look(ward)
    assert (sight.report.health, sight.report.step) == ("critical", 589)
    assert any("no longer in train.jsonl" in note for note in sight.report.notes)


def test_a_run_that_begins_anew_is_another(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append(path, rows(0, 410, sick=400))
    ward = Ward([path], Settings())
    assert look(ward).report.health == "critical"
    path.write_text(rows(0, 300))
    sight = look(ward)
    assert sight.report.step == 299
    assert not any(item.name == "nan-or-inf" for item in sight.report.symptoms)
