"""Checks of what the optimizer holds, what decays, and which parameters take part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.checks.sound import GPT, SOUND, Case, classes, status, text
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from torchdoctor.checks.checkup import checkup


class Net(nn.Module):
    """Four layers with a norm, and one that runs if asked to."""

    def __init__(self, *, extra: bool = False, runs: bool = False, listed: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)
        self.middle: Any = [nn.Linear(16, 16)] if listed else nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        self.extra = nn.Linear(16, 16) if extra else None
        self.runs = runs

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        for layer in self.middle:
            x = x + layer(x).relu()
        if self.extra is not None and self.runs and self.training and torch.rand(()) < 0.5:
            x = x + self.extra(x)
        return self.last(x)


def held(build: Callable[[Any], Any], model: nn.Module | None = None, change: Any = None) -> Case:
    model = Net() if model is None else model
    optimizer = build(model)
    if change is not None:
        change(model)
    return Case(model, nn.CrossEntropyLoss(), classes((8,), 4), optimizer)


def twice(model: nn.Module) -> Any:
    parameters = list(model.parameters())
    with pytest.warns(UserWarning):
        return SGD([*parameters, parameters[0]], lr=0.1)


def replace_last(model: Any) -> None:
    model.last = nn.Linear(16, 4)


def frozen(*names: str) -> nn.Module:
    model = Net()
    for name in names:
        model.get_submodule(name).requires_grad_(False)
    return model


def grouped(model: nn.Module) -> Any:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])


def everything(model: nn.Module) -> Any:
    return Adam(model.parameters())


class MadeOnTheWay(Net):
    """A head that is another one in each pass."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear(4, 4)(super().forward(x))


def perceptual() -> Case:
    """A loss that compares by a net of its own, which nobody has frozen."""
    judge = nn.Linear(4, 8)
    case = held(everything)
    case.loss_fn = lambda out, y: (judge(out) - judge(nn.functional.one_hot(y, 4).float())).square().mean()
    return case


BROKEN: dict[str, tuple[str, Callable[[], Case]]] = {
    "layer made in forward": ("optimizer-coverage", lambda: held(everything, MadeOnTheWay())),
    "only the head": ("optimizer-coverage", lambda: held(lambda m: SGD(m.last.parameters(), lr=0.1))),
    "one bias forgotten": ("optimizer-coverage", lambda: held(lambda m: SGD(list(m.parameters())[:-1], lr=0.1))),
    "held twice": ("optimizer-coverage", lambda: held(twice)),
    "two optimizers for one layer": (
        "optimizer-coverage",
        lambda: held(lambda m: [Adam(m.parameters()), SGD(m.last.parameters(), lr=0.1)]),
    ),
    "layer replaced afterwards": ("optimizer-coverage", lambda: held(everything, change=replace_last)),
    "layers in a list": ("optimizer-coverage", lambda: held(everything, Net(listed=True))),
    "layers in a list, no optimizer": (
        "optimizer-coverage",
        lambda: Case(Net(listed=True), nn.CrossEntropyLoss(), classes((8,), 4)),
    ),
    "everything frozen": ("optimizer-coverage", lambda: held(everything, Net().requires_grad_(False))),
    "frozen in the middle": ("optimizer-coverage", lambda: held(everything, frozen("middle.1"))),
    "frozen head": ("optimizer-coverage", lambda: held(everything, frozen("last"))),
    "decay of 0.1 on everything": (
        "decay-on-norms-and-biases",
        lambda: held(lambda m: AdamW(m.parameters(), weight_decay=0.1)),
    ),
    "strong decay in sgd": (
        "decay-on-norms-and-biases",
        lambda: held(lambda m: SGD(m.parameters(), lr=0.1, weight_decay=0.01)),
    ),
    "layer that never runs": ("unused-parameters", lambda: held(everything, Net(extra=True))),
    "embedding that is not used": ("unused-parameters", lambda: Case(Unused(), None, text())),
}

LOOK_ALIKES: dict[str, tuple[str, Callable[[], Case]]] = {
    "all of it": ("optimizer-coverage", lambda: held(everything)),
    "a net in the loss": ("optimizer-coverage", perceptual),
    "frozen first layer": ("optimizer-coverage", lambda: held(everything, frozen("first", "norm"))),
    "frozen and not held": (
        "optimizer-coverage",
        lambda: held(lambda m: Adam(p for p in m.parameters() if p.requires_grad), frozen("first", "norm")),
    ),
    "adapters": ("optimizer-coverage", SOUND["lora"]),
    "tied": ("optimizer-coverage", SOUND["nanoGPT"]),
    "loss with a parameter": ("optimizer-coverage", SOUND["loss with a parameter"]),
    "two players": ("optimizer-coverage", SOUND["gan"]),
    "layer that never runs is no gap": (
        "optimizer-coverage",
        lambda: held(lambda m: Adam([p for n, p in m.named_parameters() if "extra" not in n]), Net(extra=True)),
    ),
    "mild decay": ("decay-on-norms-and-biases", lambda: held(lambda m: AdamW(m.parameters()))),
    "usual recipe of sgd": (
        "decay-on-norms-and-biases",
        lambda: held(lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)),
    ),
    "two groups": ("decay-on-norms-and-biases", lambda: held(grouped)),
    "runs now and then": ("unused-parameters", lambda: held(everything, Net(extra=True, runs=True))),
    "frozen and unused": ("unused-parameters", lambda: held(everything, _frozen_extra())),
    "zero gradients": ("unused-parameters", SOUND["head that begins at zero"]),
}


class Unused(GPT):
    def __init__(self) -> None:
        super().__init__()
        self.type = nn.Embedding(2, 32)


def _frozen_extra() -> nn.Module:
    model = Net(extra=True)
    model.extra.requires_grad_(False)  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize(("check", "make"), BROKEN.values(), ids=BROKEN)
def test_broken_fails(check: str, make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    assert status(check, make()) == "failed"


@pytest.mark.parametrize(("check", "make"), LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_look_alike_does_not_fail(check: str, make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    assert status(check, make()) != "failed"


def test_says_what_is_missing() -> None:
    model = Net()
    optimizer = SGD(model.last.parameters(), lr=0.1)
    result = checkup(model, nn.CrossEntropyLoss(), classes((8,), 4), optimizer, select=["CK14"])["optimizer-coverage"]
    assert result.where[0] == "first.weight" and len(result.where) == 8 and "8 of 10" in result.message
