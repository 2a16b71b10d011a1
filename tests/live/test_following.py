"""A file that grows, breaks off, is truncated, moved, deleted, made anew or resumed: every record once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.growing import HEADER, append, lines, steps, vitals

from torchdoctor.live import following
from torchdoctor.live.following import Follower, Tail
from torchdoctor.sources import read
from torchdoctor.stretch import Stretch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.jsonl"


def caught_up(follower: Follower, before: list[int] | None = None) -> list[int]:
    """The training steps that count after everything has been read."""
    found = list(before or [])
    while True:
        news = follower.news()
        found = [] if news.anew else found
        for piece in news.pieces:
            if isinstance(piece, Stretch):
                found += piece.steps.tolist()
            elif piece["type"] == "vitals":
                found.append(piece["step"])
        if not news.more:
            return found


def test_a_file_that_is_not_there_yet_is_waited_for(path: Path) -> None:
    follower = Follower(path)
    assert caught_up(follower) == []
    append(path, lines(HEADER) + steps(0, 3))
    assert caught_up(follower) == [0, 1, 2]


def test_a_torn_line_waits_for_its_rest(path: Path) -> None:
    follower = Follower(path)
    whole = lines(vitals(0))
    append(path, lines(HEADER) + whole[:20])
    assert caught_up(follower) == []
    append(path, whole[20:] + lines(vitals(1)))
    assert caught_up(follower) == [0, 1]
    assert follower.skipped == 0


def test_every_split_of_the_bytes_gives_the_same_records(path: Path) -> None:
    text = lines(HEADER) + steps(0, 4)
    for size in (1, 7, 64, 300):
        target = path.with_name(f"{size}.jsonl")
        follower, found = Follower(target), list[int]()
        for start in range(0, len(text), size):
            append(target, text[start : start + size])
            found = caught_up(follower, found)
        assert found == [0, 1, 2, 3], size


def test_a_long_file_comes_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "CHUNK", 500)
    append(path, lines(HEADER) + steps(0, 50))
    follower = Follower(path)
    assert follower.news().more
    assert caught_up(Follower(path)) == list(range(50))


def test_a_deleted_file_that_is_written_again_begins_a_new_run(path: Path) -> None:
    follower = Follower(path)
    append(path, lines(HEADER) + steps(0, 30))
    before = caught_up(follower)
    path.unlink()
    assert caught_up(follower, before) == before
    append(path, lines(HEADER) + steps(0, 2))
    assert caught_up(follower, before) == [0, 1]


def test_a_run_goes_on_in_a_file_that_was_moved_away(path: Path) -> None:
    follower = Follower(path)
    append(path, lines(HEADER) + steps(0, 30))
    before = caught_up(follower)
    path.rename(path.with_suffix(".1"))
    append(path, lines(HEADER) + steps(30, 33))
    assert caught_up(follower, before) == list(range(33))


def test_a_truncated_file_is_noticed_even_when_it_has_grown_beyond_its_old_size(path: Path) -> None:
    follower = Follower(path)
    append(path, lines(HEADER) + steps(0, 5))
    before = caught_up(follower)
    path.write_text(lines({**HEADER, "created": "later"}) + steps(0, 9), encoding="utf-8")
    assert caught_up(follower, before) == list(range(9))


@pytest.mark.parametrize("second", [range(5, 12), range(0, 3), range(10, 12), range(20, 22)])
def test_a_resumed_session_replaces_what_it_repeats_as_reading_does(path: Path, second: range) -> None:
    follower = Follower(path)
    append(path, lines(HEADER) + steps(0, 10) + lines({"type": "end", "step": 9}))
    found = caught_up(follower)
    append(path, lines(HEADER))
    found = caught_up(follower, found)
    append(path, lines(*(vitals(step) for step in second)))
    found = caught_up(follower, found)
    assert found == [record["step"] for record in read(path) if record["type"] == "vitals"]


def test_three_sessions_read_as_reading_does(path: Path) -> None:
    follower, found = Follower(path), list[int]()
    for start, stop in ((0, 20), (10, 15), (12, 30), (5, 8)):
        append(path, lines(HEADER) + steps(start, stop))
        found = caught_up(follower, found)
        assert found == [record["step"] for record in read(path) if record["type"] == "vitals"]


def test_a_line_without_end_costs_no_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LINE_LIMIT", 1000)
    monkeypatch.setattr(following, "CHUNK", 300)
    follower = Follower(path)
    append(path, lines(HEADER) + "x" * 5000)
    assert caught_up(follower) == []
    assert len(follower._tail._rest) <= 1300
    append(path, "x" * 5000 + "\n" + steps(0, 2))
    assert caught_up(follower) == [0, 1]
    assert follower.skipped == 1


def test_what_is_no_record_is_left_out_and_counted(path: Path) -> None:
    follower = Follower(path)
    append(path, lines(HEADER) + "\x00\x00\n[1, 2\n{}\n" + steps(0, 1))
    assert caught_up(follower) == [0]
    assert follower.skipped == 3


def test_a_pipe_in_the_files_place_is_not_waited_for(path: Path) -> None:
    import os

    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert Tail(path).read().whole == b""


def test_an_unchanged_file_is_not_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, lines(HEADER))
    tail = Tail(path)
    assert tail.read().whole.count(b"\n") == 1
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it was opened"))
    assert tail.read().whole == b""
