"""Loops that never call log_loss and replace their optimizer: what backward begins from stays their loss."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import pytest
import torch
from torch import nn

import torchdoctor
from torchdoctor.doctor import Doctor
from torchdoctor.records import NO_LOSS
from torchdoctor.vitals import roots
from torchdoctor.vitals.successor import GONE

F = nn.functional
QUIET = {"quiet": True}
Adam, SGD, LBFGS = torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS
ENDED = "so what backward() begins from is not taken as the loss"


@pytest.fixture(autouse=True)
def detached(monkeypatch):
    """Let go of every doctor at the end of its test."""
    doctors: list[Doctor] = []
    attach = Doctor.__init__
    monkeypatch.setattr(
        Doctor, "__init__", lambda self, *args, **kwargs: doctors.append(self) or attach(self, *args, **kwargs)
    )
    yield
    for doctor in doctors:
        doctor.detach()


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))
    return F.mse_loss(model(x), x.sum(1, keepdim=True))


def train(model: nn.Module, steps: Iterable[int], *optimizers: torch.optim.Optimizer) -> dict[int, float]:
    """Train without logging; returns the loss of each step."""
    seen = {}
    for step in steps:
        loss = loss_of(model, step)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        seen[step] = loss.item()
    return seen


def recorded(doctor: Doctor) -> dict[int, float]:
    report = doctor.diagnose()
    assert not [note for note in report.notes if "failed inside" in note], report.notes
    series = doctor._examination.chart["loss"]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def close(expected: dict[int, float]) -> dict[int, object]:
    return {step: pytest.approx(loss, rel=1e-5) for step, loss in expected.items()}


def all_of(net: nn.Sequential) -> list[torch.Tensor]:
    return [*net.parameters()]


@pytest.mark.parametrize("before", [2, 90])
@pytest.mark.parametrize("first", [all_of, lambda net: [*net[2].parameters()]])
@pytest.mark.parametrize("kind", [Adam, SGD])
def test_a_successor_brings_the_loss_along(net, tmp_path, kind, first, before):
    optimizer = Adam(first(net), lr=1e-3)
    doctor = Doctor(net, optimizer, settings=QUIET, journal=tmp_path)
    expected = train(net, range(before), optimizer)
    expected |= train(net, range(before, before + 70), kind(net.parameters(), lr=1e-3))
    assert recorded(doctor) == close(expected)
    assert len(doctor._monitor._roots._witnesses) == 3
    doctor.detach()
    live = doctor.diagnose()
    assert not any(note.startswith(NO_LOSS) for note in live.notes)
    assert json.dumps(live.to_dict()) == json.dumps(torchdoctor.diagnose(tmp_path).to_dict())


def test_a_successor_of_other_tensors_misses_at_most_its_first_loss(net):
    doctor = Doctor(net, SGD(net[2].parameters(), lr=1e-2), settings=QUIET)
    expected = train(net, range(30), *doctor._setup.optimizers)
    net[2] = nn.Linear(16, 1)
    later = train(net, range(30, 60), SGD(net[2].parameters(), lr=1e-2))
    assert recorded(doctor) == close(expected | {step: later[step] for step in range(31, 60)})


def test_when_an_optimizer_that_stays_behind_is_let_go_losses_are_taken_again(net):
    doctor = Doctor(net, SGD(net[0].parameters(), lr=1e-2), settings=QUIET)
    expected = train(net, range(30), *doctor._setup.optimizers)
    later = train(net, range(30, 120), SGD(net[2].parameters(), lr=1e-2))
    assert recorded(doctor) == close(expected | {step: later[step] for step in (30, *range(30 + GONE + 2, 120))})


@pytest.mark.parametrize("before", [0, 30])
@pytest.mark.parametrize("clears", [True, False])
def test_a_successor_that_is_older_than_the_doctor_is_searched_for_though_nothing_is_logged(net, clears, before):
    first, older = Adam(net.parameters(), lr=1e-3), SGD(net.parameters(), lr=1e-3)
    doctor = Doctor(net, first, settings=QUIET)
    expected = [*train(net, range(before), first).values()]
    for step in range(before, before + 60):
        loss = loss_of(net, step)
        loss.backward()
        older.step()
        older.zero_grad(set_to_none=clears)
        expected.append(loss.item())
    found = [*recorded(doctor).values()]
    assert len(found) >= before + 50 and found == pytest.approx(expected[:before] + expected[before - len(found) :])


def test_an_older_optimizer_that_steps_in_turn_is_found_though_nothing_is_logged(net):
    first, older = SGD(net.parameters(), lr=1e-3), SGD(net.parameters(), lr=1e-3, momentum=0.9)
    doctor = Doctor(net, first, settings=QUIET)
    for step in range(0, 120, 2):
        train(net, [step], first)
        train(net, [step + 1], older)
    report = doctor.diagnose()
    assert len(doctor._setup.optimizers) == 2 and report.step > 55 and not report.symptoms  # both make one step


def test_optimizers_that_are_rebuilt_keep_the_loss_each_time(net):
    doctor = Doctor(net, Adam(net.parameters(), lr=1e-2), settings=QUIET)
    expected = {}
    for epoch in range(20):
        expected |= train(net, range(5 * epoch, 5 * epoch + 5), Adam(net.parameters(), lr=1e-2))
    assert recorded(doctor) == close(expected)


@pytest.mark.parametrize("given", [True, False])
def test_a_step_of_a_successor_that_the_scaler_skips_has_its_loss(net, given):
    scaler, optimizer = torch.amp.GradScaler("cpu", growth_interval=7), Adam(net.parameters(), lr=1e-3)
    doctor = Doctor(net, optimizer, scaler=scaler if given else None, settings=QUIET)
    expected = {}
    for step in range(60):
        if step == 20:
            optimizer = SGD(net.parameters(), lr=1e-3)
        parts = [loss_of(net, 2 * step + part) for part in range(2)]
        for loss in parts:
            scaler.scale(loss / 2).backward()
        if step in (11, 21, 22, 40):
            net[0].weight.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        expected[step] = sum(loss.item() for loss in parts) / 2
    assert recorded(doctor) == close(expected)
    skipped = doctor._examination.chart["skipped"]
    assert skipped.steps[skipped.values == 1].tolist() == [11, 21, 22, 40]


def test_a_successor_with_a_closure(net):
    doctor = Doctor(net, Adam(net.parameters(), lr=1e-3), settings=QUIET)
    expected = train(net, range(20), *doctor._setup.optimizers)
    optimizer = LBFGS(net.parameters(), lr=0.1, max_iter=3)
    for step in range(20, 40):
        calls: list[float] = []

        def closure(step: int = step, calls: list[float] = calls) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, step)
            loss.backward()
            calls.append(loss.item())
            return loss

        optimizer.step(closure)
        expected[step] = calls[0]
    assert recorded(doctor) == close(expected)


@pytest.mark.parametrize(("before", "note"), [(5, False), (60, True)])
def test_another_optimizer_that_joins_ends_it_and_leaves_what_was_taken(net, tmp_path, before, note):
    doctor = Doctor(net, SGD(net[0].parameters(), lr=1e-2), settings=QUIET, journal=tmp_path)
    (first,) = doctor._setup.optimizers
    expected = train(net, range(before), first)
    found = expected | train(net, range(before, 100), first, SGD(net[2].parameters(), lr=1e-2))
    assert recorded(doctor) == close({step: found[step] for step in range(before + 1)})
    assert not any(known() is doctor._monitor._roots for known in roots._followers)
    doctor.detach()
    live = doctor.diagnose()
    assert any(ENDED in item for item in live.notes) == note
    assert any(item.startswith(f"{NO_LOSS} in {100 - before - 1} steps") for item in live.notes) == (before < 50)
    assert json.dumps(live.to_dict()) == json.dumps(torchdoctor.diagnose(tmp_path).to_dict())


def test_when_one_of_several_is_left_its_loss_is_taken(net):
    first, other = (SGD(part.parameters(), lr=1e-3) for part in (net[0], net[2]))
    doctor = Doctor(net, [first, other], settings=QUIET)
    train(net, range(10), first, other)
    later = train(net, range(10, 80), SGD(net.parameters(), lr=1e-3))
    assert recorded(doctor) == close({step: later[step] for step in range(11, 80)})


def test_the_first_loss_that_is_logged_after_several_optimizers_begins_anew(net):
    doctor = Doctor(net, SGD(net[0].parameters(), lr=1e-2), settings=QUIET)
    (first,), other = doctor._setup.optimizers, SGD(net[2].parameters(), lr=1e-2)
    train(net, range(30), first)
    train(net, range(30, 60), first, other)
    for step in range(60, 70):
        doctor.log_loss(train(net, [step], first, other)[step])
    assert list(recorded(doctor)) == list(range(60, 70))


def changes(doctor: Doctor) -> list[str]:
    doctor.diagnose()
    return [text for _, text in doctor._examination.chart.fact("loop.changes") or ()]


@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("name", ["loss", "objective"])
def test_a_first_loss_that_is_logged_late_is_no_change_of_the_loss(net, name, optimizers):
    parts = [net] if optimizers == 1 else [net[0], net[2]]
    doctor = Doctor(net, [SGD(part.parameters(), lr=1e-2) for part in parts], settings=QUIET)
    for step in range(60):
        loss = train(net, [step], *doctor._setup.optimizers)[step]
        if step >= 40:
            doctor.log_loss(loss, name=name)
    assert not changes(doctor)


@pytest.mark.parametrize("names", [("loss", "aux"), ("aux", "loss")])
def test_a_further_loss_that_begins_late_is_a_change(net, names):
    doctor = Doctor(net, SGD(net.parameters(), lr=1e-2), settings=QUIET)
    for step in range(60):
        loss = train(net, [step], *doctor._setup.optimizers)[step]
        for name in names[: 1 + (step >= 40)]:
            doctor.log_loss(loss, name=name)
    assert changes(doctor) == [f"{names[1]} was logged for the first time"]
