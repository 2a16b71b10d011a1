"""Damaged and hostile files of the binary formats: a list of runs or a typed error, never anything else."""

import contextlib
import json
import random
import sqlite3
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.test_wandb_offline import history, log, message, varint

from torchdoctor.errors import SourceError
from torchdoctor.sources import mlflow_store, read, tensorboard, trackio_store, trainer_state, wandb_offline
from torchdoctor.sources.crc32c import crc32c, masked
from torchdoctor.sources.event_shapes import shape_of
from torchdoctor.sources.logged import Logged
from torchdoctor.sources.wire import fields

ROUNDS = 60


def scalar(step: int, value: float) -> bytes:
    number = message(1, message(1, message(1, b"loss") + b"\x15" + struct.pack("<f", value)))
    return b"\x09" + struct.pack("<d", 1e9) + b"\x10" + varint(step) + message(5, number[2:])


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


def events(path: Path) -> None:
    path.write_bytes(b"".join(framed(scalar(step, 1.0)) for step in range(300)))


def wandb_log(path: Path) -> None:
    log(path, *(history(step, loss=1.0, word="x" * 50) for step in range(300)))


def mlflow_database(path: Path) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "CREATE TABLE runs (run_uuid, name, start_time, lifecycle_stage);"
            "CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan);"
            "CREATE TABLE params (key, value, run_uuid); INSERT INTO runs VALUES ('a', 'one', 0, 'active');"
        )
        connection.executemany("INSERT INTO metrics VALUES ('loss', 1.0, ?, 'a', ?, 0)", [(n, n) for n in range(300)])
    connection.close()


def trackio_database(path: Path) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE metrics (timestamp, run_name TEXT, step INTEGER, metrics TEXT)")
        rows = [(n, n, json.dumps({"loss": 1.0})) for n in range(300)]
        connection.executemany("INSERT INTO metrics VALUES (?, 'one', ?, ?)", rows)
    connection.close()


def state(path: Path) -> None:
    rows = [{"loss": 1.0, "step": step, "epoch": step / 9} for step in range(300)]
    path.write_text(json.dumps({"global_step": 300, "epoch": 3.0, "log_history": rows}))


FORMATS: dict[str, tuple[object, Callable[[Path], None], str]] = {
    "tensorboard": (tensorboard, events, "events.out.tfevents.1"),
    "wandb": (wandb_offline, wandb_log, "run-a.wandb"),
    "mlflow": (mlflow_store, mlflow_database, "mlflow.db"),
    "trackio": (trackio_store, trackio_database, "p.db"),
    "trainer_state": (trainer_state, state, "trainer_state.json"),
}


def mutated(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 3, 20))):
        place = rng.randrange(len(data) or 1)
        what = rng.randrange(5)
        if what == 0:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif what == 1:
            data[place : place + 8] = rng.choice((b"\xff" * 8, bytes(8), struct.pack("<Q", 2**60), b"\x80" * 8))
        elif what == 2:
            del data[place : place + rng.randrange(1, 200)]
        elif what == 3:
            data[place:place] = data[: rng.randrange(1, 200)]
        else:
            del data[max(place, 50) :]
    return bytes(data)


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files_give_runs_or_a_typed_error(tmp_path: Path, name: str) -> None:
    module, write, file_name = FORMATS[name]
    path = tmp_path / file_name
    write(path)
    content = path.read_bytes()
    (whole,) = module.read(path)  # type: ignore[attr-defined]
    assert len(whole.points["loss"]) == 300
    rng = random.Random(name)
    read = 0
    for _ in range(ROUNDS):
        path.write_bytes(mutated(content, rng))
        try:
            runs = module.read(path) if module.recognises(path) else []  # type: ignore[attr-defined]
        except SourceError:
            continue
        assert all(isinstance(run, Logged) for run in runs)
        assert sum(len(points) for run in runs for points in run.points.values()) < 2000
        read += bool(runs)
    assert read > ROUNDS // 10, "most of a damaged file can still be read"


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_lengths_are_not_allocated(tmp_path: Path, name: str) -> None:
    module, write, file_name = FORMATS[name]
    path = tmp_path / file_name
    write(path)
    hostile = struct.pack("<Q", 2**60)
    hostile += struct.pack("<I", masked(crc32c(hostile))) + b"\xff" * 64
    path.write_bytes(path.read_bytes() + hostile * 50)
    tracemalloc.start()
    module.read(path)  # type: ignore[attr-defined]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_an_event_or_none(data: bytes) -> None:
    shape = shape_of(data)
    if shape is not None:
        assert all(0 <= scalar.place <= len(data) for scalar in shape.scalars)


@given(st.binary(max_size=100), st.integers(0, 110))
@settings(max_examples=200, deadline=None)
def test_fields_stay_within_their_message(data: bytes, stop: int) -> None:
    stop = min(stop, len(data))
    with contextlib.suppress(ValueError):
        assert all(0 <= field.start <= field.stop <= stop for field in fields(data, 0, stop))


def test_a_file_of_nothing_but_false_headers_is_linear(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    header = struct.pack("<Q", 24)
    wrong = header + bytes(4)
    path.write_bytes(framed(scalar(1, 1.0)) + wrong * 100_000 + framed(scalar(2, 2.0)))
    (run,) = tensorboard.read(path)
    assert run.points["loss"].steps.tolist() == [1, 2]


def test_half_a_database_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    mlflow_database(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match=r"mlflow\.db is damaged or cut off"):
        read(path)


def test_a_damaged_parquet_file_is_said_to_be_so_in_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + bytes(500))
    with pytest.raises(SourceError, match=r"damaged Parquet file: .*[^.]\.\Z"):
        read(path)


def test_damage_in_a_log_of_records_says_which_and_how_many(tmp_path: Path) -> None:
    path = log(tmp_path / "run-a.wandb", *(history(step, loss=3 - step / 100) for step in range(200)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    run = read(path)
    kept = run.step + 1
    lost = next(note for note in run.notes if note.startswith("damage in run-a.wandb cost about"))
    assert abs(int(lost.split()[5]) - (200 - kept)) <= 3
    assert f"1 unreadable record is left out of run-a.wandb; the first is record {kept + 1}" in run.notes
