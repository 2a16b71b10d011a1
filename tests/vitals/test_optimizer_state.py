"""What the optimizer remembers, against the same numbers by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchdoctor.doctor import Doctor

STEPS = 9


def train(make_optimizer, steps=STEPS):
    """The chart, and by step the gradients that were applied."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = make_optimizer(model.parameters())
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    gradients = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 5)).square().mean() * (50.0 if step == steps - 1 else 1.0)
        loss.backward()
        gradients.append(torch.cat([tensor.grad.flatten() for tensor in model.parameters()]).double())
        optimizer.step()
        doctor.log_loss(loss)
    doctor.detach()
    return doctor._examination.chart, gradients


def averaged(values, beta):
    """An average as optimizers keep it, before it sees the last value."""
    mean = torch.zeros_like(values[0])
    for value in values[:-1]:
        mean = beta * mean + (1 - beta) * value
    return mean


def cosine(left, right) -> float:
    return float(left @ right / (left.norm() * right.norm()))


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_adam(betas):
    chart, gradients = train(lambda tensors: torch.optim.Adam(tensors, lr=1e-3, betas=betas))
    squares = averaged([gradient.square() for gradient in gradients], betas[1]) / (1 - betas[1] ** (STEPS - 1))
    stale = float((gradients[-1].square() / squares).mean().sqrt())
    assert chart["adam_staleness"].step == chart["momentum_cosine"].step == STEPS - 1
    assert chart["adam_staleness"].latest == pytest.approx(stale, rel=1e-3)
    assert stale > 10
    expected = cosine(gradients[-1], averaged(gradients, betas[0]))
    assert chart["momentum_cosine"].latest == pytest.approx(expected, rel=1e-3)


def test_an_average_under_eps_counts_as_eps():
    chart, gradients = train(lambda tensors: torch.optim.Adam(tensors, lr=1e-3, eps=100.0))
    assert chart["adam_eps_share"].latest == 1.0
    assert chart["adam_staleness"].latest == pytest.approx(float(gradients[-1].square().mean().sqrt()) / 100, rel=1e-3)


def test_momentum():
    chart, gradients = train(lambda tensors: torch.optim.SGD(tensors, lr=1e-3, momentum=0.8))
    assert chart["momentum_cosine"].latest == pytest.approx(cosine(gradients[-1], averaged(gradients, 0.8)), abs=1e-3)
    assert "adam_staleness" not in chart


@pytest.mark.parametrize(("share", "undone"), [(1.0, False), (1e-3, True)])
def test_how_far_weights_come_where_an_average_is_put_in_their_place(share, undone):
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    average = [tensor.detach().clone() for tensor in model.parameters()]
    for _ in range(110):
        optimizer.zero_grad()
        loss = (model(torch.randn(4, 5)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        for mean, tensor in zip(average, model.parameters(), strict=True):
            mean.lerp_(tensor.detach(), share)
            tensor.data.copy_(mean)
        doctor.log_loss(loss)
    doctor.detach()
    kept = doctor._examination.chart["update_kept"].values
    assert kept.size >= 3
    assert (kept.max() < 0.3) == undone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("resumed", [False, True])
def test_a_count_that_is_on_the_device_is_used_there(resumed):
    """A fused optimizer counts on the device; after a resume its count is not the step's number."""
    stale = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(5, 3).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        batches = [torch.randn(4, 5, device="cuda") for _ in range(40)]
        for number, batch in enumerate(batches):
            if number == (20 if resumed else 0):
                doctor = Doctor(model, optimizer, settings={"quiet": True})
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        doctor.detach()
        stale.append(doctor._examination.chart["adam_staleness"].values.tolist())
    assert stale[0] and stale[0] == pytest.approx(stale[1], rel=1e-2)
