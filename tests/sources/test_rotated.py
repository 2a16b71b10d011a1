"""A run whose log was rotated is one run; runs that follow each other under one name are not."""

import gzip
import json
import math

import pytest

from torchdoctor.sources import read, read_all


def rows(first, last, every=1, sick=()):
    return [(step, math.nan if step in sick else 2 - step / 1000) for step in range(first, last, every)]


def as_json(found):
    return "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in found)


def as_text(found):
    return "".join(f"2024-05-01 12:00:00 INFO step {step} loss {loss:.4f}\n" for step, loss in found)


def losses(run):
    return [(record["step"], record["vitals"]["loss"]) for record in run if "loss" in record.get("vitals", ())]


@pytest.mark.parametrize(("name", "form"), [("train.jsonl", as_json), ("train.log", as_text)])
@pytest.mark.parametrize("every", [1, 50])
def test_parts_that_go_on_in_each_other_are_one_run(tmp_path, name, form, every):
    path = tmp_path / name
    (tmp_path / f"{name}.2.gz").write_bytes(gzip.compress(form(rows(0, 2000, every, sick={1000})).encode()))
    (tmp_path / f"{name}.1").write_text(form(rows(2000, 4000, every)))
    path.write_text(form(rows(4000, 5000, every)))
    for place in (path, tmp_path):
        (run,) = read_all(place)
        found = losses(run)
        assert [step for step, _ in found] == list(range(0, 5000, every))
        assert [step for step, loss in found if math.isnan(loss)] == [1000]
        assert run.path == path
        assert run.notes == (f"the log was rotated; its older parts were read too: {name}.1, {name}.2.gz",)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (rows(0, 300), rows(0, 100)),  # a run of its own each time
        (rows(0, 300), rows(0, 400)),
        (rows(0, 300), rows(5000, 5100)),  # something is missing
        (rows(0, 300), rows(250, 400)),
        ([], rows(300, 400)),
    ],
)
def test_parts_that_do_not_are_named_and_not_read(tmp_path, older, newer):
    path = tmp_path / "train.jsonl"
    (tmp_path / "train.jsonl.1").write_text(as_json(older))
    path.write_text(as_json(newer))
    run = read(path)
    assert losses(run) == newer
    assert run.notes[0] == "also here, not read: train.jsonl.1"


def test_lines_without_a_count_cannot_tell(tmp_path):
    for name in ("train.log", "train.log.1"):
        (tmp_path / name).write_text("".join(f"loss: {2 - line / 99}\n" for line in range(50)))
    run = read(tmp_path / "train.log")
    assert len(losses(run)) == 50
    assert "also here, not read: train.log.1" in run.notes


def test_files_that_are_called_otherwise_are_left_alone(tmp_path):
    (tmp_path / "train.jsonl.bak").write_text(as_json(rows(0, 300)))
    (tmp_path / "train.jsonl.10").write_text(as_json(rows(0, 300)))
    (tmp_path / "train.jsonl").write_text(as_json(rows(300, 400)))
    run = read(tmp_path / "train.jsonl")
    assert run.notes == ()
    assert losses(run)[0][0] == 300
