"""What is named on the command line is loaded, and nothing in a file is ever run."""

from __future__ import annotations

import io
import pickle
import random
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from torchdoctor.checks import checkpoints, files, loading
from torchdoctor.checks.files import read_tensors
from torchdoctor.errors import PatientError

FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 2)
    def forward(self, x):
        return self.layer(x)

def everything():
    model = Net()
    return model, nn.MSELoss(), (torch.zeros(3, 4), torch.zeros(3, 2)), torch.optim.SGD(model.parameters(), lr=0.1)

def by_name():
    return {"model": Net(), "loader": [(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))] * 2}

def wrong():
    return 3

def raises():
    raise RuntimeError("no disk")

def leaves():
    raise SystemExit(0)

def batches():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8, 4), torch.zeros(8)), batch_size=4)

def dataset():
    return torch.utils.data.TensorDataset(torch.zeros(40, 4), torch.zeros(40))

def own_loss(outputs, targets):
    return (outputs - targets).abs().mean()

instance = Net()
"""


class Evil:
    """Runs something when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "zoo_of_nets.py").write_text(FACTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "zoo_of_nets", raising=False)
    return tmp_path


# Names


@pytest.mark.parametrize("name", ["zoo_of_nets:Net", "zoo_of_nets.py:Net", "zoo_of_nets:instance"])
def test_a_model_is_found_by_module_by_file_and_as_it_is(here: Path, name: str) -> None:
    material = loading.made_by(name)
    assert isinstance(material.model, nn.Module) and material.loss_fn is None and material.batch is None


def test_arguments_reach_the_factory(here: Path) -> None:
    model: Any = loading.made_by("zoo_of_nets:Net", ["width=7"]).model
    assert model.layer.in_features == 7


def test_a_factory_may_return_everything(here: Path) -> None:
    material = loading.load("zoo_of_nets:everything")
    assert isinstance(material.loss_fn, nn.MSELoss) and isinstance(material.optimizer, torch.optim.SGD)
    assert material.batch[0].shape == (3, 4) and material.loader is None and not material.notes


def test_a_factory_may_return_a_mapping_with_a_loader(here: Path) -> None:
    material = loading.load("zoo_of_nets:by_name")
    assert len(list(material.batches)) == 2 and isinstance(material.loss_fn, nn.CrossEntropyLoss)
    assert "CrossEntropyLoss was chosen" in material.notes[0]


WRONG_NAMES = {
    "zoo_of_nets": "is not a valid name",
    "zoo_of_nets:": "is not a valid name",
    "zoo_of_nets:Nett": "Did you mean 'Net'",
    "no_such_module:Net": "No module named 'no_such_module'. Run this from the folder that contains it",
    "missing.py:Net": "does not exist",
    "zoo_of_nets:wrong": "returned int",
    "zoo_of_nets:raises": "RuntimeError: no disk (zoo_of_nets.py, line",
    "zoo_of_nets:leaves": "SystemExit: 0 (zoo_of_nets.py, line",
}


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_wrong_name_is_explained(here: Path, name: str) -> None:
    with pytest.raises(PatientError) as raised:
        loading.made_by(name)
    assert WRONG_NAMES[name] in str(raised.value)


def test_wrong_arguments_are_explained(here: Path) -> None:
    with pytest.raises(PatientError, match="unexpected keyword"):
        loading.made_by("zoo_of_nets:Net", ["depth=7"])
    with pytest.raises(PatientError, match="expected key=value"):
        loading.keyword_arguments(["width"])
    with pytest.raises(PatientError, match="no model was named"):
        loading.load()
    with pytest.raises(PatientError, match="there is no data"):
        loading.load("zoo_of_nets:Net")


@pytest.mark.parametrize(
    ("name", "kind"),
    {
        "cross-entropy": "CrossEntropyLoss",
        "CrossEntropyLoss": "CrossEntropyLoss",
        "mse": "MSELoss",
        "mae": "L1Loss",
        "bce_with_logits": "BCEWithLogitsLoss",
        "kl-div": "KLDivLoss",
        "nll": "NLLLoss",
        "torch.nn:HuberLoss": "HuberLoss",
    }.items(),
)
def test_losses_have_names(name: str, kind: str) -> None:
    assert type(loading.load_loss(name)).__name__ == kind


def test_a_loss_may_be_a_function_and_a_misspelt_one_gets_the_nearest(here: Path) -> None:
    assert loading.load_loss("zoo_of_nets:own_loss")(torch.ones(2), torch.zeros(2)) == 1
    with pytest.raises(PatientError, match="Did you mean 'cross-entropy'"):
        loading.load_loss("crossentropy")


# Data


def test_data_comes_in_many_forms(here: Path) -> None:
    x, y = torch.arange(12.0).view(3, 4), torch.tensor([0, 1, 0])
    torch.save((x, y), "pair.pt")
    torch.save([x, y], "list.pt")
    torch.save({"inputs": x, "labels": y}, "dict.pt")
    torch.save([(x, y), (x, y)], "batches.pt")
    save_file({"x": x, "y": y}, "data.safetensors")
    np.savez("data.npz", x=x.numpy(), y=y.numpy())
    np.savez_compressed("packed.npz", x=x.numpy(), y=y.numpy())
    (here / "val_loader").write_bytes(Path("pair.pt").read_bytes())
    for name in ("pair.pt", "list.pt", "dict.pt", "batches.pt", "data.safetensors", "data.npz", "packed.npz"):
        (inputs, targets), loader = loading.load_data(name)
        assert torch.equal(inputs, x) and torch.equal(targets, y), name
        assert (loader is not None) == (name == "batches.pt")
    assert torch.equal(loading.load_data("val_loader")[0][0], x)
    for name in ("zoo_of_nets:batches", "zoo_of_nets:dataset"):
        (inputs, _), loader = loading.load_data(name)
        assert inputs.shape == (4 if name.endswith("batches") else 32, 4) and len(list(loader)) == 2


def test_a_dict_for_a_hugging_face_model_stays_one(here: Path) -> None:
    torch.save({"input_ids": torch.zeros(2, 3).long(), "labels": torch.zeros(2, 3).long()}, "batch.pt")
    batch, _ = loading.load_data("batch.pt")
    assert set(batch) == {"input_ids", "labels"}
    torch.save(torch.zeros(2, 3), "inputs.pt")
    assert loading.load_data("inputs.pt")[0][1] is None


def test_data_that_holds_no_batch_is_refused(here: Path) -> None:
    torch.save({"epoch": 3}, "numbers.pt")
    torch.save("text", "text.pt")
    torch.save([], "nothing.pt")
    for name in ("numbers.pt", "text.pt", "nothing.pt", "absent.pt"):
        with pytest.raises(PatientError):
            loading.load_data(name)


# Checkpoints


@pytest.mark.parametrize("nest", [None, "state_dict", "model", "model_state_dict"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_weights_are_found_wherever_they_are_kept(here: Path, nest: str | None, prefix: str) -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    weights: Any = {prefix + name: torch.rand_like(item.float()) for name, item in net.state_dict().items()}
    torch.save({nest: weights, "epoch": 3} if nest else weights, "weights.pt")
    checkpoints.fill(net, "weights.pt")
    assert torch.equal(net.state_dict()["0.weight"], weights[prefix + "0.weight"])


def test_safetensors_hold_weights_too(here: Path) -> None:
    save_file({"weight": torch.full((2, 3), 7.0), "bias": torch.zeros(2)}, "weights.safetensors")
    layer = nn.Linear(3, 2)
    checkpoints.fill(layer, "weights.safetensors")
    assert (layer.weight == 7).all()


def test_what_differs_is_a_table_and_the_model_stays_as_it_was(here: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    before = {name: item.clone() for name, item in model.state_dict().items()}
    torch.save({"0.weight": torch.zeros(2, 5), "0.bias": torch.zeros(2), "head\x1b[2J.scale": torch.zeros(1)}, "w.pt")
    with pytest.raises(checkpoints.MismatchError) as raised:
        checkpoints.fill(model, "w.pt")
    lines = str(raised.value).splitlines()
    assert "4 differ" in lines[0] and lines[1].split() == ["name", "in", "the", "file", "in", "the", "model"]
    assert [line.split()[0] for line in lines[2:6]] == ["0.weight", "1.weight", "1.bias", "head.scale"]
    assert "(2, 5)" in lines[2] and "(2, 3)" in lines[2] and "missing" in lines[3]
    assert all(torch.equal(item, before[name]) for name, item in model.state_dict().items())


def test_weights_without_a_model_say_what_is_missing(here: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), "w.pt")
    with pytest.raises(PatientError, match="Give --model"):
        loading.load(checkpoint="w.pt")


# Safety


def evil(path: Path) -> Path:
    mark = path.parent / "executed"
    torch.save({"weight": Evil(mark)}, path)
    return mark


def test_a_pickle_is_never_run(here: Path) -> None:
    mark = evil(here / "model.pt")
    for suffix in (".pt", ".safetensors", ".npz", ""):
        copy = here / f"copy{suffix}"
        copy.write_bytes((here / "model.pt").read_bytes())
        with pytest.raises(PatientError):
            read_tensors(copy)
    with pytest.raises(PatientError, match="--trust-pickle"):
        loading.load(checkpoint="model.pt")
    (here / "plain.pkl").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(PatientError, match="neither a zip archive"):
        read_tensors(here / "plain.pkl")
    torch.save({"weight": Evil(mark)}, "legacy.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(PatientError, match="neither a zip archive"):
        read_tensors(here / "legacy.pt")
    np.savez("objects.npz", x=np.array([Evil(mark)], dtype=object))
    with pytest.raises(PatientError, match="Python objects"):
        read_tensors(here / "objects.npz")
    assert not mark.exists()
    read_tensors(here / "model.pt", trust_pickle=True)
    assert mark.exists()


@pytest.mark.parametrize(
    "things",
    [
        (np.ones((4, 3)), np.zeros(4, dtype=np.int64)),
        [(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))],
        {"x": np.ones((4, 3)), "y": np.zeros(4, dtype=np.int64)},
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 3), torch.zeros(4).long()), 4),
    ],
    ids=["arrays", "batches", "named arrays", "loader"],
)
def test_a_trusted_pickle_of_data(here: Path, things: Any) -> None:
    (here / "data.pkl").write_bytes(pickle.dumps(things))
    (inputs, targets), _ = loading.load_data("data.pkl", trust_pickle=True)
    assert inputs.shape == (4, 3) and inputs.dtype is torch.float32
    assert targets.dtype is torch.long


def test_doubles_of_numpy_fit_a_model(here: Path) -> None:
    np.savez("sample.npz", x=np.ones((4, 3)), y=np.zeros(4))
    (inputs, targets), _ = loading.load_data("sample.npz")
    assert inputs.dtype is targets.dtype is torch.float32


def test_a_whole_model_needs_trust(here: Path) -> None:
    torch.save(nn.Linear(3, 2), "model.pt")
    torch.save((torch.zeros(4, 3), torch.zeros(4).long()), "sample.pt")
    with pytest.raises(PatientError, match=r"state_dict.*--trust-pickle.*any code"):
        loading.load(checkpoint="model.pt", data="sample.pt")
    material = loading.load(checkpoint="model.pt", data="sample.pt", trust_pickle=True)
    assert isinstance(material.model, nn.Linear)
    torch.save([1, 2], "list.pt")
    with pytest.raises(PatientError, match="not a model"):
        loading.load(checkpoint="list.pt", data="sample.pt", trust_pickle=True)


def test_a_tiny_file_that_claims_a_huge_tensor_is_refused(here: Path) -> None:
    torch.save(torch.zeros(1).expand(10**12), "huge.pt")
    assert (here / "huge.pt").stat().st_size < 5000
    with pytest.raises(PatientError, match="stride 0"):
        read_tensors(here / "huge.pt")
    torch.save({"deep": [{"x": torch.zeros(3, 1).expand(3, 10**9)}]}, "nested.pt")
    with pytest.raises(PatientError, match="stride 0"):
        checkpoints.fill(nn.Linear(1, 1), "nested.pt")


def test_many_views_of_one_storage_are_refused(here: Path) -> None:
    base = torch.zeros(2**20)
    torch.save([base[:] for _ in range(64)], "views.pt")
    with pytest.raises(PatientError, match="tensors claim"):
        read_tensors(here / "views.pt")
    torch.save({"tied": base, "head": base}, "tied.pt")
    assert len(read_tensors(here / "tied.pt")) == 2


def repacked(path: Path, **changes: Any) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w", changes.get("packing", zipfile.ZIP_STORED)) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
        for name in changes.get("extra", ()):
            new.writestr(name, b"x")
    return made.getvalue()


ARCHIVES = {
    "packed": {"packing": zipfile.ZIP_DEFLATED},
    "leads out": {"extra": ["../../outside"]},
    "absolute": {"extra": ["/etc/thing"]},
    "a program": {"extra": ["archive/constants.pkl"]},
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_an_odd_archive_is_refused_before_it_is_read(here: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch.zeros(10**5), "w.pt")
    (here / "odd.pt").write_bytes(repacked(here / "w.pt", **ARCHIVES[case]))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(PatientError):
        read_tensors(here / "odd.pt")


def test_an_archive_that_claims_more_than_it_has_is_refused(here: Path) -> None:
    made = bytearray(repacked_sizes(here))
    with pytest.raises(PatientError, match="claims to hold more|damaged"):
        files.check_archive(io.BytesIO(bytes(made)), "w.pt")


def repacked_sizes(here: Path) -> bytes:
    """The directory at the end of the archive names a size of a billion bytes for its first entry."""
    torch.save(torch.zeros(4), "w.pt")
    content = bytearray((here / "w.pt").read_bytes())
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = (10**9).to_bytes(4, "little")
    return bytes(content)


def test_sparse_tensors_and_endless_nesting_are_refused(here: Path) -> None:
    torch.save(torch.eye(3).to_sparse(), "sparse.pt")
    deep: Any = torch.zeros(1)
    for _ in range(40):
        deep = [deep]
    torch.save(deep, "deep.pt")
    for name in ("sparse.pt", "deep.pt"):
        with pytest.raises(PatientError):
            read_tensors(here / name)


def test_an_array_that_claims_more_than_it_has_is_refused(here: Path) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile("huge.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue() + b"\0" * 16)
    with pytest.raises(PatientError, match="more than it has"):
        read_tensors(here / "huge.npz")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".npz", ".txt"])
@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"PK\x03\x04" + b"\xff" * 100, b"\x80\x04", b"\xff" * 8 + b"{"]
)
def test_a_damaged_file_is_one_sentence(here: Path, suffix: str, content: bytes) -> None:
    place = here / f"damaged{suffix}"
    place.write_bytes(content)
    with pytest.raises(PatientError):
        read_tensors(place)


def test_a_truncated_checkpoint_is_one_sentence(here: Path) -> None:
    torch.save(nn.Linear(30, 20).state_dict(), "w.pt")
    whole = (here / "w.pt").read_bytes()
    for length in range(0, len(whole), 97):
        (here / "cut.pt").write_bytes(whole[:length])
        with pytest.raises(PatientError):
            read_tensors(here / "cut.pt")


def test_an_old_torch_is_not_trusted_with_files_of_others(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch.zeros(1), "w.pt")
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(PatientError, match="known holes"):
        read_tensors(here / "w.pt")


def test_mutated_files_are_read_or_refused_and_nothing_else(here: Path) -> None:
    torch.save({"model": nn.Linear(5, 7).state_dict(), "x": [(torch.zeros(3), torch.ones(2))]}, "a.pt")
    save_file({"x": torch.zeros(3, 4)}, "a.safetensors")
    np.savez("a.npz", x=np.zeros((3, 4), np.float32))
    np.savez_compressed("b.npz", x=np.zeros((3, 4), np.float32))
    draw = random.Random(0)
    for name in ("a.pt", "a.safetensors", "a.npz", "b.npz"):
        whole = (here / name).read_bytes()
        for _ in range(150):
            content = bytearray(whole)
            for _ in range(draw.choice((1, 2, 20))):
                content[draw.randrange(len(content))] = draw.randrange(256)
            (here / f"mutant-{name}").write_bytes(bytes(content))
            with suppress(PatientError):
                read_tensors(here / f"mutant-{name}")


@pytest.mark.parametrize(("content", "told"), [(b"", "is empty"), (b"\x00\x01random", "Known formats")])
def test_a_file_that_is_no_checkpoint_is_not_taken_for_a_pickle(tmp_path: Path, content: bytes, told: str) -> None:
    place = tmp_path / "sample.pt"
    place.write_bytes(content)
    with pytest.raises(PatientError, match=told) as raised:
        read_tensors(place)
    assert "trust-pickle" not in str(raised.value)
