"""Which runs are watched: what is there, what appears, and logs of other kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.growing import HEADER, append, lines, seen, steps

from torchdoctor.live import ward as ward_module
from torchdoctor.live.sight import Sight
from torchdoctor.live.ward import Ward
from torchdoctor.settings import Settings
from torchdoctor.sources import Run, read_all


def named(ward: Ward) -> dict[str, int]:
    return {sight.name: sight.report.step for sight in seen(ward)}


def test_new_runs_in_a_folder_are_taken_in(tmp_path: Path) -> None:
    ward = Ward([tmp_path], Settings())
    assert named(ward) == {str(tmp_path): -1}
    append(tmp_path / "a" / "journal.jsonl", lines(HEADER) + steps(0, 3))
    assert named(ward) == {"a": 2}
    append(tmp_path / "deep" / "b" / "journal.jsonl", lines(HEADER) + steps(0, 5))
    assert named(ward) == {"a": 2, str(Path("deep/b")): 4}


def test_a_run_of_several_ranks_is_one(tmp_path: Path) -> None:
    for name in ("journal.rank10.jsonl", "journal.rank2.jsonl"):
        append(tmp_path / name, lines(HEADER) + steps(0, 2 if "10" in name else 5))
    assert named(Ward([tmp_path], Settings())) == {str(tmp_path): 4}


def test_an_empty_journal_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.touch()
    ward = Ward([tmp_path], Settings())
    assert [sight.state for sight in seen(ward)] == ["waiting"]
    append(path, lines(HEADER)[:9])
    assert [sight.state for sight in seen(ward)] == ["waiting"]
    append(path, lines(HEADER)[9:] + steps(0, 2))
    assert named(ward) == {str(tmp_path): 1}


def test_another_kind_of_log_is_read_again_when_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    append(path, "step,loss\n" + "".join(f"{step},{2 - step / 100}\n" for step in range(20)))
    ward = Ward([path], Settings())
    assert named(ward) == {str(path): 19}
    append(path, "".join(f"{step},{2 - step / 100}\n" for step in range(20, 30)))
    for log in ward.places[0]._logs.values():
        log._due = float("-inf")  # it rests otherwise
    (sight,) = seen(ward)
    assert (sight.report.step, sight.latest["loss"]) == (29, pytest.approx(1.71))
    assert ward.poll() is False


def test_what_is_no_log_is_said_to_be_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "picture.bin"
    path.write_bytes(bytes(range(256)) * 20)
    (sight,) = seen(Ward([path], Settings()))
    assert sight.state == "unreadable" and "picture.bin" in sight.problem


def test_too_many_runs_are_counted_and_the_latest_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(ward_module, "RUNS", 2)
    for number in range(4):
        path = tmp_path / str(number) / "journal.jsonl"
        append(path, lines(HEADER) + steps(0, 2))
        os.utime(path, (1000 + number, 1000 + number))
    ward = Ward([tmp_path], Settings())
    assert set(named(ward)) == {"2", "3"} and ward.left_out == 2


def test_links_are_not_followed_round_and_round(tmp_path: Path) -> None:
    append(tmp_path / "a" / "journal.jsonl", lines(HEADER) + steps(0, 2))
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert named(Ward([tmp_path], Settings())) == {"a": 1}


def test_a_journal_that_appears_beside_other_files_is_followed_instead(tmp_path: Path) -> None:
    append(tmp_path / "metrics.csv", "step,loss\n" + "".join(f"{step},{2 - step / 100}\n" for step in range(20)))
    ward = Ward([tmp_path], Settings())
    assert list(named(ward).values()) == [19]
    append(tmp_path / "journal.jsonl", lines(HEADER) + steps(0, 4))
    assert named(ward) == {str(tmp_path): 3}


def test_runs_of_one_name_in_two_places_are_told_apart(tmp_path: Path) -> None:
    for place in ("first", "second"):
        append(tmp_path / place / "seed0" / "journal.jsonl", lines(HEADER) + steps(0, 5))
    ward = Ward([tmp_path / "first", tmp_path / "second"], Settings())
    ward.poll()
    names = [sight.name for sight in ward.sights()]
    assert [name.removeprefix(f"{tmp_path}/") for name in names] == ["first/seed0", "second/seed0"]


def table(path: Path, stop: int) -> None:
    append(path, "step,loss\n" + "".join(f"{step},{2 - step / 100}\n" for step in range(stop)))


def again(ward: Ward) -> tuple[Sight, ...]:
    """What is to be seen, without the rest between two readings."""
    for log in ward.places[0]._logs.values():
        log._due = float("-inf")
    return seen(ward)


def test_a_log_that_was_deleted_is_said_to_be_gone_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    table(path, 20)
    ward = Ward([path], Settings())
    assert [sight.state for sight in seen(ward)] == ["running"]
    path.unlink()
    (sight,) = again(ward)
    assert (sight.state, sight.report.step) == ("gone", 19) and "no longer exists" in sight.problem
    assert sight.progress(0.0) == "step 19, its log is gone"
    table(path, 25)
    (sight,) = again(ward)
    assert (sight.state, sight.report.step, sight.problem) == ("running", 24, "")


def test_a_journal_that_was_deleted_is_said_to_be_gone_unless_it_had_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, lines(HEADER) + steps(0, 5))
    ward = Ward([path], Settings())
    seen(ward)
    path.unlink()
    assert ward.poll()
    (sight,) = ward.sights()
    assert (sight.state, sight.report.step) == ("gone", 4)
    assert not ward.poll()
    append(path, lines(HEADER) + steps(0, 7) + lines({"type": "end", "step": 6}))
    assert [(sight.state, sight.problem) for sight in seen(ward)] == [("ended", "")]
    path.unlink()
    assert [sight.state for sight in seen(ward)] == ["ended"]


def test_a_log_that_took_the_place_of_another_is_told_apart_from_it(tmp_path: Path) -> None:
    table(tmp_path / "old.csv", 20)
    ward = Ward([tmp_path], Settings())
    assert named(ward) == {str(tmp_path): 19}
    (tmp_path / "old.csv").unlink()
    table(tmp_path / "second" / "new.csv", 30)
    assert {sight.name: sight.state for sight in again(ward)} == {
        "old.csv": "gone",
        str(Path("second/new.csv")): "running",
    }


def test_a_run_that_was_given_twice_is_seen_once(tmp_path: Path) -> None:
    append(tmp_path / "a" / "journal.jsonl", lines(HEADER) + steps(0, 3))
    assert named(Ward([tmp_path, tmp_path], Settings())) == {"a": 2}
    assert named(Ward([tmp_path, tmp_path / "a"], Settings())) == {"a": 2}


@pytest.mark.parametrize(("work", "rest"), [(1.0, 8.0), (6.0, 18.0)])
def test_a_log_that_took_long_to_read_rests_by_the_work_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: float, rest: float
) -> None:
    """A busy machine takes long for little work: the news of a long log must not wait ten times as long again."""
    table(tmp_path / "metrics.csv", 20)
    clock = {"taken": 0.0, "worked": 0.0}

    def slow(path: Path) -> list[Run]:
        clock.update(taken=8.0, worked=work)
        return read_all(path)

    monkeypatch.setattr(ward_module, "read_all", slow)
    monkeypatch.setattr(ward_module.time, "monotonic", lambda: clock["taken"])
    monkeypatch.setattr(ward_module.time, "thread_time", lambda: clock["worked"])
    ward = Ward([tmp_path / "metrics.csv"], Settings())
    ward.poll()
    (log,) = ward.places[0]._logs.values()
    assert log._due == 8.0 + rest


def test_a_log_that_begins_again_holds_several_runs_and_still_exists(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    table(path, 12)
    ward = Ward([path], Settings())
    assert [sight.state for sight in seen(ward)] == ["running"]
    path.write_text(path.read_text() + path.read_text().split("\n", 1)[1])
    sights = again(ward)
    assert len(sights) == 3 and all("no longer exists" not in sight.problem for sight in sights)
    assert "no longer holds a run of this name" in sights[0].problem
