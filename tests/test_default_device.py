"""Loops that say `torch.set_default_device`: whatever is made without naming a device lands there, ours must not.

"meta" stands for it here: a tensor of ours that follows the default has no numbers, and the first that is read fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchdoctor
from torchdoctor import Doctor

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
OF_THE_MACHINE = {"seconds", "processor_seconds", "data_seconds", "memory", "host_memory", "host_load", "disk_free"}


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def train(journal: Path, device: str, default: str | None, optimizer_class: Any, **options: Any) -> list[Any]:
    """A loop in which everything of the user's is on `device`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3)).to(device)
    loss_fn = nn.CrossEntropyLoss()
    x, y = torch.randn(256, 8).to(device), torch.randint(3, (256,)).to(device)
    with default_device(default or "cpu"):
        optimizer = optimizer_class(model.parameters(), lr=0.01, **options)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
        doctor = Doctor(
            model, optimizer, loss_fn=loss_fn, scheduler=scheduler, journal=journal, settings={"quiet": True}
        )
        for step in range(150):
            rows = slice(step * 16 % 256, step * 16 % 256 + 16)
            doctor.log_batch(x[rows], y[rows])
            loss = loss_fn(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            doctor.log_loss(loss)
            if step % 50 == 49:
                doctor.log_validation(loss_fn(model.eval()(x), y).detach())
                model.train()
        report = doctor.diagnose()
        doctor.detach()
    assert not [note for note in report.notes if "inside torchdoctor" in note]
    return [
        {name: value for name, value in record["vitals"].items() if name not in OF_THE_MACHINE}
        for record in torchdoctor.read(journal).records
        if record["type"] in ("vitals", "validation", "tensors", "modules")
    ]


def test_a_watched_loop(tmp_path: Path) -> None:
    there = train(tmp_path / "there", "cpu", "meta", torch.optim.SGD, momentum=0.9)
    assert there == train(tmp_path / "here", "cpu", None, torch.optim.SGD, momentum=0.9)


@NEEDS_CUDA
@pytest.mark.parametrize("default", ["cuda", "cpu"])
def test_a_watched_loop_on_the_gpu(tmp_path: Path, default: str) -> None:
    vitals = train(tmp_path, "cuda", default, torch.optim.AdamW)
    assert sum("loss" in item and "grad_norm" in item for item in vitals) == 150


@pytest.mark.parametrize(
    ("default", "device"),
    [("meta", "cpu"), pytest.param("cuda", "cuda", marks=NEEDS_CUDA)],
)
def test_a_checkup(default: str, device: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
    batch = torch.randn(64, 8).to(device), (torch.arange(64) % 3).to(device)
    with default_device(default):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        results = torchdoctor.checkup(model, nn.CrossEntropyLoss(), batch, optimizer).results
    told = {result.name: result.message for result in results if result.status == "failed" or "Error" in result.message}
    assert not told
