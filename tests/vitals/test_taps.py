"""The short way's total norm is torch's own, bit for bit."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from torchdoctor import Doctor
from torchdoctor.vitals import taps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_total_is_torchs_own(dtype):
    net = nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5), nn.Linear(5, 1)).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    doctor = Doctor(net, optimizer, settings={"quiet": True})
    generator = torch.Generator().manual_seed(0)
    shorts = 0
    for _ in range(600):  # on a busy machine close looks are many in the first hundred
        x = torch.randn(8, 7, generator=generator).to(dtype)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms = [torch.linalg.vector_norm(p.grad, 2.0) for p in net.parameters()]
        expected = torch.linalg.vector_norm(torch.stack(norms), 2.0)
        shorts += doctor._monitor.lane.is_open
        total = clip_grad_norm_(net.parameters(), 1e9)
        assert torch.equal(total, expected) and total.dtype == dtype
        optimizer.step()
        doctor.log_loss(loss)
        if shorts > 30:
            break
    assert shorts > 30
    doctor.detach()


def test_a_torch_that_makes_its_total_otherwise_is_left_alone(monkeypatch):
    """Where torch's own total differs from ours, ours is given up at the next close look."""
    for known in list(taps._listeners):  # doctors that other tests have left attached
        taps.remove(known())
    original = torch.nn.utils.clip_grad._get_total_norm
    monkeypatch.setattr(torch.nn.utils.clip_grad, "_get_total_norm", lambda *args: original(*args) * 1.001)
    net = nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    doctor = Doctor(net, optimizer, settings={"quiet": True})
    opened = []
    for _ in range(90):
        loss = net(torch.ones(2, 7)).square().mean()
        loss.backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss)
        opened.append(doctor._monitor.lane.is_open)
    assert not any(opened)
    doctor.detach()


def test_taps_go_with_a_doctor_that_was_forgotten():
    for known in list(taps._listeners):
        taps.remove(known())
    original = torch._foreach_norm
    net = nn.Linear(3, 1)
    doctor = Doctor(net, torch.optim.SGD(net.parameters(), lr=0.1), settings={"quiet": True})
    assert torch._foreach_norm is not original
    del doctor, net
    gc.collect()
    assert torch._foreach_norm is original
