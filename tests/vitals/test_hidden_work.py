"""Loops whose work autograd and hooks do not see, or see in another order: compiled, replayed, inside backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchdoctor import Doctor

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def batch(size=64, device="cpu"):
    x = torch.randn(size, 8, device=device)
    return x, x[:, :3].argmax(1)


def grave(doctor):
    report = doctor.diagnose()
    doctor.detach()
    assert not [note for note in report.notes if "inside torchdoctor" in note]
    return {item.name for item in report.symptoms if item.severity != "info"}


@pytest.mark.parametrize("evaluates", [True, False])
def test_the_mode_of_a_model_whose_compiled_twin_is_trained(evaluates):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    model.train(not evaluates)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(30):
        x, y = batch()
        loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss)
    assert ("wrong-mode" in grave(doctor)) is evaluates


def test_an_optimizer_for_each_tensor_that_steps_inside_backward():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizers = {tensor: torch.optim.AdamW([tensor], lr=1e-3) for tensor in model.parameters()}
    doctor = Doctor(model, list(optimizers.values()), settings={"quiet": True})

    def steps(tensor):
        optimizers[tensor].step()
        optimizers[tensor].zero_grad()

    for tensor in optimizers:
        tensor.register_post_accumulate_grad_hook(steps)
    for _ in range(120):
        x, y = batch()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        doctor.log_loss(loss)
    assert grave(doctor) == set()


def test_a_loss_that_is_made_anew_in_the_same_place():
    """What a CUDA graph does when it is replayed: other numbers in the same tensors, and autograd hears nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    x, y = batch()
    static = functional.cross_entropy(model(x), y)
    static.backward()
    for _ in range(120):
        x, y = batch()
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for tensor, grad in zip(model.parameters(), grads, strict=True):
            tensor.grad.numpy()[...] = grad.numpy()
        static.detach().numpy()[...] = float(loss.detach())
        optimizer.step()
        doctor.log_loss(static)
    assert "suspicious-loss" not in grave(doctor)


@CUDA
@pytest.mark.filterwarnings("ignore")  # the compiler's own hints
def test_a_loss_of_a_compiled_cuda_graph():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    made = torch.compile(lambda x, y: functional.cross_entropy(model(x), y), mode="reduce-overhead")
    for _ in range(80):
        x, y = batch(device="cuda")
        loss = made(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss)
    assert grave(doctor) == set()
    assert len(doctor._examination.chart["loss"]) == 80


class Overwritten(torch.Tensor):
    """As torch's own behave once a compiled CUDA graph has run again."""

    def detach(self):
        raise RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run.")


def test_a_loss_that_was_overwritten_is_left_out_with_a_word():
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(20):
        doctor.log_loss(torch.zeros(()).as_subclass(Overwritten))
    doctor.detach()
    assert [note.split(" was ")[0] for note in doctor.diagnose().notes] == ["loss"]


@pytest.mark.parametrize(("limit", "clips"), [(float("inf"), 0), (1.0, 100)])
def test_a_norm_that_is_only_asked_for_is_no_clip(limit, clips):
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = []
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        doctor.subscribe(records.append)
        for _ in range(100):
            x, y = batch()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()
            doctor.log_loss(loss)
    rows = [record["vitals"] for record in records if record["type"] == "vitals"]
    assert len(rows) == sum("grad_norm" in row for row in rows) == 100
    assert bool(doctor._examination.chart["clip"]) is bool(clips)
