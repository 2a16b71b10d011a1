"""Steps as a loop calls them: followed while they can be, and never so that a journal or a detector is led astray."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import torchdoctor
from torchdoctor import Doctor
from torchdoctor.chart import Chart
from torchdoctor.series import Series
from torchdoctor.settings import Settings
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms import build

STEPS = 160
NOT_FOLLOWED = "was not followed"


def watched(path, given, *, micro_batches: int = 1, blow_up_at: int = -1):
    """A run whose loop numbers its steps with `given(step, micro-batch)`: its report, and that of its journal."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Doctor(model, optimizer, journal=path, settings={"quiet": True}) as doctor:
        for step in range(STEPS):
            for part in range(micro_batches):
                x = torch.randn(32, 8)
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                (loss / micro_batches).backward()
                doctor.log_loss(loss, step=given(step, step * micro_batches + part))
            if step == blow_up_at:
                for parameter in model.parameters():
                    parameter.grad *= 50
            optimizer.step()
            optimizer.zero_grad()
    return doctor.diagnose(), torchdoctor.diagnose(torchdoctor.read(path))


def is_well(report) -> bool:
    return all(symptom.severity == "info" for symptom in report.symptoms)


def labels(path) -> list[int]:
    records = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if record["type"] == "vitals"]


HABITS = {
    "its own": (lambda step, _: step, range(STEPS)),
    "from one": (lambda step, _: step + 1, range(1, STEPS + 1)),
    "resumed": (lambda step, _: 10_000 + step, range(10_000, 10_000 + STEPS)),
    "whole floats": (lambda step, _: float(step), range(STEPS)),
    "of numpy": (lambda step, _: np.int64(step), range(STEPS)),
    "samples": (lambda step, _: 32 * step, range(0, 32 * STEPS, 32)),
    "a leap": (lambda step, _: None if step < 100 else 10**6 + step, [*range(100), *range(10**6 + 100, 10**6 + STEPS)]),
}
MISTAKES = {
    "the place in an epoch": lambda step, _: step % 50,
    "the epoch": lambda step, _: step // 50,
    "negative once": lambda step, _: -5 if step == 100 else None,
    "huge once": lambda step, _: 10**12 if step == 100 else None,
    "a half": lambda step, _: 1.5 if step == 100 else None,
    "no number": lambda step, _: float("nan") if step == 100 else None,
    "a flag": lambda step, _: True if step == 100 else None,
    "a tensor": lambda step, _: torch.tensor(step),
    "a word": lambda step, _: "100",
}


@pytest.mark.parametrize("habit", HABITS)
def test_a_count_that_goes_on_is_followed(tmp_path, habit):
    given, expected = HABITS[habit]
    live, read = watched(tmp_path, given)
    assert live.to_dict() == read.to_dict()
    assert labels(tmp_path) == list(expected)
    assert is_well(live) and not live.notes


def test_micro_batches_that_are_numbered_are_called_by_the_last(tmp_path):
    live, read = watched(tmp_path, lambda _, part: part, micro_batches=4)
    assert live.to_dict() == read.to_dict()
    assert labels(tmp_path) == list(range(3, 4 * STEPS, 4))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_followed_is_said_once_and_counted_on(tmp_path, mistake):
    live, read = watched(tmp_path, MISTAKES[mistake])
    assert live.to_dict() == read.to_dict()
    assert labels(tmp_path) == list(range(STEPS))
    assert is_well(live) and len(live.notes) == 1 and NOT_FOLLOWED in live.notes[0]


@pytest.mark.parametrize("mistake", ["the place in an epoch", "the epoch"])
def test_what_happens_is_found_whatever_steps_are_called(tmp_path, mistake):
    live, read = watched(tmp_path, MISTAKES[mistake], blow_up_at=120)
    assert live.to_dict() == read.to_dict()
    explosion = next(symptom for symptom in live.symptoms if symptom.name == "gradient-explosion")
    assert explosion.first_step == 120


@pytest.mark.parametrize("given", ["number", "count", "epoch"])
def test_validations_do_not_move_the_numbers_of_losses(net, tmp_path, given):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Doctor(net, optimizer, journal=tmp_path, settings={"quiet": True}) as doctor:
        for step in range(60):
            loss = net(torch.randn(16, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.log_loss(loss, step=step)
            if step % 10 == 9:
                doctor.log_validation(loss.item(), step={"number": step, "count": step + 1, "epoch": step // 10}[given])
    assert labels(tmp_path) == list(range(60))
    notes = [note for note in doctor.diagnose().notes if NOT_FOLLOWED in note]
    assert len(notes) == (given == "epoch")


def test_a_series_never_goes_back():
    series = Series()
    for step in (5, 6, 2):
        series.add(step, 1.0)
    series.extend(np.array([3, 8]), np.array([1.0, 1.0]))
    assert series.steps.tolist() == [5, 6, 6, 6, 8]


@pytest.mark.parametrize("detector", build(Settings()), ids=lambda detector: detector.name)
def test_no_detector_minds_steps_that_go_back(detector):
    chart = Chart()
    values = np.random.default_rng(0).lognormal(size=400)
    for step, value in enumerate(values.tolist()):
        vitals = dict.fromkeys(("loss", "grad_norm", "val_loss", "lr", "clip", "seconds"), value)
        chart.add({"type": "vitals", "step": step % 50, "vitals": vitals})
        if step % 40 == 39:
            coming = Stretch(np.arange(30), {"loss": values[:30], "grad_norm": values[:30]})
            chart.announce(coming)(30)
        detector.check(chart)
    assert chart.step == 49
