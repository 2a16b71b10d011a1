"""Reading a run back: damaged and hostile files cost lines, never the reader."""

from __future__ import annotations

import contextlib
import json
import math
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdoctor
from torchdoctor import SourceError
from torchdoctor.chart import Chart
from torchdoctor.journal import Journal
from torchdoctor.journal.lines import encode
from torchdoctor.sources import journal as source
from torchdoctor.sources import read
from torchdoctor.stretch import Stretch

HEADER = {"type": "header", "schema": 1, "context": {"seed": 1}, "tensors": ["a", "b"]}


def vitals(step: int, **values: float) -> dict:
    return {"type": "vitals", "step": step, "vitals": values or {"loss": 1.0 + step}}


def written(folder: Path, *records: dict | bytes, end: bytes = b"\n") -> Path:
    path = folder / "journal.jsonl"
    path.write_bytes(b"\n".join(item if isinstance(item, bytes) else encode(item).encode() for item in records) + end)
    return path


def test_what_was_written_is_read(tmp_path):
    records = [
        {**HEADER, "step": -1},
        {"type": "tensors", "step": 0, "vitals": {"grad_norm": [1.0, None], "update_ratio": [math.inf, 0.5]}},
        vitals(0, loss=math.nan, grad_norm=math.inf, other=-math.inf, whole=3.0),
        {"type": "groups", "step": 1, "groups": [{"lr": 0.1}]},
        {"type": "note", "step": 1, "text": "NaN"},
        {"type": "validation", "step": 1, "vitals": {"val_loss": 2.0}},
        {"type": "origin", "step": 1, "module": "fc", "kind": "output"},
        {"type": "symptom", "step": 1, "event": "opened", "name": "nan-or-inf", "value": math.nan, "limit": None},
        {"type": "end", "step": 1},
    ]
    with Journal(tmp_path, records[0]) as journal:
        for record in records[1:]:
            journal.write(record)
    for place in (tmp_path, journal.path, str(tmp_path)):
        run = read(place)
        assert repr(list(run)) == repr(records)  # repr: NaN is not equal to itself
        assert (run.step, run.skipped, run.torn, run.sessions, run.notes) == (0, 0, False, 1, ())
        assert run.header == records[0]
    assert list(run.records)[4]["text"] == "NaN"


HOSTILE = {
    "facts that are a number": b'{"type": "facts", "step": 1, "facts": 7}',
    "modules that are numbers": b'{"type": "facts", "step": 1, "facts": {"modules.names": [1]}}',
    "a module's row that is a word": b'{"type": "modules", "step": 1, "vitals": {"act_rms": "x"}}',
    "a model that is a word": b'{"type": "context", "step": 1, "context": {"model": "x"}}',
    "optimizers that are numbers": b'{"type": "context", "step": 1, "context": {"optimizer": [1, 2]}}',
    "not JSON": b"loss: 1.2 at step 3",
    "nested brackets": b"[" * 100_000,
    "nested objects": b'{"type":' * 100_000,
    "a long number": b'{"type": "vitals", "step": ' + b"9" * 5000 + b', "vitals": {"loss": 1}}',
    "a long value": b'{"type": "vitals", "step": 2, "vitals": {"loss": ' + b"9" * 400 + b"}}",
    "NUL": b'{"type": "vitals",\x00 "step": 2, "vitals": {"loss": 1}}',
    "not UTF-8": b'{"type": "note", "step": 2, "text": "\xff\xfe"}',
    "a key twice": b'{"type": "vitals", "step": 2, "step": 3, "vitals": {"loss": 1}}',
    "a torn line in the middle": b'{"type": "vitals", "step": 2, "vit',
    "an array": b"[1, 2]",
    "a string": b'"header"',
    "no type": b'{"step": 2, "vitals": {"loss": 1}}',
    "a type that is a list": b'{"type": [], "step": 2}',
    "no step": b'{"type": "vitals", "vitals": {"loss": 1}}',
    "a step that is text": b'{"type": "vitals", "step": "2", "vitals": {"loss": 1}}',
    "a step that is true": b'{"type": "vitals", "step": true, "vitals": {"loss": 1}}',
    "a step that is a fraction": b'{"type": "vitals", "step": 2.5, "vitals": {"loss": 1}}',
    "a negative step": b'{"type": "vitals", "step": -5, "vitals": {"loss": 1}}',
    "an enormous step": b'{"type": "vitals", "step": 9223372036854775808, "vitals": {"loss": 1}}',
    "a step that goes back": b'{"type": "vitals", "step": 0, "vitals": {"loss": 1}}',
    "vitals that are a list": b'{"type": "vitals", "step": 2, "vitals": [1]}',
    "no vitals": b'{"type": "vitals", "step": 2}',
    "a value that is text": b'{"type": "vitals", "step": 2, "vitals": {"loss": "high"}}',
    "a value that is null": b'{"type": "vitals", "step": 2, "vitals": {"loss": null}}',
    "a value that is a list": b'{"type": "vitals", "step": 2, "vitals": {"loss": [1]}}',
    "a row that is a number": b'{"type": "tensors", "step": 2, "vitals": {"grad_norm": 1}}',
    "a row with text": b'{"type": "tensors", "step": 2, "vitals": {"grad_norm": [1, "x"]}}',
    "a long name": b'{"type": "vitals", "step": 2, "vitals": {"' + b"n" * 300 + b'": 1}}',
    "many names": b'{"type": "vitals", "step": 2, "vitals": {'
    + b", ".join(b'"%d": 1' % i for i in range(5000))
    + b"}}",
    "a context that is a list": b'{"type": "context", "step": 2, "context": []}',
    "tensors that are numbers": b'{"type": "context", "step": 2, "context": {}, "tensors": [1]}',
    "groups that are numbers": b'{"type": "groups", "step": 2, "groups": [1]}',
    "a note without text": b'{"type": "note", "step": 2, "text": 5}',
    "an origin without module": b'{"type": "origin", "step": 2, "kind": "output"}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_line_is_left_out_and_counted(tmp_path, line):
    run = read(written(tmp_path, HEADER, vitals(1), line, vitals(3)))
    assert [record["step"] for record in run] == [-1, 1, 3]
    assert (run.skipped, run.first_skipped, run.torn, run.step) == (1, 3, False, 3)
    assert "1 unreadable line is left out of journal.jsonl; the first is line 3" in run.notes
    fed(run)


def fed(run: torchdoctor.Run) -> Chart:
    chart = Chart()
    for record in run:
        chart.add(record)
    return chart


def test_a_line_that_is_too_long_is_passed_over_in_bounded_memory(tmp_path):
    path = tmp_path / "journal.jsonl"
    with path.open("wb") as file:
        file.write(encode(HEADER).encode() + b'\n{"type": "note", "step": 0, "text": "')
        for _ in range(100):
            file.write(b"x" * 2**20)
        file.write(b'"}\n' + encode(vitals(3)).encode() + b"\n")
    tracemalloc.start()
    run = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [record["step"] for record in run] == [-1, 3]
    assert (run.skipped, run.first_skipped) == (1, 2)
    assert peak < 4 * source.LINE_LIMIT


def test_tolerated_oddities(tmp_path):
    newer = {"type": "outcome", "step": 2, "helped": True}
    plain_nan = b'{"type": "vitals", "step": 2, "vitals": {"loss": NaN, "grad_norm": 1e999}}'
    surrogate = b'{"type": "note", "step": 2, "text": "\\ud800"}'
    run = read(
        written(tmp_path, b"\xef\xbb\xbf" + encode(HEADER).encode() + b"\r", b"", plain_nan + b"\r", surrogate, newer)
    )
    assert run.skipped == 0
    chart = fed(run)
    assert chart["loss"].nonfinite == 1 and chart["grad_norm"].latest == math.inf


def test_a_torn_last_line_is_said_and_a_whole_one_without_newline_counts(tmp_path):
    torn = read(written(tmp_path, HEADER, vitals(1), b'{"type": "vitals", "st', end=b""))
    assert (torn.torn, torn.skipped, torn.step) == (True, 0, 1)
    assert any("is cut off" in note for note in torn.notes)
    whole = read(written(tmp_path, HEADER, vitals(1), end=b""))
    assert (whole.torn, whole.step) == (False, 1)


def test_every_cut_of_a_journal_is_readable(tmp_path):
    data = written(tmp_path, HEADER, *(vitals(step) for step in range(3))).read_bytes()
    path = tmp_path / "cut.jsonl"
    for size in range(len(encode(HEADER)), len(data) + 1):
        path.write_bytes(data[:size])
        run = read(path)
        assert run.skipped == 0
        assert run.step == len([line for line in data[:size].splitlines()[1:] if line.endswith(b"}}")]) - 1


def test_a_resumed_run_is_one_run(tmp_path):
    first = [HEADER, *(vitals(step) for step in range(10)), {"type": "end", "step": 9}]
    second = [{**HEADER, "context": {"seed": 2}}, *(vitals(step, loss=100.0 + step) for step in range(6, 12))]
    run = read(written(tmp_path, *first, *second))
    assert (run.sessions, run.step) == (2, 11)
    chart = fed(run)
    assert chart["loss"].steps.tolist() == list(range(12))
    assert chart["loss"].values[5:7].tolist() == [6.0, 106.0]
    assert chart.context["seed"] == 2 and not chart.ended


def test_a_restarted_run_replaces_the_old_one(tmp_path):
    old = [
        {**HEADER, "context": {"old": 1}},
        {"type": "note", "step": -1, "text": "old"},
        *(vitals(step) for step in range(10)),
    ]
    run = read(written(tmp_path, *old, HEADER, *(vitals(step, loss=5.0) for step in range(3))))
    chart = fed(run)
    assert (run.sessions, run.step) == (2, 2)
    assert chart["loss"].values.tolist() == [5.0] * 3
    assert "old" not in chart.context and not chart.notes


def test_a_session_that_died_before_its_first_step_takes_nothing_away(tmp_path):
    run = read(written(tmp_path, HEADER, *(vitals(step) for step in range(5)), HEADER))
    assert run.step == 4 and len(fed(run)["loss"]) == 5


def test_a_journal_of_a_later_version_says_so(tmp_path):
    run = read(written(tmp_path, {**HEADER, "schema": 99}, vitals(0)))
    assert any("later version" in note for note in run.notes)


def test_a_header_alone_is_a_run_without_steps(tmp_path):
    assert read(written(tmp_path, HEADER)).step == -1


def test_notes_without_end_are_bounded(tmp_path):
    notes = ({"type": "note", "step": 0, "text": "x"} for _ in range(3000))
    assert len(fed(read(written(tmp_path, HEADER, *notes))).notes) <= 1000


def test_paths_that_hold_no_run(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "data.jsonl").write_text('{"text": "hello"}\n' * 5)
    (tmp_path / "binary").write_bytes(random.Random(0).randbytes(10_000))
    (tmp_path / "heading.csv").write_text("step,train/loss,val_loss\n")
    (tmp_path / "greeting.txt").write_text("hello, world\n")
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "b").mkdir()
    written(tmp_path / "runs" / "a", HEADER)
    written(tmp_path / "runs" / "b", HEADER)
    expected = {
        "missing": "does not exist",
        "empty.jsonl": "is empty",
        "empty": "holds no log that can be read",
        "data.jsonl": "looks like JSON without series of numbers. Known formats: a journal",
        "binary": "looks like binary data. Known formats: a journal",
        "heading.csv": "looks like a table heading without rows",
        "greeting.txt": "looks like text in which no line gives a loss or a metric",
        "runs": "holds 2 runs: .*a.*, .*b",
    }
    for name, sentence in expected.items():
        with pytest.raises(SourceError, match=sentence):
            read(tmp_path / name)
    with pytest.raises(SourceError, match="neither a file nor a folder"):
        read("/dev/null")


def test_the_lowest_rank_speaks_for_a_folder_without_rank_0(tmp_path):
    for rank in (10, 3):
        Journal(tmp_path, HEADER, rank=rank).close()
    assert read(tmp_path).path.name == "journal.rank3.jsonl"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mutated_journals_never_crash_the_reader_or_the_chart(tmp_path_factory, data):
    records = [
        HEADER,
        vitals(0),
        {"type": "tensors", "step": 0, "vitals": {"grad_norm": [1.0, None]}},
        vitals(1, loss=math.nan),
    ]
    raw = bytearray(b"\n".join(encode(record).encode() for record in records))
    for _ in range(data.draw(st.integers(1, 8))):
        position = data.draw(st.integers(0, len(raw) - 1))
        raw[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path_factory.mktemp("fuzz") / "journal.jsonl"
    path.write_bytes(raw)
    with contextlib.suppress(SourceError):
        fed(read(path))


def test_a_long_journal_is_read_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "KEPT", 0)
    monkeypatch.setattr(source, "BLOCK", 2**16)
    path = tmp_path / "journal.jsonl"
    with path.open("w") as file:
        file.write(encode(HEADER) + "\n")
        for step in range(30_000):
            file.write(
                f'{{"type": "vitals", "step": {step}, "vitals": {{"loss": 1.5, "grad_norm": 2.5, "lr": 0.001}}}}\n'
            )
    tracemalloc.start()
    assert sum(1 for _ in read(path)) == 30_001
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_alike_lines_are_read_as_single_lines_are(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    lines = [encode(HEADER)]
    for step in range(500):
        values = {"loss": float(rng.normal()), "grad_norm": math.inf if step == 77 else 1.5, "lr": 1e-3}
        if 200 <= step < 240:
            values["input_mean"] = -0.0
        lines.append(encode(vitals(step, **values)))
        if step % 90 == 89:
            lines += [encode({"type": "note", "step": step, "text": "n"}), "{torn", encode(vitals(step - 5, loss=1.0))]
    (tmp_path / "journal.jsonl").write_text("\n".join(lines))
    quick = read(tmp_path)
    assert sum(isinstance(piece, Stretch) for piece in quick.pieces) > 5
    monkeypatch.setattr(source, "alike_from", lambda text, start: (None, 0))
    slow = read(tmp_path)
    assert not any(isinstance(piece, Stretch) for piece in slow.pieces)
    assert list(quick.records) == list(slow.records)
    assert (
        (quick.skipped, quick.first_skipped, quick.step)
        == (slow.skipped, slow.first_skipped, slow.step)
        == (10, 93, 499)
    )


def test_reading_needs_no_torch(tmp_path):
    written(tmp_path, HEADER, vitals(0))
    code = f"import sys, torchdoctor\nprint(torchdoctor.read({str(tmp_path)!r}).step, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]


def test_the_journal_is_strict_json_for_others(tmp_path):
    with Journal(tmp_path, HEADER) as journal:
        journal.write(vitals(0, loss=math.nan))
    for line in journal.path.read_text().splitlines():
        json.loads(line, parse_constant=lambda token: pytest.fail(token))


def test_a_log_whose_steps_are_out_of_range_is_not_said_to_hold_one_record(tmp_path):
    path = tmp_path / "huge.csv"
    path.write_text("step,loss\n" + "".join(f"{step * 10**18},{4 / (1 + step)}\n" for step in range(50)))
    verdict = str(torchdoctor.diagnose(path))
    assert verdict.startswith("Too little to judge: only the values of step 0 can be used (loss 4;")
