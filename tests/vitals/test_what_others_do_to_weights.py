"""Writes to weights outside of the optimizer's step, players that share gradients, and branches that stand in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchdoctor.doctor import Doctor


def train(touch, steps=6, rate=0.01):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 5)).square().mean()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
        for tensor in model.parameters():
            touch(tensor)
    doctor.detach()
    return doctor._examination.chart


@pytest.mark.parametrize("factor", [1.01, 0.95])
def test_weights_that_are_scaled_through_data(factor):
    chart = train(lambda tensor: tensor.data.mul_(factor))
    assert chart["outside_scaled"].values == pytest.approx([factor - 1] * 2, rel=1e-3)
    assert abs(chart["outside_cosine"].latest) == pytest.approx(1, abs=1e-3)


def test_nobody_but_the_optimizer_writes():
    assert train(lambda tensor: None)["outside_scaled"].values == pytest.approx([0, 0], abs=1e-7)


@pytest.mark.parametrize(("restore", "low"), [(True, True), (False, False)])
def test_how_far_weights_get(restore, low):
    first = {}

    def touch(tensor):
        if id(tensor) not in first:
            first[id(tensor)] = tensor.detach().clone()
        elif restore:
            tensor.data.copy_(first[id(tensor)])

    away = train(touch, steps=130)["update_away"].values
    assert away.size
    assert bool(away.max() < 0.3) == low


@pytest.mark.parametrize("clears", [True, False])
def test_two_players_and_the_gradients_of_the_other(clears):
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    makes, judges = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (maker, judge))
    doctor = Doctor({"maker": maker, "judge": judge}, [makes, judges], settings={"quiet": True})
    for _ in range(30):
        makes.zero_grad()
        judges.zero_grad()
        asked = judge(maker(torch.randn(8, 4))).mean()
        asked.backward()
        makes.step()
        if clears:
            judges.zero_grad()
        told = judge(torch.randn(8, 2)).square().mean() + judge(maker(torch.randn(8, 4)).detach()).mean()
        told.backward()
        judges.step()
        doctor.log_loss(told, name="d_loss")
        doctor.log_loss(asked, name="g_loss")
    doctor.detach()
    mixed = doctor._examination.chart.fact("zeroing.mixed")
    assert mixed[0] == 0
    assert (mixed[1] == 0) if clears else (mixed[1] >= 3)


def test_a_branch_that_runs_in_place_of_others_is_counted():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

        def forward(self, x):
            return sum(self.heads[2](x * number) for number in range(3))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    doctor.detach()
    assert doctor._examination.chart.fact("modules.repeated") == {"heads.2": 3}
