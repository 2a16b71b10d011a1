"""MLflow's stores, written by its own library where it is installed, and by hand as older versions wrote them."""

import math
import sqlite3
from pathlib import Path

import pytest
from tests.sources.writing import write_with

from torchdoctor.errors import SourceError
from torchdoctor.sources import mlflow_store
from torchdoctor.sources.sqlite_store import opened

PROGRAM = """
import math, mlflow
for address in ("sqlite:///mlflow.db", "file:./mlruns"):
    mlflow.set_tracking_uri(address)
    mlflow.set_experiment("first")
    for number in range(2):
        with mlflow.start_run(run_name=f"run {number}"):
            mlflow.log_params({"lr": 0.1 * (number + 1), "optimizer": "adamw", "amp": True})
            for step in range(20):
                mlflow.log_metric("train/loss", math.nan if step == 7 else 5 / (step + 1), step=step)
            mlflow.log_metric("up", math.inf, step=3)
            mlflow.log_metric("down", -math.inf, step=3)
    mlflow.delete_run(mlflow.last_active_run().info.run_id)
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlflow")
    write_with("mlflow", PROGRAM, folder, MLFLOW_ALLOW_FILE_STORE="true")
    return folder


@pytest.mark.parametrize("name", ["mlflow.db", "mlruns"])
def test_a_real_store(real: Path, name: str) -> None:
    assert mlflow_store.recognises(real / name)
    (run,) = mlflow_store.read(real / name)  # the deleted one is left out
    assert run.name == "run 0"
    assert run.config == {"lr": 0.1, "optimizer": "adamw", "amp": True}
    loss = run.points["train/loss"]
    assert loss.steps.tolist() == list(range(20))
    assert math.isnan(loss.values[7]) and loss.values[8] == 5 / 9
    assert run.points["up"].values.tolist() == [math.inf]
    assert run.points["down"].values.tolist() == [-math.inf]


def test_an_experiment_and_a_run_of_a_real_folder(real: Path) -> None:
    (run,) = mlflow_store.read(real / "mlruns")
    for place in (run.path, run.path.parent):
        assert mlflow_store.recognises(place)
        (again,) = mlflow_store.read(place)
        assert again.points.keys() == run.points.keys()
    assert not mlflow_store.recognises(real)


def test_a_deleted_run_is_read_where_its_own_folder_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "mlruns" / "0" / ("a" * 32)
    (folder / "metrics").mkdir(parents=True)
    (folder / "meta.yaml").write_text("run_id: a\nrun_name: gone\nlifecycle_stage: deleted\n")
    (folder / "metrics" / "loss").write_text("".join(f"17 {3 - step} {step}\n" for step in range(3)))
    (run,) = mlflow_store.read(folder)
    assert run.points["loss"].values.tolist() == [3, 2, 1]
    assert not mlflow_store.recognises(tmp_path / "mlruns")


def database(path: Path, rows: list[tuple[object, ...]], journal: str = "delete") -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.executescript(
        "CREATE TABLE runs (run_uuid, name, start_time, lifecycle_stage);"
        "CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan);"
        "CREATE TABLE params (key, value, run_uuid);"
        "INSERT INTO runs VALUES ('a', 'one', 0, 'active'), ('b', 'empty', 0, 'active');"
        "INSERT INTO params VALUES ('lr', '1e-3', 'a');"
    )
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, 'a', ?, ?)", rows)
    connection.commit()
    return connection


def test_a_database_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    writer = database(path, [("loss", 2.0, 0, 0, 0)], "wal")
    assert (tmp_path / "mlflow.db-wal").stat().st_size > 0
    writer.execute("INSERT INTO metrics VALUES ('loss', 9.0, 1, 'a', 1, 0)")  # not committed
    (run,) = mlflow_store.read(path)
    assert run.points["loss"].values.tolist() == [2.0]
    writer.commit()
    (run,) = mlflow_store.read(path)
    assert run.points["loss"].values.tolist() == [2.0, 9.0]
    writer.close()


def test_a_copied_log_is_read_and_nothing_left_beside_it(tmp_path: Path) -> None:
    writer = database(tmp_path / "mlflow.db", [("loss", 2.0, 0, 0, 0)], "wal")
    copies = tmp_path / "copies"
    copies.mkdir()
    for name in ("mlflow.db", "mlflow.db-wal"):
        (copies / name).write_bytes((tmp_path / name).read_bytes())
    writer.close()
    (run,) = mlflow_store.read(copies / "mlflow.db")
    assert run.points["loss"].values.tolist() == [2.0]
    assert sorted(file.name for file in copies.iterdir()) == ["mlflow.db", "mlflow.db-wal"]


def test_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    database(path, [("loss", 2.0, 0, 0, 0)]).close()
    before = path.read_bytes()
    mlflow_store.read(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["mlflow.db"]
    with opened(path) as store, pytest.raises(SourceError, match="readonly|query_only|not authorized"):
        store.rows("DELETE FROM metrics")


def test_metrics_without_a_step_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    database(path, [("loss", 3.0 - time, time, 0, 0) for time in range(3)]).close()
    (run,) = mlflow_store.read(path)
    assert run.points["loss"].steps.tolist() == [0, 1, 2] and run.clock == "row"
    assert "without steps" in run.notes[0]


def test_a_resumed_run_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    database(path, [("loss", 1.0, time, step, 0) for time, step in enumerate([0, 1, 2, 1, 2, 3])]).close()
    (run,) = mlflow_store.read(path)
    assert run.points["loss"].steps.tolist() == [0, 1, 2, 1, 2, 3]


def test_values_of_other_types_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    rows = [("loss", 2.0, 0, 0, 0), ("loss", "much", 1, 1, 0), ("loss", b"\x00", 2, 2, 0), (None, 1.0, 3, 3, 0)]
    database(path, [*rows, ("loss", 1.0, 4, 4, 0)]).close()
    (run,) = mlflow_store.read(path)
    assert run.points["loss"].values.tolist() == [2.0, 1.0] and run.skipped == 3


def test_views_are_not_tables(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "CREATE TABLE runs (run_uuid, name, start_time, lifecycle_stage);"
            "CREATE VIEW metrics AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "
            "'loss' AS key, i AS value, i AS timestamp, 'a' AS run_uuid, i AS step, 0 AS is_nan FROM n;"
        )
    connection.close()
    assert not mlflow_store.recognises(path)


def test_lines_of_an_old_folder(tmp_path: Path) -> None:
    run = tmp_path / "0" / "abc"
    (run / "metrics" / "train").mkdir(parents=True)
    (tmp_path / "0" / "meta.yaml").write_text("experiment_id: '0'\nname: Default\n")
    (run / "meta.yaml").write_text("run_id: abc\nrun_name: 'old one'\nlifecycle_stage: active\nexperiment_id: '0'\n")
    (run / "metrics" / "train" / "loss").write_text("1 2.5 0\nbroken\n2 nan 1\n3 1.5 2\n")
    (run / "metrics" / "leak").symlink_to("/etc/hostname")
    (found,) = mlflow_store.read(tmp_path)
    assert found.name == "old one" and found.skipped == 1
    assert found.points["train/loss"].steps.tolist() == [0, 1, 2]
    assert list(found.points) == ["train/loss"]


def test_a_folder_whose_experiment_is_not_described(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "123" / "abc"
    (run / "metrics").mkdir(parents=True)
    (run / "tags").mkdir()
    (run / "meta.yaml").write_text("run_uuid: abc\nname: ''\n")
    (run / "tags" / "mlflow.runName").write_text("by tag")
    (run / "metrics" / "loss").write_text("1 2.5 0\n2 1.5 1\n")
    assert mlflow_store.recognises(tmp_path / "mlruns") and not mlflow_store.recognises(tmp_path)
    (found,) = mlflow_store.read(tmp_path / "mlruns")
    assert found.name == "by tag" and found.points["loss"].values.tolist() == [2.5, 1.5]


def test_a_store_without_metrics_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    database(path, []).close()
    with pytest.raises(SourceError, match="2 MLflow runs, none of which has a metric"):
        mlflow_store.read(path)
