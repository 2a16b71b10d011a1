"""Ordinary steps that travel as columns leave the records that they would leave one by one."""

from __future__ import annotations

import itertools
import json
import time

import pytest
import torch
from torch import nn

from torchdoctor import Doctor
from torchdoctor.vitals.slot import Bunch

STEPS = 240


def plain(step: int) -> dict[str, float]:
    return {}


def leap(step: int) -> dict[str, float]:
    return {"norm": 40.0} if step in (100, 101, 150) else {}


def wild(step: int) -> dict[str, float]:
    return {"norm": 10.0 ** (step % 3)}


def broken_loss(step: int) -> dict[str, float]:
    return {"loss": float("nan")} if step == 120 else {}


def broken_gradient(step: int) -> dict[str, float]:
    return {"norm": float("inf")} if step in (90, 91) else {}


def other_clip(step: int) -> dict[str, float]:
    return {"clip": 2.0 if step >= 130 else 1.0}


def no_clip(step: int) -> dict[str, float]:
    return {"clip": 0.0}


def hidden_clip(step: int) -> dict[str, float]:
    return {"clip": 0.0, "constant": 1.0}


def schedule(step: int) -> dict[str, float]:
    return {"lr": 1e-3 * 0.99**step}


def two_losses(step: int) -> dict[str, float]:
    return {"second": 0.5 + 0.001 * step}


def sometimes_two(step: int) -> dict[str, float]:
    return {"second": 0.5} if step % 7 else {}


def two_rates(step: int) -> dict[str, float]:
    return {"lr": 1e-3 * 0.99**step, "head": 1e-2 * 0.98**step}


def sometimes_two_rates(step: int) -> dict[str, float]:
    return {"head": 1e-2 if step % 50 > 20 else 1e-3}


def late(step: int) -> dict[str, float]:
    return {"late": 1.0}


LOOPS = [plain, leap, wild, broken_loss, broken_gradient, other_clip, no_clip, hidden_clip, schedule]
LOOPS += [two_losses, sometimes_two, two_rates, sometimes_two_rates, late]


def journal(change, folder, monkeypatch) -> list[str]:
    """The journal of a loop whose clock ticks a tenth of a millisecond at a time."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-4 * next(ticks))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD([{"params": layer.parameters()} for layer in model], lr=1e-3)
    told: list[dict] = []
    doctor = Doctor(model, optimizer, journal=folder, settings={"quiet": True, "sample_every": 60})
    doctor.subscribe(told.append)
    draw = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        what = change(step)
        optimizer.param_groups[0]["lr"] = what.get("lr", 1e-3)
        optimizer.param_groups[1]["lr"] = what.get("head", what.get("lr", 1e-3))
        loss = model(torch.ones(2, 3)).mean() * 0 + what.get("loss", 2 + 0.1 * float(torch.rand((), generator=draw)))
        noise = 1.0 if "constant" in what else 1 + 0.2 * float(torch.rand((), generator=draw))
        for tensor in model.parameters():
            tensor.grad = torch.full_like(tensor, what.get("norm", 1.0) * noise)
        if not what.get("late"):
            doctor.log_loss(loss)
        if "second" in what:
            doctor.log_loss(loss * 0 + what["second"], "second_loss")
        if what.get("clip", 1.0):
            nn.utils.clip_grad_norm_(model.parameters(), what.get("clip", 1.0))
        optimizer.step()
        if what.get("late"):
            doctor.log_loss(loss)
    doctor.detach()
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()[1:]]
    assert [(item["type"], item["step"]) for item in lines] == [(item["type"], item["step"]) for item in told]
    for record in lines:
        for name in ("host_memory", "host_load", "processor_seconds", "disk_free"):
            record.get("vitals", {}).pop(name, None)
    return [json.dumps(record) for record in lines]


@pytest.mark.parametrize("change", LOOPS, ids=lambda change: change.__name__)
def test_the_same_journal_as_one_by_one(change, tmp_path, monkeypatch):
    bunched = journal(change, tmp_path / "bunched", monkeypatch)
    monkeypatch.setattr(Bunch, "are_alike", staticmethod(lambda steps: False))
    singly = journal(change, tmp_path / "singly", monkeypatch)
    assert bunched == singly
    assert sum('"type": "vitals"' in record for record in bunched) >= STEPS


@pytest.mark.parametrize("change", [plain, two_rates], ids=lambda change: change.__name__)
def test_ordinary_steps_are_bunched(change, tmp_path, monkeypatch):
    """Else nothing would be gained, and nothing above would be tested."""
    sizes: list[int] = []
    columns = Bunch.receive
    monkeypatch.setattr(Bunch, "receive", lambda self, *args: (sizes.append(len(self)), columns(self, *args))[1])
    journal(change, tmp_path, monkeypatch)
    assert sum(sizes) > 0.6 * STEPS
