"""Gradients and activations by layer: what is broken is named, what is sound is not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.checks.activation_statistics import activation_statistics
from torchdoctor.checks.gradient_statistics import LayerGradient, gradient_statistics, judge, recorded_gradients
from torchdoctor.clinic.patient import GPT, Recipe
from torchdoctor.errors import PatientError, SourceError
from torchdoctor.journal import Journal
from torchdoctor.journal.lines import encode

Case = tuple[nn.Module, Any, Any]


def stack(depth: int, activation: Callable[[], nn.Module], width: int = 16, gain: float | None = None) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(8, width), activation()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), activation()]
    net = nn.Sequential(*layers, nn.Linear(width, 3))
    if gain is not None:
        for layer in net:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=gain / layer.in_features**0.5)
                nn.init.zeros_(layer.bias)
    return net


def batch(classes: int = 3, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    return scale * torch.randn(128, 8), torch.randint(classes, (128,))


class Functional(nn.Module):
    """Activations that are called as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(functional.relu(self.first(x)))
        return out


class Residual(nn.Module):
    """Blocks of which each begins as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(6))
        self.scales = nn.ParameterList(torch.full((8,), 1e-4) for _ in range(6))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = x + scale * block(x)
        out: Tensor = self.head(x)
        return out


class Detached(Functional):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(functional.relu(self.first(x)).detach())
        return out


def gpt() -> Case:
    tokens = torch.randint(0, 40, (8, 16))
    return GPT(Recipe(layers=4, heads=2, width=32, context=16, dropout=0.1), 40), None, (tokens, tokens.roll(-1, 1))


def cnn() -> Case:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(8 * 64, 10))
    return net, nn.CrossEntropyLoss(), (torch.randn(32, 1, 12, 12), torch.randint(10, (32,)))


def dead() -> nn.Module:
    net = stack(1, nn.ReLU, 32)
    nn.init.constant_(net[2].bias, -50.0)
    return net


def huge_loss() -> Case:
    return stack(2, nn.ReLU), lambda out, y: functional.cross_entropy(out, y, reduction="sum"), batch()


SOUND: dict[str, Callable[[], Case]] = {
    "mlp": lambda: (stack(2, nn.ReLU), nn.CrossEntropyLoss(), batch()),
    "deep, He": lambda: (stack(12, nn.ReLU, gain=2**0.5), nn.CrossEntropyLoss(), batch()),
    "tanh, Xavier": lambda: (stack(6, nn.Tanh, gain=1.0), nn.CrossEntropyLoss(), batch()),
    "functional": lambda: (Functional(), nn.CrossEntropyLoss(), batch()),
    "residual with LayerScale": lambda: (Residual(), nn.CrossEntropyLoss(), batch()),
    "cnn": cnn,
    "gpt": gpt,
    "summed loss": huge_loss,
    "regression": lambda: (nn.Linear(8, 1), nn.MSELoss(), (torch.randn(64, 8), 5 * torch.randn(64, 1))),
    "half": lambda: (
        stack(2, nn.ReLU).bfloat16(),
        nn.CrossEntropyLoss(),
        (torch.randn(64, 8).bfloat16(), batch()[1][:64]),
    ),
}

BROKEN_GRADIENTS: dict[str, tuple[str, Callable[[], Case]]] = {
    "sigmoid tower": ("gradient-vanishing", lambda: (stack(10, nn.Sigmoid), nn.CrossEntropyLoss(), batch())),
    "weights too large": ("gradient-explosion", lambda: (stack(8, nn.ReLU, gain=8.0), nn.CrossEntropyLoss(), batch())),
    "cut graph": ("no-gradient", lambda: (Detached(), nn.CrossEntropyLoss(), batch())),
    "dead layer": ("no-gradient", lambda: (dead(), nn.CrossEntropyLoss(), batch())),
    "NaN in the batch": ("nan-or-inf", lambda: (Functional(), nn.CrossEntropyLoss(), batch(scale=math.nan))),
    "square root at zero": (
        "nan-or-inf",
        lambda: (nn.Linear(8, 3), lambda out, y: (out - out).pow(2).sum().sqrt(), batch()),
    ),
}

BROKEN_ACTIVATIONS: dict[str, tuple[str, Callable[[], Case]]] = {
    "dead layer": ("dead-units", lambda: (dead(), None, batch())),
    "saturated": ("saturated-activations", lambda: (stack(2, nn.Tanh, gain=9.0), None, batch(scale=9.0))),
    "grows through depth": ("activation-explosion", lambda: (stack(8, nn.ReLU, gain=6.0), None, batch())),
    "fades through depth": ("gradient-vanishing", lambda: (stack(8, nn.ReLU, gain=0.3), None, batch())),
    "NaN": ("nan-or-inf", lambda: (Functional(), None, batch(scale=math.nan))),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_models_get_no_warning(name: str) -> None:
    torch.manual_seed(0)
    model, loss_fn, data = SOUND[name]()
    gradients, activations = gradient_statistics(model, loss_fn, data), activation_statistics(model, data)
    assert gradients.severity in (None, "info"), gradients.verdict
    assert activations.severity in (None, "info"), activations.verdict
    assert gradients.missing == () and gradients.layers and activations.layers


@pytest.mark.parametrize("name", BROKEN_GRADIENTS)
def test_broken_gradients_are_named(name: str) -> None:
    torch.manual_seed(0)
    wanted, build = BROKEN_GRADIENTS[name]
    found = gradient_statistics(*build())
    named = {remark.name for remark in found.remarks if remark.severity != "info"}
    assert wanted in named and found.severity != "info", found.verdict


@pytest.mark.parametrize("name", BROKEN_ACTIVATIONS)
def test_broken_activations_are_named(name: str) -> None:
    torch.manual_seed(0)
    wanted, build = BROKEN_ACTIVATIONS[name]
    model, _, data = build()
    found = activation_statistics(model, data)
    assert wanted in {remark.name for remark in found.remarks if remark.severity != "info"}, found.verdict


def test_the_numbers_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    model, (x, y) = stack(1, nn.ReLU), batch()
    found = {layer.name: layer for layer in gradient_statistics(model, nn.CrossEntropyLoss(), (x, y)).layers}
    nn.CrossEntropyLoss()(model(x), y).backward()
    for name, parameter in model.named_parameters():
        grad, layer = parameter.grad, found[name]
        assert grad is not None
        for value, wanted in ((layer.norm, grad.norm()), (layer.mean, grad.mean()), (layer.std, grad.std())):
            assert value == pytest.approx(float(wanted), rel=1e-5, abs=1e-9)
        assert (layer.max, layer.min) == pytest.approx((float(grad.max()), float(grad.min())))
        assert (layer.zeros, layer.size) == (int((grad == 0).sum()), grad.numel())


def test_several_batches_are_averaged() -> None:
    torch.manual_seed(0)
    model, first, second = nn.Linear(8, 3), batch(), batch()
    both = tuple(torch.cat(pair) for pair in zip(first, second, strict=True))
    one, two = (gradient_statistics(model, nn.CrossEntropyLoss(), data) for data in ([first, second], both))
    assert one.batches == 2
    assert [layer.norm for layer in one.layers] == pytest.approx([layer.norm for layer in two.layers], rel=1e-5)


def test_activations_are_counted_exactly() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    net[0].weight.data = torch.tensor([[1.0, 0.0], [-1.0, -1.0]])
    found = {
        layer.name: layer
        for layer in activation_statistics(net, [(torch.rand(64, 2) + 1,), (torch.rand(64, 2),)]).layers
    }
    assert found["1"].dead == 0.5 and found["1"].zeros == 0.5 and found["2"].is_output and not found["1"].is_output
    assert found["0"].mean == pytest.approx((1.0 - 2.0) / 2, abs=0.1)


def test_nothing_is_changed() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    net[0].weight.grad = torch.ones(4, 8)
    before, random = {name: item.clone() for name, item in net.state_dict().items()}, torch.get_rng_state()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*fixed()), batch_size=32, shuffle=True)
    for data in (fixed(), loader):
        gradient_statistics(net, nn.CrossEntropyLoss(), data)
        activation_statistics(net, data)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(item, before[name]) for name, item in net.state_dict().items())
    assert not net.training and torch.equal(net[0].weight.grad, torch.ones(4, 8)) and net[3].weight.grad is None
    assert not any(module._forward_hooks for module in net.modules())


def fixed() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(128, 8, generator=generator), torch.randint(3, (128,), generator=generator)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(PatientError, match="no data"):
        gradient_statistics(nn.Linear(2, 2), nn.MSELoss(), None)
    with pytest.raises(PatientError, match="does not run"):
        activation_statistics(nn.Linear(2, 2), torch.zeros(3, 5))
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(PatientError):
        gradient_statistics(frozen, nn.MSELoss(), (torch.zeros(3, 2), torch.zeros(3, 2)))


def test_it_is_plain_data(tmp_path: Path) -> None:
    model, loss_fn, data = gpt()
    for found in (gradient_statistics(model, loss_fn, data), activation_statistics(model, data)):
        json.loads(encode(found.to_dict()), parse_constant=pytest.fail)
        page = found.save(tmp_path / "page.html").read_text(encoding="utf-8")
        assert "<svg" in page and "<script" not in page


def test_recorded_gradients_need_no_model(tmp_path: Path) -> None:
    names = [f"layers.{index}.weight" for index in range(8)]
    with Journal(tmp_path / "run", {"type": "header", "schema": 1, "context": {}, "tensors": names}) as journal:
        journal.write({"type": "tensors", "step": 0, "vitals": {"grad_norm": [10.0**index for index in range(-7, 1)]}})
        journal.write({"type": "vitals", "step": 0, "vitals": {"loss": 2.0, "grad_norm": 1.0}})
    found = recorded_gradients(tmp_path / "run", {"w": torch.tensor([math.nan])})
    assert [remark.name for remark in found.remarks] == ["nan-or-inf", "gradient-vanishing"]
    page = found.save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "norm" in page and "exact zeros" not in page and "largest element" not in page  # nobody has counted them
    with Journal(tmp_path / "bare", {"type": "header", "schema": 1, "context": {}}) as journal:
        journal.write({"type": "vitals", "step": 0, "vitals": {"loss": 2.0}})
    with pytest.raises(SourceError, match="no gradients by layer"):
        recorded_gradients(tmp_path / "bare")


def test_a_large_norm_is_told_whatever_the_loss() -> None:
    """A mean in the hundreds is no sum: only whoever made the loss knows."""
    layers = [LayerGradient(name, 600.0, 0.0, 1.0, 1.0, -1.0, 0, 9) for name in ("a.weight", "b.weight")]
    told = [(item.severity, item.message) for loss in (1.0, 250.0, math.nan) for item in judge(layers, loss=loss)]
    assert told == [
        ("warning", "the gradient of a.weight has norm 600 at a loss of 1"),
        ("info", "the gradient of a.weight has norm 600 at a loss of 250"),
        ("warning", "the gradient of a.weight has norm 600"),
    ]
    assert judge([replace(layers[0], norm=99.0)]) == []
