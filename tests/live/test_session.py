"""A run that is watched: the same findings as `diagnose`, made while it grows, and nothing kept for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.live.growing import HEADER, append, lines, seen, steps, vitals

from torchdoctor.live.sight import Sight
from torchdoctor.live.ward import Ward
from torchdoctor.offline import diagnose
from torchdoctor.reports.report import Report
from torchdoctor.settings import Settings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.jsonl"


def test_findings_are_those_of_diagnose_however_the_file_grew(path: Path) -> None:
    ward = Ward([path.parent], Settings())
    append(path, lines(HEADER))
    for start in range(0, 300, 7):
        append(path, steps(start, min(start + 7, 300), jump_at=200))
        seen(ward)
    (sight,) = seen(ward)
    expected = diagnose(path)
    assert sight.report.symptoms == expected.symptoms and sight.report.symptoms
    assert sight.report.diagnoses == expected.diagnoses
    assert sight.report.suggestions == expected.suggestions


def test_a_finding_is_there_with_the_look_after_it_was_written(path: Path) -> None:
    ward = Ward([path], Settings())
    append(path, lines(HEADER) + steps(0, 100))
    (before,) = seen(ward)
    assert before.report.health == "healthy" and before.state == "running"
    append(path, steps(100, 101, nan_at=100))
    (after,) = seen(ward)
    assert "nan-or-inf" in {item.name for item in after.report.symptoms}
    assert after.version > before.version and after.open


def test_the_states_of_a_run(path: Path) -> None:
    ward = Ward([path.parent], Settings())
    assert [sight.state for sight in seen(ward)] == ["waiting"]
    append(path, lines(HEADER))
    assert [sight.state for sight in seen(ward)] == ["waiting"]
    append(path, steps(0, 5))
    assert [sight.state for sight in seen(ward)] == ["running"]
    append(path, lines({"type": "end", "step": 4}))
    assert [sight.state for sight in seen(ward)] == ["ended"]
    append(path, lines(HEADER) + steps(5, 9))
    (again,) = seen(ward)
    assert (again.state, again.report.step) == ("running", 8)


def test_an_ended_run_keeps_no_chart(path: Path) -> None:
    append(path, lines(HEADER) + steps(0, 50) + lines({"type": "end", "step": 49}))
    ward = Ward([path], Settings())
    (sight,) = seen(ward)
    (watched,) = ward.places[0].sessions.values()
    assert watched._examination.chart.step == -1
    assert (sight.report.step, sight.state) == (49, "ended")
    assert seen(ward) == (sight,)


def test_a_record_that_no_examination_takes_does_not_end_the_watch(path: Path) -> None:
    hostile = [
        {"type": "facts", "step": 5, "facts": 7},
        {"type": "facts", "step": 5},
        {"type": "modules", "step": 5, "vitals": {"act_rms": "x"}},
    ]
    append(path, lines(HEADER) + steps(0, 5) + lines(*hostile) + steps(5, 20))
    (sight,) = seen(Ward([path], Settings()))
    assert sight.report.step == 19


def test_only_what_is_shown_is_kept(path: Path) -> None:
    crowd = {f"vital_{number}": 1.0 for number in range(50)}
    append(path, lines(HEADER, *({**vitals(step), "vitals": {**vitals(step)["vitals"], **crowd}} for step in range(9))))
    (sight,) = seen(Ward([path], Settings()))
    assert set(sight.report.curves) == {"loss", "grad_norm", "lr"}


def test_silence_is_told_and_time_left_is_reckoned() -> None:
    sight = Sight("a", "a", "running", Report(step=99), total=200, rate=2.0, heard=1000.0, patience=120.0)
    assert sight.progress(1001.0) == "step 99 of 200, 2 steps/s, 50 s left"
    assert sight.progress(1200.0) == "step 99 of 200, no new step for 3 min"


def test_a_file_that_was_written_long_ago_is_silent_at_once(path: Path) -> None:
    import os

    append(path, lines(HEADER) + steps(0, 5))
    hour_ago = time.time() - 3000
    os.utime(path, (hour_ago, hour_ago))
    (sight,) = seen(Ward([path], Settings()))
    assert "no new step for 50 min" in sight.progress(time.monotonic())


def test_the_total_comes_from_the_schedule(path: Path) -> None:
    append(path, lines(HEADER, {"type": "facts", "step": 0, "facts": {"schedule.total": 400}}) + steps(0, 5))
    (sight,) = seen(Ward([path], Settings()))
    assert sight.total == 400


def test_a_long_past_is_read_in_pieces_and_said_to_be(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdoctor.live.following.CHUNK", 2000)
    append(path, lines(HEADER) + steps(0, 100))
    ward = Ward([path], Settings())
    ward.poll()
    assert ward.more and ward.sights()[0].state == "reading"
    (sight,) = seen(ward)
    assert (sight.state, sight.report.step) == ("running", 99)
