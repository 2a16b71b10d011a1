"""TensorBoard's files, written by its own library and by PyTorch's."""

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources import tensorboard
from torchdoctor.sources.crc32c import crc32c, masked
from torchdoctor.sources.logged import Logged
from torchdoctor.sources.tfrecords import RecordFile

pytest.importorskip("tensorboard", reason="pip install tensorboard")

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


def event(step: int, when: float = 1.7e9, **values: float) -> bytes:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    return framed(Event(wall_time=when + step, step=step, summary=summary).SerializeToString())


def begun(when: float = 1.7e9) -> bytes:
    return framed(Event(wall_time=when, file_version="brain.Event:2").SerializeToString())


def file(folder: Path, *records: bytes, name: str = "events.out.tfevents.1", when: float = 1.7e9) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(begun(when) + b"".join(records))
    return path


def only(path: Path) -> Logged:
    (found,) = tensorboard.read(path)
    return found


def series(logged: Logged, name: str) -> list[tuple[int, float]]:
    points = logged.points[name]
    return list(zip(points.steps.tolist(), points.values.tolist(), strict=True))


def test_every_point_of_a_long_file_is_there(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    losses = rng.normal(size=20_000).astype(np.float32)
    losses[[17, 12_345]] = np.nan, np.inf
    path = file(tmp_path, *(event(step, loss=float(loss), lr=0.1) for step, loss in enumerate(losses)))
    found = only(path)
    assert found.points["loss"].steps.tolist() == list(range(20_000))
    np.testing.assert_array_equal(found.points["loss"].values, losses.astype(np.float64))
    assert len(found.points["lr"]) == 20_000
    assert (found.skipped, found.torn) == (0, False)


def test_windows_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        framed(Event(wall_time=1.0, step=step, summary=Summary(value=[value])).SerializeToString())
        for step in range(400)
        for value in (
            Summary.Value(tag="loss", simple_value=step / 7),
            Summary.Value(tag="a" * (step % 5), simple_value=1.0),
            Summary.Value(tag="text", tensor=TensorProto(dtype=7, string_val=[b"x" * (3000 * (step % 90 == 0))])),
        )
    ]
    path = file(tmp_path, *records)
    whole = only(path)
    monkeypatch.setattr("torchdoctor.sources.tfrecords.WINDOW", 1000)
    parts = only(path)
    assert series(parts, "loss") == series(whole, "loss") == [(s, float(np.float32(s / 7))) for s in range(400)]
    assert parts.points.keys() == whole.points.keys()
    assert (parts.skipped, parts.torn) == (0, False)


VALUES = {
    "float_val": (TensorProto(dtype=1, float_val=[1.5]), 1.5),
    "double_val": (TensorProto(dtype=2, double_val=[1.1]), 1.1),
    "int_val": (TensorProto(dtype=3, int_val=[-7]), -7.0),
    "int64_val": (TensorProto(dtype=9, int64_val=[2**40]), 2.0**40),
    "bool_val": (TensorProto(dtype=10, bool_val=[True]), 1.0),
    "half_val": (TensorProto(dtype=19, half_val=[0x3E00]), 1.5),
    "bfloat_val": (TensorProto(dtype=14, half_val=[0x3FC0]), 1.5),
    "uint32_val": (TensorProto(dtype=22, uint32_val=[9]), 9.0),
    "content_f4": (TensorProto(dtype=1, tensor_content=np.float32(2.5).tobytes()), 2.5),
    "content_f8": (TensorProto(dtype=2, tensor_content=np.float64(2.1).tobytes()), 2.1),
    "content_f2": (TensorProto(dtype=19, tensor_content=np.float16(-0.5).tobytes()), -0.5),
    "content_bf": (TensorProto(dtype=14, tensor_content=b"\xc0\x3f"), 1.5),
    "content_i8": (TensorProto(dtype=9, tensor_content=np.int64(-3).tobytes()), -3.0),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("count", [1, 50])
def test_tensors_of_one_element_are_scalars(tmp_path: Path, kind: str, count: int) -> None:
    tensor, value = VALUES[kind]
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    summary = Summary(value=[Summary.Value(tag="loss", tensor=tensor, metadata=metadata)])
    path = file(tmp_path, *(framed(Event(step=s, summary=summary).SerializeToString()) for s in range(count)))
    assert series(only(path), "loss") == [(step, value) for step in range(count)]


def test_what_is_no_scalar_is_passed_over(tmp_path: Path) -> None:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=2)])
    summary = Summary(
        value=[
            Summary.Value(tag="pair", tensor=TensorProto(dtype=1, float_val=[1.0, 2.0], tensor_shape=shape)),
            Summary.Value(tag="text", tensor=TensorProto(dtype=7, string_val=[b"loss 3"])),
            Summary.Value(tag="picture", image=Summary.Image(height=1, width=1)),
            Summary.Value(tag="loss", simple_value=2.0),
        ]
    )
    path = file(tmp_path, *(framed(Event(step=step, summary=summary).SerializeToString()) for step in range(9)))
    assert list(only(path).points) == ["loss"]


def test_a_growing_file_ends_where_it_breaks_off(tmp_path: Path) -> None:
    path = file(tmp_path, *(event(step, loss=1.0) for step in range(10)))
    whole = path.read_bytes()
    for missing in (1, 5, 20, 40):
        path.write_bytes(whole[:-missing])
        found = only(path)
        assert found.torn
        assert found.points["loss"].steps.tolist() == list(range(9))


@pytest.mark.parametrize(("place", "what"), [(14, "the data"), (3, "the length"), (9, "the checksum of the length")])
def test_a_damaged_record_costs_itself(tmp_path: Path, place: int, what: str) -> None:
    records = [event(step, loss=float(step)) for step in range(300)]
    broken = bytearray(records[200])
    broken[place] ^= 0x55
    path = file(tmp_path, *records[:200], bytes(broken), *records[201:])
    found = only(path)
    assert found.points["loss"].steps.tolist() == [*range(200), *range(201, 300)], what
    assert (found.skipped, found.first_skipped) == (1, 202)


def test_a_hostile_length_is_not_allocated(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**60)
    hostile = length + struct.pack("<I", masked(crc32c(length)))
    path = file(tmp_path, event(1, loss=1.0), hostile, event(2, loss=2.0))
    assert series(only(path), "loss") == [(1, 1.0), (2, 2.0)]
    length = struct.pack("<Q", 2**31)
    path.write_bytes(begun() + event(1, loss=1.0) + length + struct.pack("<I", masked(crc32c(length))) + bytes(100))
    found = only(path)
    assert series(found, "loss") == [(1, 1.0)] and found.torn


def test_files_of_a_folder_are_one_run_in_the_order_of_time(tmp_path: Path) -> None:
    file(tmp_path, *(event(step, loss=9.0) for step in (5, 6, 7)), name="a.tfevents", when=2e9)
    file(tmp_path, *(event(step, loss=1.0) for step in range(7)), name="b.tfevents", when=1e9)
    found = only(tmp_path)
    assert found.points["loss"].steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 5, 6, 7]
    assert found.points["loss"].values.tolist() == [1.0] * 7 + [9.0] * 3


def test_folders_below_are_runs_of_their_own(tmp_path: Path) -> None:
    for name in ("lr_0.1", "lr_0.2"):
        file(tmp_path / name, event(1, loss=1.0), event(2, loss=0.5))
    assert [run.name for run in tensorboard.read(tmp_path)] == ["lr_0.1", "lr_0.2"]
    assert not tensorboard.recognises(tmp_path) and tensorboard.recognises(tmp_path / "lr_0.1")


def test_keras_writes_train_and_validation_apart(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        file(tmp_path / split, *(event(step, epoch_loss=2.0 - step / 10) for step in range(5)))
    assert tensorboard.recognises(tmp_path)
    found = only(tmp_path)
    assert sorted(found.points) == ["train/epoch_loss", "validation/epoch_loss"]
    assert found.clock == "epoch"


def test_one_file_of_keras_is_of_the_split_of_its_folder(tmp_path: Path) -> None:
    both = [event(step, epoch_loss=2.0 - step / 10, evaluation_loss_vs_iterations=1.0) for step in range(5)]
    found = only(file(tmp_path / "validation", *both))
    assert list(found.points) == ["validation/epoch_loss"]
    assert found.clock == "epoch"
    mixed = [event(step, loss=2.0, val_loss=1.0) for step in range(5)]  # a run that is called test
    assert sorted(only(file(tmp_path / "test", *mixed)).points) == ["loss", "val_loss"]


def test_keras_by_batch_keeps_one_clock(tmp_path: Path) -> None:
    file(tmp_path / "train", *(event(s, batch_loss=2.0) for s in range(50)), event(1, epoch_loss=1.0))
    file(
        tmp_path / "validation",
        *(event(s, evaluation_loss_vs_iterations=2.0) for s in (25, 50)),
        event(1, epoch_loss=1.0),
    )
    found = only(tmp_path)
    assert sorted(found.points) == ["train/batch_loss", "validation/evaluation_loss_vs_iterations"]
    assert found.clock == "step"


def test_what_pytorch_writes_is_one_run(tmp_path: Path) -> None:
    writing = pytest.importorskip("torch.utils.tensorboard")
    with writing.SummaryWriter(str(tmp_path)) as writer:
        for step in range(30):
            writer.add_scalar("train/loss", 3.0 / (step + 1), step)
            writer.add_scalar("new", step, step, new_style=True)
            writer.add_scalar("tensor", step, step, double_precision=True, new_style=True)
            writer.add_scalars("acc", {"train": 0.5, "val": 0.25}, step)
            writer.add_histogram("weights", np.arange(10.0), step)
            writer.add_text("note", "loss 17", step)
        writer.add_hparams({"lr": 0.1, "optimizer": "sgd", "amp": True}, {"hparam/best": 0.5})
    found = only(tmp_path)
    assert sorted(found.points) == ["acc/train", "acc/val", "new", "tensor", "train/loss"]
    assert all(points.steps.tolist() == list(range(30)) for points in found.points.values())
    assert found.config == {"lr": 0.1, "optimizer": "sgd", "amp": True}
    assert found.points["train/loss"].values[0] == 3.0
    assert not found.skipped and not found.torn


def test_what_tensorboardx_writes_is_one_run(tmp_path: Path) -> None:
    file(tmp_path, event(1, lr=0.1))
    for tag in ("loss", "acc", "parts/kl"):
        for place, split in enumerate(("train", "val", "other")):
            file(tmp_path / tag / split, event(1, **{tag: place}), event(2, **{tag: place}))
    found = only(tmp_path)
    assert sorted(found.points) == sorted(
        ["lr", *(f"{tag}/{split}" for tag in ("loss", "acc", "parts/kl") for split in ("train", "val", "other"))]
    )
    assert series(found, "parts/kl/other") == [(1, 2.0), (2, 2.0)]


def test_the_arguments_of_a_trainer_are_its_configuration(tmp_path: Path) -> None:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=7, string_val=[b'{"learning_rate": 5e-05, "fp16": true}'])
    summary = Summary(value=[Summary.Value(tag="args/text_summary", tensor=tensor, metadata=metadata)])
    path = file(tmp_path, framed(Event(summary=summary).SerializeToString()), event(1, loss=1.0))
    assert only(path).config == {"learning_rate": 5e-05, "fp16": True}


def test_lightning_keeps_hyper_parameters_beside_its_events(tmp_path: Path) -> None:
    file(tmp_path / "version_0", event(1, train_loss=1.0))
    (tmp_path / "version_0" / "hparams.yaml").write_text(
        "lr: 0.001\nlayers: 4\nname: small net\nmodel: !!python/object/apply:os.system ['echo']\nsizes:\n- 1\n- 2\n"
        "optimizer:\n  class: AdamW\n  amsgrad: false\nquoted: 'a: b'\nversion: 1.2.3\n"
    )
    found = only(tmp_path / "version_0")
    assert found.config == {
        **{"lr": 0.001, "layers": 4, "name": "small net", "quoted": "a: b", "version": "1.2.3"},
        **{"optimizer/class": "AdamW", "optimizer/amsgrad": False},
    }


def test_negative_and_large_steps_are_read_as_written(tmp_path: Path) -> None:
    path = file(tmp_path, *(event(step, loss=1.0) for step in (-1, 0, 127, 128, 16_384, 2**40)))
    assert only(path).points["loss"].steps.tolist() == [-1, 0, 127, 128, 16_384, 2**40]


def test_agreement_with_tensorboards_own_reader(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    rng = np.random.default_rng(1)
    records = []
    for step in range(500):
        names = [f"layer{n}/x" for n in rng.integers(0, 90, size=3)]
        records.append(event(step * 37, **{name: float(rng.normal()) for name in names}))
    path = file(tmp_path, *records)
    expected: dict[str, list[tuple[int, float]]] = {}
    for found in EventFileLoader(str(path)).Load():
        for value in found.summary.value:
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            expected.setdefault(value.tag, []).append((found.step, number))
    logged = only(path)
    assert {name: series(logged, name) for name in logged.points} == expected


def test_real_files_have_known_ends(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.empty"
    path.write_bytes(b"")
    assert not tensorboard.recognises(path)
    path.write_bytes(b"loss: 3.0\n" * 100)
    assert not tensorboard.recognises(path)
    path.write_bytes(begun())
    assert tensorboard.recognises(path)
    assert only(path).points == {}


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "FILES_LIMIT", 2)
    for name in "abc":
        file(tmp_path / name, event(1, loss=1.0))
    with pytest.raises(SourceError, match="more than 2 event files"):
        tensorboard.read(tmp_path)


def test_checksums_of_any_length() -> None:
    assert crc32c(b"") == 0
    for size in (1, 3, 4, 5, 1023, 1024, 1025, 3000):
        data = bytes(place * 7 & 0xFF for place in range(size))
        state = 0xFFFFFFFF
        for byte in data:
            state ^= byte
            for _ in range(8):
                state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
        assert crc32c(data) == state ^ 0xFFFFFFFF


def test_a_record_longer_than_a_window_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdoctor.sources.tfrecords.WINDOW", 500)
    picture = framed(Event(summary=Summary(value=[Summary.Value(tag="x" * 5000)])).SerializeToString())
    path = file(tmp_path, event(1, loss=1.0), picture, picture, event(2, loss=2.0))
    records = RecordFile(path)
    assert sum(len(window.starts) for window in records.windows()) == 3
    assert not records.torn and not records.skipped
    assert not math.isnan(only(path).points["loss"].values.sum())
