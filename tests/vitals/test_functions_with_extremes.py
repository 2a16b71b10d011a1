"""A tanh or sigmoid that is called as a function is seen in what enters the next layer."""

from __future__ import annotations

import pytest
import torch
from tests.vitals.loops import causes_of, chart_of, classes, found, sgd, stack, watch
from torch import nn


class Squashed(nn.Module):
    """Three layers; `function` between them, behind a norm if asked."""

    def __init__(self, function, width: float | None = None, norm: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(20, 48), nn.Linear(48, 48), nn.Linear(48, 5)
        self.norm, self.function = nn.LayerNorm(48) if norm else nn.Identity(), function
        if width is not None:
            for layer in (self.a, self.b):
                nn.init.normal_(layer.weight, 0, width)

    def forward(self, x):
        h = self.function(self.norm(self.a(x)))
        return self.c(self.function(self.b(h)))


class Gated(nn.Module):
    """A gate that is shut on purpose: what comes of it enters a product, and no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.gate, self.c = nn.Linear(20, 48), nn.Linear(20, 48), nn.Linear(48, 5)
        nn.init.constant_(self.gate.bias, -8.0)

    def forward(self, x):
        h = torch.sigmoid(self.gate(x)) * x.sum(1, keepdim=True) + self.a(x)
        return self.c(h)


def trained(model, steps=30):
    torch.manual_seed(0)
    return watch(model, sgd(model, 0.05), classes(), nn.functional.cross_entropy, steps, functional=True)


@pytest.mark.parametrize("function", [torch.tanh, lambda x: x.tanh().view(-1, 48)])
def test_weights_that_are_far_too_large(function):
    doctor = trained(Squashed(function, width=3.0))
    assert found(doctor)["saturated-activations"] == "warning"
    assert causes_of(doctor, "saturated-activations")[0] == "bad-initialization"
    message = next(item.message for item in doctor.diagnose().symptoms if item.name == "saturated-activations")
    assert "tanh(a)" in message or "tanh(b)" in message


@pytest.mark.parametrize(
    "model",
    [
        Squashed(torch.tanh),
        Squashed(torch.sigmoid),
        Squashed(torch.tanh, norm=True),
        Squashed(torch.relu, width=0.2),
        Gated(),
    ],
)
def test_ordinary_ones_are_silent(model):
    assert "saturated-activations" not in found(trained(model), "info", "warning", "critical")


def test_what_is_seen_of_them():
    chart = chart_of(trained(Squashed(torch.tanh, norm=True), 6))
    assert chart.fact("modules.squashed") == {"norm": "Tanh", "b": "Tanh"}
    row = dict(zip(chart.module_names, chart.modules("act_saturated").rows[0][1].tolist(), strict=True))
    assert 0 <= row["norm"] < 0.2
    assert 0 <= row["b"] < 0.2


def test_a_module_is_measured_as_itself():
    chart = chart_of(trained(stack(20, 48, 48, 5, act=nn.Tanh), 6))
    assert chart.fact("modules.squashed") is None
    known = torch.isfinite(torch.tensor(chart.modules("act_saturated").rows[0][1])).tolist()
    assert known == [False, True, False, True, False]
