"""Folders with logs of several formats: which are runs, which tell of the same run once more, and what is said."""

import json

import pytest
from click.testing import CliRunner

from torchdoctor.cli import group
from torchdoctor.journal import Journal
from torchdoctor.sources import locate, read, read_all

LOSSES = [3 - step / 10 for step in range(20)]
ROWS = [{"step": step, "loss": loss} for step, loss in enumerate(LOSSES)]
CSV = "step,loss\n" + "".join(f"{row['step']},{row['loss']}\n" for row in ROWS)
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)
TEXT = "".join(f"step {row['step']} loss {row['loss']}\n" for row in ROWS)
DICTS = "".join(f"{{'loss': {loss}, 'epoch': {step / 7:.2f}}}\n" for step, loss in enumerate(LOSSES))
STATE = json.dumps({"log_history": ROWS, "global_step": 19})
CONTENT = {".csv": CSV, ".jsonl": JSONL, ".log": TEXT, ".out": TEXT, ".txt": TEXT}
NOT_READ = "also here, not read: "


def put(folder, *names, **contents):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONTENT[path.suffix])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def found(folder):
    paths = [str(run.path.relative_to(folder)) for run in read_all(folder)]
    located = [str(run.path.relative_to(folder)) for place in locate(folder) for run in read_all(place)]
    assert located == paths, "what compare reads is not what diagnose reads"
    return paths


def unread(folder):
    notes = [note for run in read_all(folder) for note in run.notes if note.startswith(NOT_READ)]
    return [name for note in notes for name in note.removeprefix(NOT_READ).split(", ")]


SEVERAL = [
    (("a.jsonl", "hf.txt"), []),
    (("adam.csv", "sgd.log"), []),
    (("adam.csv", "adam.log", "sgd.jsonl"), ["adam.log"]),
    (("adam.csv", "nohup.out", "sgd.log"), ["nohup.out"]),
    (("adam.log", "results.csv", "sgd.log"), []),
    (("run_1.csv", "run_2.jsonl", "log2.txt"), ["log2.txt"]),
]
ONE = [
    (("metrics.csv", "train.log"), ["train.log"]),
    (("metrics.csv", "metrics.jsonl"), ["metrics.jsonl"]),
    (("exp5.csv", "train.log"), ["train.log"]),
    (("bert_base.log", "metrics.csv"), ["bert_base.log"]),
    (("exp5_metrics.csv", "exp5.log"), ["exp5.log"]),
    (("exp_2024-05-01_12-30-05.csv", "exp_2024-05-01_12-30-07.log"), ["exp_2024-05-01_12-30-07.log"]),
    (("metrics.csv", "slurm-8412345.out"), ["slurm-8412345.out"]),
    (("metrics.csv", "tb/metrics.jsonl"), ["tb/metrics.jsonl"]),
    (("nohup.out", "run/metrics.csv"), ["nohup.out"]),
]


@pytest.mark.parametrize(("names", "again"), SEVERAL)
def test_logs_with_names_of_their_own_are_runs(tmp_path, names, again):
    put(tmp_path, *names)
    assert set(found(tmp_path)) == {*names} - {*again}
    assert unread(tmp_path) == again


@pytest.mark.parametrize(("names", "again"), ONE)
def test_logs_that_tell_of_one_run_are_one_run_and_the_others_are_named(tmp_path, names, again):
    put(tmp_path, *names)
    assert set(found(tmp_path)) == {*names} - {*again}
    assert unread(tmp_path) == again
    assert read(tmp_path).step == 19


def test_a_sick_run_beside_a_healthy_one_of_another_format_is_found(tmp_path):
    put(tmp_path, "a.jsonl", hf_nan__txt=DICTS + "{'loss': nan, 'epoch': 3.0}\n" * 20)
    done = CliRunner().invoke(group, ["diagnose", str(tmp_path), "--format", "concise"])
    assert done.exit_code == 1
    assert "hf_nan.txt: Critical" in done.output


def test_what_formats_keep_beside_each_other_stays_one_run(tmp_path):
    put(tmp_path / "hf", "train.log", trainer_state__json=STATE)
    put(tmp_path / "hf" / "checkpoint-19", trainer_state__json=STATE)
    put(tmp_path / "yolo", "results.csv", args__yaml="lr0: 0.01\n")
    put(tmp_path / "own", "metrics.csv")
    Journal(tmp_path / "own", {"type": "header", "step": -1, "schema": 1}).close()
    assert found(tmp_path) == ["hf/trainer_state.json", "own/journal.jsonl", "yolo/results.csv"]
    assert unread(tmp_path) == ["hf/train.log", "own/metrics.csv"]


DATA = "id,price,area\n" + "".join(f"{row},{row * 3.5},{row % 7}\n" for row in range(30))
COSTS = "".join(f"{cost}, {cost % 7}\n" for cost in range(30))
OTHERS = {
    "README__txt": "loss: 3.0\nloss: 2.0\n" * 20,
    "requirements__txt": "torch==2.4\nnumpy>=1.26\n",
    "preprocessor_config__json": json.dumps({"image_mean": [0.48, 0.45, 0.4], "image_std": [0.2, 0.2, 0.2]}),
    "tokenizer__json": json.dumps({"model": {"vocab": {"a": 0, "b": 1}, "scores": [0.1, 0.2, 0.3, 0.4]}}),
    "houses__csv": DATA,
}


def test_what_is_no_log_is_no_run_and_is_not_named(tmp_path):
    put(tmp_path, "adam.log", "sgd.jsonl", **OTHERS)
    assert found(tmp_path) == ["adam.log", "sgd.jsonl"]
    assert not unread(tmp_path)


def test_a_table_of_data_keeps_no_log_from_being_read(tmp_path):
    put(tmp_path, "train.log", **OTHERS)
    assert found(tmp_path) == ["train.log"]
    put(tmp_path / "runs", "version_0/metrics.csv")
    assert found(tmp_path) == ["runs/version_0/metrics.csv"]
    put(tmp_path / "data", houses__csv=DATA)
    assert not {"data/houses.csv", "houses.csv"} & {*unread(tmp_path)}


def test_numbers_that_nobody_counted_are_no_run_beside_others(tmp_path):
    put(tmp_path, "adam.log", "sgd.jsonl", tariffs__csv="cost, area\n" + COSTS)
    assert found(tmp_path) == ["adam.log", "sgd.jsonl"]
    assert unread(tmp_path) == ["tariffs.csv"]


def test_a_damaged_log_beside_others_is_named(tmp_path):
    put(tmp_path, "adam.log", "sgd.jsonl")
    (tmp_path / "lion.parquet").write_bytes(b"PAR1" + b"\0" * 50)
    assert found(tmp_path) == ["adam.log", "sgd.jsonl"]
    assert unread(tmp_path) == ["lion.parquet"]


def test_runs_below_a_folder_of_runs_are_runs_too(tmp_path):
    put(tmp_path, "adam.csv", "sgd.csv", "lion/metrics.csv", "lightning_logs/metrics.csv", "sgd/train.log")
    assert set(found(tmp_path)) == {"adam.csv", "sgd.csv", "lion/metrics.csv", "lightning_logs/metrics.csv"}
    assert unread(tmp_path) == ["sgd/train.log"]


def test_only_some_of_many_are_named(tmp_path):
    put(tmp_path, "metrics.csv", *(f"old/part_{number}/train.log" for number in range(20)))
    (note,) = (note for note in read(tmp_path).notes if note.startswith(NOT_READ))
    assert note.endswith("and 15 more") and note.count("train.log") == 5
