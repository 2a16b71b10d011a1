"""Checks of the data: labels in range, quality of a batch, overlap of training and validation, speed of the loader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.checks.sound import GPT, SOUND, Case, classes, status, text
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from torchdoctor.checks.checkup import checkup


def net(inputs: int = 8, outputs: int = 4, *last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs), *last)


def labelled(change: Callable[[Tensor], Tensor], outputs: int = 4, samples: int = 32) -> Case:
    x, y = classes((8,), 4, samples)
    return Case(net(8, outputs), nn.CrossEntropyLoss(), (x, change(y)))


def fed(change: Callable[[Tensor], Any], samples: int = 32, model: nn.Module | None = None) -> Case:
    x, y = classes((8,), 4, samples)
    changed = change(x)
    return Case(model or net(), nn.CrossEntropyLoss(), (x if changed is None else changed, y))


def asked(targets: Tensor, *last: nn.Module, loss: Any = None) -> Case:
    return Case(net(8, 1, *last), loss or nn.MSELoss(), (torch.randn(len(targets), 8), targets))


def put(place: Any, value: float) -> Callable[[Tensor], None]:
    def change(x: Tensor) -> None:
        x[place] = value

    return change


def with_label(x: Tensor) -> Tensor:
    return torch.cat([x[:, 1:], (torch.arange(len(x)) % 4)[:, None] * 0.5 - 1], 1)


def split(train: Any, validation: Any, loader: bool = False) -> Case:
    more = {"validation": validation}
    if loader:
        more["loader"] = DataLoader(TensorDataset(*train), 16)
    batch = tuple(part[:16] for part in train)
    if not train[0].is_floating_point():
        return Case(GPT(context=64), None, batch, None, more)
    return Case(net(train[0].shape[1]), nn.CrossEntropyLoss(), batch, None, more)


def windows(start: int, samples: int = 16, length: int = 48) -> tuple[Tensor, Tensor]:
    """Windows of one long text, as language models are fed."""
    whole = torch.randint(29, (4000,), generator=torch.Generator().manual_seed(3))
    rows = torch.stack([whole[start + 20 * row : start + 20 * row + length + 1] for row in range(samples)])
    return rows[:, :-1], rows[:, 1:]


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.01)
        return torch.ones(8), torch.tensor(index % 4)


def loaded(dataset: Any) -> Case:
    return Case(net(), nn.CrossEntropyLoss(), classes((8,), 4), None, {"loader": DataLoader(dataset, 16)})


class Masked(nn.Module):
    """A loss that leaves missing targets out."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        known = ~target.isnan()
        return functional.mse_loss(output[known], target[known])


def missing() -> Case:
    targets = torch.randn(16, 1)
    targets[3] = torch.nan
    return asked(targets, loss=Masked())


many = classes((8,), 4, 64)

BROKEN: dict[str, tuple[str, Callable[[], Case]]] = {
    "labels from 1": ("labels-in-range", lambda: labelled(lambda y: y + 1)),
    "too few outputs": ("labels-in-range", lambda: labelled(lambda y: y, outputs=3)),
    "negative label": ("labels-in-range", lambda: labelled(lambda y: torch.where(y == 3, -1, y))),
    "minus one and one": (
        "labels-in-range",
        lambda: asked(torch.ones(16, 1) - 2 * (torch.arange(16)[:, None] % 2), loss=nn.BCEWithLogitsLoss()),
    ),
    "mask of 255": (
        "labels-in-range",
        lambda: asked(255.0 * (torch.arange(16)[:, None] % 2), loss=nn.BCEWithLogitsLoss()),
    ),
    "sigmoid for any number": ("labels-in-range", lambda: asked(3 * torch.randn(16, 1), nn.Sigmoid())),
    "relu for negative numbers": ("labels-in-range", lambda: asked(torch.randn(16, 1), nn.ReLU())),
    "tanh for large numbers": ("labels-in-range", lambda: asked(5 * torch.randn(16, 1), nn.Tanh())),
    "token without a row": ("labels-in-range", lambda: Case(GPT(vocabulary=20), None, text())),
    "not a number": ("data-quality", lambda: fed(put((3, 2), torch.nan))),
    "infinite": ("data-quality", lambda: fed(put((3, 2), torch.inf))),
    "target that is missing": ("data-quality", lambda: asked(torch.full((16, 1), torch.nan))),
    "one sample again and again": ("data-quality", lambda: fed(lambda x: x[:1].repeat(32, 1))),
    "half of it copies": ("data-quality", lambda: fed(lambda x: x[:16].repeat(2, 1))),
    "equal inputs, different labels": ("data-quality", lambda: fed(lambda x: torch.cat([x[:29], x[:3]]))),
    "one class": ("data-quality", lambda: labelled(lambda y: 0 * y)),
    "nearly one class": ("data-quality", lambda: labelled(lambda y: (torch.arange(64) == 5).long(), samples=64)),
    "column that never changes": ("data-quality", lambda: fed(put((slice(None), 5), 7.5))),
    "column that is the label": ("data-quality", lambda: fed(with_label)),
    "targets are the inputs": ("data-quality", lambda: Case(GPT(), None, (text()[0], text()[0]))),
    "raw pixels": ("data-quality", lambda: fed(lambda x: 127 + 60 * x)),
    "divided by 255 twice": ("data-quality", lambda: fed(lambda x: x / 255 / 20)),
    "validation in the batch": ("train-validation-overlap", lambda: split(many, tuple(part[:8] for part in many))),
    "validation in the loader": (
        "train-validation-overlap",
        lambda: split(many, tuple(part[40:48] for part in many), loader=True),
    ),
    "windows of one text": ("train-validation-overlap", lambda: split(windows(0), windows(10))),
    "slow files": ("loader-speed", lambda: loaded(Slow())),
}

LOOK_ALIKES: dict[str, tuple[str, Callable[[], Case]]] = {
    "ignored label": ("labels-in-range", lambda: labelled(lambda y: torch.where(y == 3, -100, y))),
    "fewer classes than outputs": ("labels-in-range", lambda: labelled(lambda y: y.clamp(max=2))),
    "soft labels": ("labels-in-range", lambda: asked(torch.rand(16, 1), loss=nn.BCEWithLogitsLoss())),
    "sigmoid for shares": ("labels-in-range", lambda: asked(torch.rand(16, 1), nn.Sigmoid())),
    "relu for counts": ("labels-in-range", lambda: asked(torch.randn(16, 1).abs(), nn.ReLU())),
    "sigmoid, one outlier": (
        "labels-in-range",
        lambda: asked(torch.cat([torch.rand(39, 1), torch.tensor([[1.5]])]), nn.Sigmoid()),
    ),
    "segmentation": ("labels-in-range", SOUND["segmentation"]),
    "missing targets that are masked": ("data-quality", missing),
    "few switches": ("data-quality", SOUND["xor"]),
    "borders of images": (
        "data-quality",
        lambda: fed(lambda x: (x > 1).float() * torch.tensor([0.0, 0, 1, 1, 1, 1, 0, 0])),
    ),
    "column of ones": ("data-quality", lambda: fed(put((slice(None), 0), 1.0))),
    "one-hot columns": ("data-quality", SOUND["one-hot columns"]),
    "good feature": ("data-quality", lambda: fed(lambda x: with_label(x) + 0.05 * torch.randn(32, 8))),
    "one copy": ("data-quality", lambda: fed(lambda x: torch.cat([x[:31], x[3:4]]))),
    "few labels": ("data-quality", lambda: labelled(lambda y: 0 * y, samples=8)),
    "raw pixels behind a norm": ("data-quality", SOUND["raw images behind a norm"]),
    "shifted by the model": ("data-quality", SOUND["hugging face, labels shifted by the model"]),
    "other samples": ("train-validation-overlap", lambda: split(many, classes((8,), 4))),
    "few switches on both sides": (
        "train-validation-overlap",
        lambda: split(((many[0] > 0).float(), many[1]), ((many[0] < 0).float(), many[1])),
    ),
    "another part of the text": ("train-validation-overlap", lambda: split(windows(0), windows(2000))),
    "fast loader": ("loader-speed", lambda: loaded(TensorDataset(*classes((8,), 4, 64)))),
}


@pytest.mark.parametrize(("check", "make"), BROKEN.values(), ids=BROKEN)
def test_broken_fails(check: str, make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    assert status(check, make()) == "failed"


@pytest.mark.parametrize(("check", "make"), LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_look_alike_does_not_fail(check: str, make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    assert status(check, make()) != "failed"


def test_a_loader_that_can_be_read_once_is_left_alone() -> None:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield classes((8,), 4)

    loader = batches()
    given = checkup(
        net(),
        nn.CrossEntropyLoss(),
        classes((8,), 4),
        loader=loader,
        validation=classes((8,), 4),
        select=["loader-speed", "train-validation-overlap"],
    )
    assert given["loader-speed"].status == "skipped"
    assert len(list(loader)) == 1


def test_samples_with_two_labels_are_counted_in_whole_numbers() -> None:
    torch.manual_seed(0)
    case = BROKEN["equal inputs, different labels"][1]()
    told = checkup(case.model, case.loss_fn, case.batch, select=["data-quality"])["data-quality"].message
    assert told.split(" samples")[0].isdigit(), told
