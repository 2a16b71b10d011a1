"""A loop that validates in inference mode: what is made there has no version, and nobody may write to it later."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchdoctor import Doctor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


@pytest.mark.parametrize("inside", [True, False], ids=["logged inside", "logged outside"])
@pytest.mark.parametrize("device", DEVICES)
def test_validation_in_inference_mode_is_recorded(device, inside):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    loss_fn = nn.CrossEntropyLoss()
    with Doctor(model, optimizer, loss_fn, settings={"quiet": True}) as doctor:
        for _ in range(60):
            x = torch.randn(64, 8, device=device)
            y = x[:, :3].argmax(1)
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.log_loss(loss)
            model.eval()
            with torch.inference_mode():
                checked = loss_fn(model(x + 1), y)
                if inside:
                    doctor.log_validation(checked)
            if not inside:
                doctor.log_validation(checked)
            model.train()
        report = doctor.diagnose()
    assert report.notes == ()
    chart = doctor._examination.chart
    assert len(chart["val_loss"]) == len(chart["loss"]) == 60
    assert chart["idle_input_mean"]
    assert not [fact for fact in chart.facts if fact.startswith("gauges.")]
