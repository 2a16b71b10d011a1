"""The journal: strict JSON, never in the way of the loop, whatever happens to the disk or the process."""

from __future__ import annotations

import errno
import gc
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdoctor
from torchdoctor import journal as module
from torchdoctor.errors import JournalError
from torchdoctor.journal import Journal, appender
from torchdoctor.journal.lines import encode
from torchdoctor.sources import read_all

HEADER = {"type": "header", "schema": 1, "tensors": ["a", "b"]}


def vitals(step: int, loss: float = 1.0) -> dict:
    return {"type": "vitals", "step": step, "vitals": {"loss": loss}}


def strict(line: str | bytes) -> dict:
    def refuse(token: str) -> float:
        raise AssertionError(f"not JSON: {token}")

    return json.loads(line, parse_constant=refuse)


def lines(path: Path) -> list[dict]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [strict(line) for line in data.splitlines()]


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_records_are_lines_in_order(tmp_path):
    with Journal(tmp_path / "run", HEADER) as journal:
        for step in range(3000):
            journal.write(vitals(step))
    found = lines(tmp_path / "run" / "journal.jsonl")
    assert found[0] == HEADER
    assert [record["step"] for record in found[1:]] == list(range(3000))
    assert journal.dropped == 0 and journal.closed


def test_a_file_and_other_ranks(tmp_path):
    assert Journal(tmp_path / "a.jsonl", HEADER).path == tmp_path / "a.jsonl"
    assert Journal(tmp_path / "a.jsonl", HEADER, rank=3).path == tmp_path / "a.rank3.jsonl"
    assert Journal(tmp_path / "run", HEADER, rank=3).path == tmp_path / "run" / "journal.rank3.jsonl"


def test_what_it_creates_is_private(tmp_path):
    Journal(tmp_path / "new" / "run", HEADER).close()
    assert (tmp_path / "new" / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "run" / "journal.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        (-np.inf, '"-Infinity"'),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (np.bool_(True), "true"),
        (np.array([1.0, np.nan]), '[1.0, "NaN"]'),
        ([{"a": (1, float("inf"))}], '[{"a": [1, "Infinity"]}]'),
        (Path("a/b"), '"a/b"'),
        (None, "null"),
    ],
)
def test_encoding(value, text):
    assert encode({"z": 1, "a": value}) == f'{{"z": 1, "a": {text}}}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_any_value_is_one_strict_line(value):
    text = encode({"v": value})
    assert "\n" not in text
    strict(text)


def test_a_record_that_cannot_be_encoded_is_counted_and_noted(tmp_path):
    circle: dict = {"type": "note"}
    circle["self"] = circle
    with Journal(tmp_path, HEADER) as journal:
        journal.write(circle)
        journal.write(None)  # type: ignore[arg-type]
        journal.write(vitals(5))
    found = lines(journal.path)
    assert journal.dropped == 2
    assert [record["type"] for record in found] == ["header", "vitals", "note"]
    assert "lost 2 records" in found[-1]["text"]


def test_an_existing_journal_is_continued_after_its_torn_line(tmp_path):
    with Journal(tmp_path, HEADER) as journal:
        journal.write(vitals(0))
    with journal.path.open("ab") as file:
        file.write(b'{"type": "vitals", "st')
    with Journal(tmp_path, HEADER) as journal:
        journal.write(vitals(1))
    raw = journal.path.read_bytes().splitlines()
    assert [strict(line)["type"] for line in raw[:2] + raw[3:]] == ["header", "vitals", "header", "vitals"]
    assert raw[2] == b'{"type": "vitals", "st'


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    data = tmp_path / "training_data.jsonl"
    data.write_text('{"text": "precious"}\n')
    with pytest.raises(JournalError, match="not a journal"):
        Journal(data, HEADER)
    assert data.read_text() == '{"text": "precious"}\n'


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for place in ("file", "file/below", "link.jsonl", "pipe.jsonl", "x" * 300):
        with pytest.raises(JournalError, match=r"cannot write the journal .*Give a writable folder"):
            Journal(tmp_path / place, HEADER)
    assert not (tmp_path / "elsewhere.jsonl").exists()


def test_after_closing_nothing_is_written_and_nothing_raised(tmp_path):
    journal = Journal(tmp_path, HEADER)
    journal.close()
    journal.close()
    journal.write(vitals(1))
    assert len(lines(journal.path)) == 1


def test_symptoms_are_written_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(appender, "FLUSH_SECONDS", 3600)
    journal = Journal(tmp_path, HEADER)
    journal.write(vitals(1))
    journal.write({"type": "symptom", "step": 1})
    wait_until(lambda: len(lines(journal.path)) == 3)
    journal.close()


def test_an_abandoned_journal_is_flushed_and_its_thread_ends(tmp_path):
    journal = Journal(tmp_path, HEADER)
    journal.write(vitals(7))
    thread, path = journal._appender._thread, journal.path
    del journal
    gc.collect()
    assert not thread.is_alive()
    assert lines(path)[-1]["step"] == 7


class Disk:
    """`os.write` that fails when told to, and takes only a few bytes before it does."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.room = 0
        self.real = os.write

    def write(self, file: int, data: bytes) -> int:
        if self.error is None:
            return self.real(file, data)
        if self.room:
            count = self.real(file, data[: self.room])
            self.room = 0
            return count
        raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(appender.os, "write", disk.write)
    monkeypatch.setattr(appender, "FLUSH_SECONDS", 0.01)
    return disk


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EFBIG])
@pytest.mark.parametrize("room", [0, 10])
def test_a_disk_that_fails_and_recovers_loses_nothing(tmp_path, disk, error, room):
    journal = Journal(tmp_path, HEADER)
    disk.error, disk.room = error, room
    for step in range(50):
        journal.write(vitals(step))
    wait_until(lambda: journal._appender._failing)
    disk.error = None
    journal.close()
    assert [record["step"] for record in lines(journal.path)[1:]] == list(range(50))
    assert journal.dropped == 0


def test_a_disk_that_never_recovers_costs_records_not_time(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(module, "QUEUE_LIMIT", 100)
    journal = Journal(tmp_path, HEADER)
    disk.error = errno.ENOSPC
    for step in range(500):
        journal.write({"type": "symptom", "step": step})
    journal.close()
    assert not journal._appender._thread.is_alive()
    assert journal.dropped == 500
    assert len(lines(journal.path)) == 1


def test_an_overflow_is_counted_exactly_and_recorded(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(module, "QUEUE_LIMIT", 100)
    journal = Journal(tmp_path, HEADER)
    disk.error = errno.ENOSPC
    for step in range(500):
        journal.write(vitals(step))
    dropped = journal.dropped
    disk.error = None
    journal.close()
    found = lines(journal.path)
    assert dropped >= 300
    assert sum(record["type"] == "vitals" for record in found) + dropped == 500
    assert sum(f"lost {dropped} records" in record.get("text", "") for record in found) == 1


def test_a_stalled_disk_does_not_hold_the_loop_or_the_exit(tmp_path, monkeypatch):
    gate, real = threading.Event(), os.write
    journal = Journal(tmp_path, HEADER)
    monkeypatch.setattr(appender.os, "write", lambda file, data: (gate.wait(), real(file, data))[1])
    monkeypatch.setattr(module, "QUEUE_LIMIT", 1000)
    for step in range(5000):
        journal.write({"type": "symptom", "step": step})
    assert journal._appender._thread.is_alive()
    journal.close(timeout=0.05)
    gate.set()
    journal._appender._thread.join(10)
    assert not journal._appender._thread.is_alive()


@pytest.mark.parametrize("what", ["file", "folder", "moved"])
def test_a_journal_that_disappears_is_begun_again(tmp_path, disk, what):
    journal = Journal(tmp_path / "run", HEADER)
    journal.write(vitals(0))
    wait_until(lambda: len(lines(journal.path)) == 2)
    if what == "moved":
        journal.path.rename(tmp_path / "old.jsonl")
    else:
        journal.path.unlink()
    if what == "folder":
        journal.path.parent.rmdir()
    journal.write(vitals(1))
    journal.close()
    assert [record["type"] for record in lines(journal.path)] == ["header", "vitals"]
    assert lines(journal.path)[1]["step"] == 1


def test_a_line_torn_by_a_full_disk_in_a_file_that_disappears(tmp_path, disk):
    journal = Journal(tmp_path, HEADER)
    disk.error, disk.room = errno.ENOSPC, 10
    journal.write(vitals(0))
    journal.write(vitals(1))
    wait_until(lambda: journal._appender._mid_line)
    journal.path.unlink()
    disk.error = None
    journal.close()
    steps = [record["step"] for record in lines(journal.path) if record["type"] == "vitals"]
    assert steps == [1] or (steps == [] and journal.dropped == 2)


def child(code: str, folder: Path, **options) -> subprocess.Popen[str]:
    program = (
        "import os, sys, time\nfrom torchdoctor.journal import Journal\n"
        f"journal = Journal({str(folder)!r}, {HEADER!r})\n"
        "def vitals(step): return {'type': 'vitals', 'step': step, 'vitals': {'loss': 1.0, 'grad_norm': float(step)}}\n"
    )
    return subprocess.Popen([sys.executable, "-c", program + code], text=True, **options)


def test_an_exit_without_closing_loses_nothing_and_keeps_the_exit_code(tmp_path):
    process = child("for step in range(1000): journal.write(vitals(step))\nsys.exit(7)", tmp_path)
    assert process.wait(30) == 7
    assert lines(tmp_path / "journal.jsonl")[-1]["step"] == 999


def test_a_crash_of_the_loop_loses_nothing(tmp_path):
    process = child("journal.write(vitals(5))\nraise RuntimeError('loop')", tmp_path, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and errors.rstrip().endswith("RuntimeError: loop")
    assert lines(tmp_path / "journal.jsonl")[-1]["step"] == 5


def test_a_kill_leaves_whole_lines_and_at_most_one_torn(tmp_path):
    code = (
        "print('on', flush=True)\nfor step in range(10**9):\n    journal.write({**vitals(step), 'type': 'symptom'})\n"
    )
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        process = child(code, folder, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02 * attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        *whole, rest = (folder / "journal.jsonl").read_bytes().split(b"\n")
        records = [strict(line) for line in whole]
        steps = [record["step"] for record in records if record["type"] == "symptom"]  # a note of overflow runs ahead
        assert steps == sorted(steps)
        start = b'{"type"'
        assert rest[: len(start)] == start[: len(rest)]  # torn anywhere, so perhaps shorter than that


def test_a_forked_child_writes_nothing(tmp_path):
    code = (
        "for step in range(200): journal.write(vitals(step))\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        journal.write({'type': 'symptom', 'step': 10**6})\n"
        "        journal.close()\n"
        "        sys.exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "journal.write(vitals(200))\n"
    )
    process = child(f"import warnings\nwarnings.simplefilter('ignore')\n{code}", tmp_path)
    assert process.wait(30) == 0
    assert [record["step"] for record in lines(tmp_path / "journal.jsonl")[1:]] == list(range(201))


@pytest.mark.parametrize(("asked", "other"), [("run", "run-2/journal.jsonl"), ("run/a.jsonl", "run/a.2.jsonl")])
def test_two_processes_write_apart(tmp_path, asked, other):
    place = tmp_path / asked
    with Journal(place, HEADER) as journal:
        code = f"""
from torchdoctor.journal import Journal, appender
with Journal({str(place)!r}, {HEADER!r}) as journal:
    print(journal.path, journal.taken)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(tmp_path / other), str(journal.path)]
        with Journal(place, HEADER) as again:  # of the same process, as in a notebook
            assert again.path == journal.path and again.taken is None
    assert len((tmp_path / other).read_text().splitlines()) == 1
    assert len(read_all(tmp_path)) == 2


def test_a_packed_journal_is_the_same_run_and_a_torn_one_as_far_as_it_goes(tmp_path):
    rng = np.random.default_rng(0)
    with Journal(tmp_path / "run", HEADER) as journal:
        for step in range(3000):
            journal.write(vitals(step, float(rng.random())))
        journal.write({"type": "facts", "step": 3000, "facts": {"loss.kind": "cross-entropy"}})
    plain = (tmp_path / "run" / "journal.jsonl").read_bytes()
    packed, torn = tmp_path / "journal.jsonl.gz", tmp_path / "torn.gz"
    packed.write_bytes(gzip.compress(plain))
    torn.write_bytes(gzip.compress(plain)[:-2000])
    run, rest = torchdoctor.read(packed), torchdoctor.read(torn)
    assert list(run.records) == list(torchdoctor.read(tmp_path / "run").records) and not run.torn
    assert run.header["tensors"] == HEADER["tensors"]
    assert 2000 < rest.step < 3000 and rest.torn
