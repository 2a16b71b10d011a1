"""The curvature gauge: right on a parabola, off unless asked for, and without a trace."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from torchdoctor.doctor import Doctor
from torchdoctor.errors import SettingsError

ALWAYS = {"quiet": True, "curvature": 1.0, "sample_every": 3}


def chart_of(doctor: Doctor):
    doctor.detach()
    return doctor._examination.chart


@pytest.mark.parametrize("lr", [0.05, 1.0])
def test_along_a_step_of_gradient_descent_it_is_rate_times_sharpness(lr):
    torch.manual_seed(0)
    model, loss_fn = nn.Linear(6, 1, bias=False), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x = torch.randn(64, 6)
    y = x.sum(1, keepdim=True)
    hessian = 2 / 64 * x.T @ x
    doctor = Doctor(model, optimizer, loss_fn=loss_fn, settings=ALWAYS)
    sharpness = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        gradient = model.weight.grad.flatten()
        sharpness.append(float(gradient @ hessian @ gradient / gradient.square().sum()))
        optimizer.step()
        doctor.log_loss(loss)
    chart = chart_of(doctor)
    looks = chart["curvature"].steps.tolist()
    assert looks
    assert chart["curvature"].values == pytest.approx([sharpness[step] for step in looks], rel=1e-3)
    assert chart["step_curvature"].values == pytest.approx([lr * sharpness[step] for step in looks], rel=1e-3)


class Odd(nn.Module):
    """Drops out, normalizes by the batch, counts its passes, and remembers its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4))
        self.passes, self.last = 0, torch.zeros(4)

    def forward(self, x, scale=1.0):
        self.passes += 1
        out = self.layers(x * scale * (1 + 0.01 * random.random() + 0.01 * np.random.rand())) + 0.1 * self.last
        self.last = out.detach().mean(0)
        return out


def run(settings) -> tuple:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model, loss_fn = Odd(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = None if settings is None else Doctor(model, optimizer, loss_fn=loss_fn, settings=settings)
    gradients = []
    for _ in range(20):
        loss = loss_fn(model(torch.randn(8, 6), scale=0.5).view(-1, 4), torch.randint(0, 4, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gradients.append(model.layers[0].weight.grad.clone())
        if doctor:
            doctor.log_loss(loss)
    states = model.state_dict(), optimizer.state_dict()["state"][0], torch.get_rng_state()
    return *copy.deepcopy(states), torch.stack(gradients), model.last, (model.passes, random.random()), doctor


def test_it_leaves_no_trace():
    plain, watched = run(None), run(ALWAYS)
    looked = chart_of(watched[-1])
    assert looked["curvature"].count > 2, looked.facts
    for key, value in plain[0].items():
        assert torch.equal(value, watched[0][key]), key
    for key, value in plain[1].items():
        assert torch.equal(value, watched[1][key]), key
    assert all(torch.equal(plain[place], watched[place]) for place in (2, 3, 4))
    assert plain[5] == watched[5]


def test_it_is_off_unless_asked_for():
    assert not chart_of(run({"quiet": True})[-1])["curvature"]
    with pytest.raises(SettingsError, match="curvature"):
        Doctor(nn.Linear(1, 1), None, settings={"curvature": -1})


def test_it_keeps_to_its_share():
    chart = chart_of(run(ALWAYS | {"curvature": 0.25})[-1])
    assert chart.fact("curvature.every") == 10
    assert np.diff(chart["curvature"].steps).min() >= 10


def hooked(model):
    model.register_forward_hook(lambda *args: None)


OBSTACLES = {
    "no loss": (lambda model: None, False, "loss_fn"),
    "a hook of the user's": (hooked, True, "hooks"),
    "a tensor with a graph": (lambda model: setattr(model, "kept", model.weight * 2), True, "deepcopy"),
}


@pytest.mark.parametrize(("change", "with_loss", "reason"), OBSTACLES.values(), ids=OBSTACLES)
def test_where_it_cannot_be_had_it_says_why(change, with_loss, reason):
    model, loss_fn = nn.Linear(3, 2), nn.MSELoss()
    change(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, loss_fn=loss_fn if with_loss else None, settings=ALWAYS)
    for _ in range(10):
        optimizer.zero_grad()
        loss_fn(model(torch.randn(4, 3)), torch.randn(4, 2)).backward()
        optimizer.step()
    chart = chart_of(doctor)
    assert reason in chart.fact("curvature.hidden")
    assert not chart["curvature"]
