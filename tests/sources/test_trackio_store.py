"""Trackio's databases: of the version that is installed, and by hand as other versions write them."""

import json
import math
import sqlite3
from pathlib import Path

import pytest
from tests.sources.writing import write_with

from torchdoctor.sources import trackio_store

PROGRAM = """
import math, sys, trackio
if not hasattr(trackio, "alert"):
    sys.exit(0)  # versions before 0.10 need their web page to be open
trackio.init(project="project", name="one", config={"lr": 0.1, "optimizer": {"name": "adam"}})
for step in range(15):
    trackio.log({"train/loss": math.nan if step == 9 else 3 / (step + 1), "word": "x"})
trackio.finish()
trackio.init(project="project", name="two", config={"lr": 0.2})
for step in range(5):
    trackio.log({"loss": math.inf}, step=step * 10)
trackio.finish()
"""


def test_a_real_database(tmp_path: Path) -> None:
    write_with("trackio", PROGRAM, tmp_path, TRACKIO_DIR=str(tmp_path / "store"), HF_HUB_OFFLINE="1")
    files = sorted((tmp_path / "store").glob("*.db"))
    if not files:
        pytest.skip("this version of trackio writes no database by itself")
    assert trackio_store.recognises(files[0])
    one, two = trackio_store.read(files[0])
    assert one.points["train/loss"].steps.tolist() == list(range(15))
    assert math.isnan(one.points["train/loss"].values[9])
    assert one.config == {"lr": 0.1, "optimizer/name": "adam"} and one.name == "one"
    assert two.points["loss"].steps.tolist() == [0, 10, 20, 30, 40]
    assert two.points["loss"].values.tolist() == [math.inf] * 5


OLD = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp, project_name TEXT, run_name TEXT, metrics TEXT);
CREATE TABLE configs (project_name TEXT, run_name TEXT, config TEXT, created_at);
INSERT INTO configs VALUES ('p', 'one', '{"lr": 0.5}', 0);
"""
MIDDLE = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp, run_name TEXT, step INTEGER, metrics TEXT);
"""
NEW = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, timestamp, run_name TEXT, step INTEGER, metrics TEXT);
CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, config TEXT, created_at);
INSERT INTO configs VALUES (1, 'b', 'one', '{"lr": 0.5}', 0);
"""


def database(path: Path, schema: str, columns: str, rows: list[tuple[object, ...]]) -> Path:
    with sqlite3.connect(path) as connection:
        connection.executescript(schema)
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO metrics ({columns}) VALUES ({marks})", rows)
    connection.close()
    return path


def test_the_first_versions_kept_all_projects_in_one(tmp_path: Path) -> None:
    rows = [(n, project, "one", json.dumps({"loss": n})) for project in "pq" for n in range(4)]
    path = database(tmp_path / "trackio.db", OLD, "timestamp, project_name, run_name, metrics", rows)
    assert trackio_store.recognises(path)
    first, second = trackio_store.read(path)
    assert (first.name, first.config, second.name, second.config) == ("p/one", {"lr": 0.5}, "q/one", {})
    assert first.points["loss"].steps.tolist() == [0, 1, 2, 3]


def test_versions_without_identities(tmp_path: Path) -> None:
    rows = [(n, "one", n * 5, json.dumps({"loss": n, "train/global_step": n * 7})) for n in range(4)]
    path = database(tmp_path / "p.db", MIDDLE, "timestamp, run_name, step, metrics", rows)
    (run,) = trackio_store.read(path)
    assert run.points["loss"].steps.tolist() == [0, 7, 14, 21] and run.config == {}


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    rows = [(n, identity, "one", n, json.dumps({"loss": n})) for identity in "ab" for n in range(3)]
    path = database(tmp_path / "p.db", NEW, "timestamp, run_id, run_name, step, metrics", rows)
    first, second = trackio_store.read(path)
    assert (first.config, second.config) == ({}, {"lr": 0.5})
    assert len(first.points["loss"]) == len(second.points["loss"]) == 3


def test_rows_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    metrics = ['{"loss": 1}', "{broken", "[1]", "[" * 20_000, '{"loss": 2}', b"\xff"]
    rows = [(n, "one", n, text) for n, text in enumerate(metrics)]
    path = database(tmp_path / "p.db", MIDDLE, "timestamp, run_name, step, metrics", rows)
    (run,) = trackio_store.read(path)
    assert run.points["loss"].values.tolist() == [1.0, 2.0]
    assert (run.skipped, run.first_skipped) == (4, 2)


def test_other_databases_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE metrics (name, value)")
    connection.close()
    assert not trackio_store.recognises(path)
    assert not trackio_store.recognises(tmp_path)
