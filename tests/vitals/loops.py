"""Training loops in a few lines, for tests of what is seen in them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchdoctor.chart import Chart
from torchdoctor.doctor import Doctor

Batches = Callable[[int], tuple[Tensor, Tensor]]


def watch(model, optimizer, batches: Batches, loss_fn, steps: int, *, functional=False, validate=None) -> Doctor:
    """Train and return the doctor, detached."""
    doctor = Doctor(model, optimizer, loss_fn=None if functional else loss_fn, settings={"quiet": True})
    for step in range(steps):
        x, y = batches(step)
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
        if validate is not None and step % 25 == 24:
            doctor.log_validation(validate())
    doctor.detach()
    failures = [gauge for gauge in doctor._examination.chart.facts if gauge.startswith("gauges.")]
    assert not failures
    assert not [note for note in doctor.diagnose().notes if "inside torchdoctor" in note]
    return doctor


def chart_of(doctor: Doctor) -> Chart:
    return doctor._examination.chart


def found(doctor: Doctor, *severities: str) -> dict[str, str]:
    """Findings by name, with their severity."""
    wanted = severities or ("warning", "critical")
    return {item.name: item.severity for item in doctor.diagnose().symptoms if item.severity in wanted}


def causes_of(doctor: Doctor, name: str) -> list[str]:
    """The causes of the problem that holds a finding, likeliest first."""
    return [item.cause for item in doctor.diagnose().diagnoses if name in item.symptoms]


def stack(*sizes: int, act=nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers[:-1])


def classes(count: int = 5, width: int = 20, batch: int = 32) -> Batches:
    centres = torch.randn(count, width)

    def batches(step: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, count, (batch,))
        return centres[labels] + torch.randn(batch, width), labels

    return batches


def curve(scale: float = 1.0, shift: float = 0.0, inputs: float = 1.0, batch: int = 64) -> Batches:
    weights = torch.randn(8)

    def batches(step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 8)
        return inputs * x, (torch.sin(x) @ weights)[:, None] * scale + shift

    return batches


def adam(model, rate: float = 1e-3):
    return torch.optim.Adam(model.parameters(), rate)


def sgd(model, rate: float = 0.05):
    return torch.optim.SGD(model.parameters(), rate)
