"""Watching never changes the run: weights, optimizer state and random states, bit for bit; and nothing stays behind."""

from __future__ import annotations

import copy
import gc
import random
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from torchdoctor.doctor import Doctor

STEPS = 30


class Drawn(nn.Module):
    """A parametrization that draws a number whenever its weight is asked for."""

    def forward(self, weight):
        return weight * (1 + 0.01 * torch.rand(()))


def build(kind: str = "plain") -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 1))
    if kind == "parametrized":
        nn.utils.parametrizations.spectral_norm(model[0])
        nn.utils.parametrize.register_parametrization(model[3], "weight", Drawn())
    return model


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(make_optimizer, kind: str, watch: bool, tmp_path) -> tuple:
    model = build(kind)
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5, enabled=kind == "amp")
    trained = torch.compile(model, backend="aot_eager") if kind == "compile" else model
    settings = {"quiet": True, "sample_every": 3}
    doctor = Doctor(trained, optimizer, scaler=scaler, journal=tmp_path / kind, settings=settings) if watch else None
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    for step in range(STEPS):
        for _ in range(2 if kind == "accumulate" else 1):
            x = torch.randn(16, 8)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "amp"):
                loss = (trained(x) - x.sum(1, keepdim=True)).square().mean()
            scaler.scale(loss).backward()
            if doctor:
                doctor.log_batch(x)
                doctor.log_loss(loss)
        if kind == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if doctor and step % 5 == 0:
            doctor.log_gradients()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step % 10 == 9 and doctor:
            doctor.log_validation(loss.detach(), accuracy=0.5)
            doctor.diagnose()
    if doctor:
        doctor.detach()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    return copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()), states


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return bool((left == right).all())
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return left == right


@pytest.mark.parametrize("kind", ["plain", "clip", "accumulate", "amp", "compile", "parametrized"])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_watched_and_unwatched_runs_are_identical(make_optimizer, kind, tmp_path):
    plain = train(make_optimizer, kind, False, tmp_path)
    watched = train(make_optimizer, kind, True, tmp_path)
    assert same(plain, watched)
    assert not same(plain, train(adamw if make_optimizer is sgd else sgd, kind, False, tmp_path))


def counts(model, optimizer) -> list[int]:
    return [
        sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()),
        sum(len(p._post_accumulate_grad_hooks or {}) for p in model.parameters()),
        len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks),
        threading.active_count(),
    ]


def test_detach_leaves_nothing_behind(tmp_path):
    functions = torch._foreach_norm, torch.nn.utils.clip_grad._get_total_norm, torch.amp.GradScaler.update
    scripting = torch.jit._recursive.create_script_module
    model = build()
    optimizer = adamw(model)
    before = counts(model, optimizer)
    with Doctor(model, optimizer, journal=tmp_path / "run", settings={"quiet": True}) as doctor:
        assert counts(model, optimizer) != before
        for _ in range(5):
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
    assert counts(model, optimizer) == before
    assert (torch._foreach_norm, torch.nn.utils.clip_grad._get_total_norm, torch.amp.GradScaler.update) == functions
    assert torch.jit._recursive.create_script_module is scripting
    assert doctor.diagnose().step == 4
    gone = weakref.ref(model[0].weight)
    del model, optimizer, loss, doctor
    gc.collect()
    assert gone() is None


def test_no_graph_is_kept():
    model = build()
    optimizer = sgd(model)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    alive = []
    for _ in range(10):
        activation = model[0](torch.randn(4, 8))
        alive.append(weakref.ref(activation))
        loss = model[3](model[2](activation)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss)
    del activation, loss
    gc.collect()
    assert not any(ref() is not None for ref in alive)


def test_an_exception_of_the_loop_is_not_masked(tmp_path):
    model = build()
    optimizer = sgd(model)
    with pytest.raises(ZeroDivisionError), Doctor(model, optimizer, journal=tmp_path / "run"):
        raise ZeroDivisionError
    assert not optimizer._optimizer_step_pre_hooks


def test_memory_is_constant(tmp_path):
    """The chart, the ledger and the queue hold a bounded number of objects, however long the run."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    doctor = Doctor(model, optimizer, journal=tmp_path / "run", settings={"quiet": True})

    def run(steps: int) -> None:
        for _ in range(steps):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
            doctor.log_loss(1.0)
        doctor.diagnose()
        while doctor._outlets.journal._queue:
            time.sleep(0.01)
        gc.collect()

    run(3000)
    before = len(gc.get_objects())
    run(3000)
    assert len(gc.get_objects()) - before < 500
    doctor.detach()
