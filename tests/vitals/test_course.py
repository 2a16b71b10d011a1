"""How straight weights go, and whether they are new."""

import pytest
import torch
from torch import nn

from torchdoctor import Doctor


def watch(model, rate, steps=160, noise=1.0):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(steps):
        inputs = torch.randn(16, 12)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :1] - noise * torch.randn(16, 1)).square().mean()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    doctor.detach()
    return doctor._examination.chart


@pytest.mark.parametrize(("rate", "straight"), [(1e-4, True), (0.1, False)])
def test_short_steps_go_straight_on_and_long_ones_turn(rate, straight):
    torch.manual_seed(1)
    course = watch(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1)), rate)["course"].values
    assert course.size >= 5
    assert (course[-4:].min() > 0.7) == straight


def test_weights_are_new_at_the_start_and_not_when_a_run_goes_on():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    assert watch(model, 0.1)["weights_fresh"].first == 1
    assert watch(model, 0.1, steps=3)["weights_fresh"].first == 0


def test_recurrent_layers_are_looked_at_too():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.GRU(12, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, inputs):
            return self.head(self.cell(inputs[:, None])[0][:, -1])

    torch.manual_seed(1)
    assert watch(Reads(), 0.01, steps=3)["weights_fresh"].first == 1


def test_the_rate_that_an_optimizer_is_built_with_is_known():
    assert watch(nn.Linear(12, 1), 0.01, steps=2).context["optimizer"][0]["lr"] == 0.01
