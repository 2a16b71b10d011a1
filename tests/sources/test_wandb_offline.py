"""Files of Weights & Biases, written by its own library where it is installed."""

import json
import math
import zlib
from pathlib import Path

import pytest
from tests.sources.writing import write_with

from torchdoctor.errors import SourceError
from torchdoctor.sources import read, wandb_offline
from torchdoctor.sources.leveldb_log import BLOCK, LogFile
from torchdoctor.sources.logged import Logged

PROGRAM = """
import math, wandb
settings = wandb.Settings(silent=True, x_disable_stats=True, disable_git=True, console="off")
config = {"lr": 0.1, "optimizer": {"name": "adam"}}
run = wandb.init(mode="offline", project="p", name="pretty", config=config, settings=settings)
for step in range(400):
    run.log({"train/loss": 5 / (step + 1), "train/global_step": step * 10, "nested": {"a": {"b": 1.5}},
             "word": "x" * 90, "histogram": wandb.Histogram([1, 2, 3])})
    if step % 100 == 99:
        run.log({"eval/loss": math.nan if step > 300 else math.inf, "train/global_step": step * 10})
run.config.update({"late": 7})
run.finish()
"""


def series(logged: Logged, name: str) -> list[tuple[int, float]]:
    points = logged.points[name]
    return list(zip(points.steps.tolist(), points.values.tolist(), strict=True))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wandb_run")
    write_with("wandb", PROGRAM, folder, WANDB_MODE="offline")
    return folder / "wandb"


def test_the_history_of_a_real_run(real: Path) -> None:
    assert wandb_offline.recognises(real)
    (found,) = wandb_offline.read(real)
    assert series(found, "train/loss") == [(step * 10, 5 / (step + 1)) for step in range(400)]
    assert found.points["eval/loss"].steps.tolist() == [990, 1990, 2990, 3990]
    assert found.points["eval/loss"].values[:3].tolist() == [math.inf] * 3
    assert math.isnan(found.points["eval/loss"].values[3])
    assert sorted(found.points) == ["eval/loss", "nested/a/b", "train/loss"]
    assert found.config == {"lr": 0.1, "optimizer/name": "adam", "late": 7}
    assert (found.name, found.skipped, found.torn, found.clock) == ("pretty", 0, False, "step")


def test_a_real_file_that_is_still_growing(real: Path, tmp_path: Path) -> None:
    (source,) = real.rglob("*.wandb")
    content = source.read_bytes()
    assert len(content) > 2 * BLOCK, "records must be spread over blocks"
    copy = tmp_path / "run-x.wandb"
    copy.write_bytes(content[: BLOCK + 1000])
    assert wandb_offline.recognises(copy)
    (found,) = wandb_offline.read(copy)
    assert found.torn and 10 < len(found.points["train/loss"]) < 400


def test_a_damaged_block_of_a_real_file_costs_itself(real: Path, tmp_path: Path) -> None:
    (source,) = real.rglob("*.wandb")
    content = bytearray(source.read_bytes())
    content[BLOCK + 5000] ^= 0xFF
    copy = tmp_path / "run-x.wandb"
    copy.write_bytes(content)
    (found,) = wandb_offline.read(copy)
    assert found.skipped and 200 < len(found.points["train/loss"]) < 400
    assert found.points["train/loss"].steps[-1] == 3990


def varint(value: int) -> bytes:
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def history(step: int, **values: object) -> bytes:
    items = b"".join(
        message(1, message(2, key.encode()) + message(16, json.dumps(value).encode())) for key, value in values.items()
    )
    return message(2, items + message(2, b"\x08" + varint(step)))


def log(path: Path, *records: bytes) -> Path:
    content = b":W&B\xe1\xbe\x00"
    for record in records:
        for place in range(0, len(record) or 1, 1000):
            part = record[place : place + 1000]
            first, last = place == 0, place + 1000 >= len(record)
            kind = 1 if first and last else 2 if first else 4 if last else 3
            left = BLOCK - len(content) % BLOCK
            if left < 7 + len(part):  # real writers split it: a block's end is left empty here
                content += bytes(left)
            check = zlib.crc32(bytes([kind]) + part)
            content += check.to_bytes(4, "little") + len(part).to_bytes(2, "little") + bytes([kind]) + part
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_files_of_a_resumed_run_are_one(tmp_path: Path) -> None:
    log(tmp_path / "run-20240101_000000-abc" / "run-abc.wandb", *(history(step, loss=1.0) for step in range(5)))
    log(tmp_path / "run-20240102_000000-abc" / "run-abc.wandb", *(history(step, loss=2.0) for step in range(3, 8)))
    log(tmp_path / "offline-run-20240103_000000-xyz" / "run-xyz.wandb", history(0, loss=3.0), history(1, loss=2.0))
    resumed, other = wandb_offline.read(tmp_path)
    assert resumed.points["loss"].steps.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]
    assert other.points["loss"].values.tolist() == [3.0, 2.0]


def test_long_records_and_empty_ends_of_blocks(tmp_path: Path) -> None:
    path = log(tmp_path / "run-a.wandb", *(history(step, loss=float(step), word="x" * 9000) for step in range(50)))
    (found,) = wandb_offline.read(path)
    assert found.points["loss"].values.tolist() == [float(step) for step in range(50)]
    assert found.skipped == 0


def test_a_record_without_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdoctor.sources.leveldb_log.RECORD_LIMIT", 50_000)
    path = log(tmp_path / "run-a.wandb", history(0, loss=1.0), history(1, word="x" * 200_000), history(2, loss=2.0))
    file = LogFile(path)
    assert max(len(record) for record in file.records()) <= 50_000
    assert file.skipped == 1


def test_the_history_of_an_old_version(tmp_path: Path) -> None:
    folder = tmp_path / "run-20190101_000000-old" / "files"
    folder.mkdir(parents=True)
    rows = [{"loss": 2.0 - step / 10, "_step": step, "_runtime": 1, "_timestamp": 2} for step in range(5)]
    (folder / "wandb-history.jsonl").write_text("\n".join([*map(json.dumps, rows), "{broken", '{"loss": 1']))
    (folder / "config.yaml").write_text(
        "wandb_version: 1\n\nlr:\n  desc: null\n  value: 0.1\nname:\n  value: 'adam'\n_wandb:\n  value: 3\n"
    )
    assert wandb_offline.recognises(tmp_path) and wandb_offline.recognises(folder / "wandb-history.jsonl")
    (found,) = wandb_offline.read(tmp_path)
    assert found.points["loss"].steps.tolist() == [0, 1, 2, 3, 4]
    assert found.config == {"lr": 0.1, "name": "adam"}
    assert (found.skipped, found.first_skipped, found.torn) == (1, 6, True)


@pytest.mark.parametrize("content", [b"", b":W", b"loss 3\n", b'{"loss": 3}\n', b"{" * 5000])
def test_what_is_no_file_of_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run-a.wandb"
    path.write_bytes(content)
    assert not wandb_offline.recognises(path)


def test_a_file_of_which_nothing_can_be_read_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "run-a.wandb"
    path.write_bytes(b":W&B\xe1\xbe\x00" + bytes(range(1, 250)) * 300)
    with pytest.raises(SourceError, match="run-a.wandb is damaged: none of its values can be read"):
        read(path)
