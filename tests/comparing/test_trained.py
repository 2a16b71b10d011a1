"""A real set of runs: a small network, trained at four learning rates and two batch sizes with three seeds each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from torchdoctor import Doctor
from torchdoctor.comparing import compare

RATES = (0.003, 0.03, 0.3, 3.0)
SIZES = (16, 64)
SEEDS = (0, 1, 2)
STEPS = 40


def train(folder: Path, lr: float, size: int, seed: int) -> None:
    torch.manual_seed(7)
    inputs = torch.randn(512, 8)
    targets = (inputs @ torch.randn(8, 1)).tanh() + 0.1 * torch.randn(512, 1)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss_fn = nn.MSELoss()
    with Doctor(model, optimizer, loss_fn=loss_fn, journal=folder, settings={"quiet": True}) as doctor:
        for step in range(STEPS):
            batch = torch.randint(0, 384, (size,))
            loss = loss_fn(model(inputs[batch]), targets[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.log_loss(loss)
            if step % 5 == 4:
                with torch.no_grad():
                    doctor.log_validation(loss_fn(model(inputs[384:]), targets[384:]))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    for lr in RATES:
        for size in SIZES:
            for seed in SEEDS:
                train(folder / f"lr{lr}-b{size}-s{seed}", lr, size, seed)
    return compare([folder]).found


def test_what_was_varied_is_known_from_the_journals(found):
    assert {item["settings"][0]: item["levels"] for item in found["differs"]} == {
        "lr": ["0.003", "0.03", "0.3", "3"],
        "batch_size": ["16", "64"],
    }
    assert found["seeds"] == ["seed"] and len(found["configurations"]) == len(RATES) * len(SIZES)


def test_the_learning_rate_explains_the_outcome(found):
    effect = next(item for item in found["effects"] if item["names"] == ("lr",))
    assert effect["verdict"] == "matters" and effect["tested"] == "runs" and effect["best"] == "0.3"
    assert found["configurations"][0]["settings"]["lr"] == "0.3"


def test_the_sweep_has_a_best_rate_inside(found):
    assert found["learning_rate"]["best"] == 0.3
    assert found["learning_rate"]["shape"] in ("valley", "best below divergence")


def test_best_and_next_are_held_against_each_other(found):
    assert found["partings"] and found["best"].startswith("lr0.3")
    assert found["race"] is not None and found["runs"][0]["reached_at"] is not None
