"""How long a loop waits for data: time in which nothing is done, not time in which the device catches up."""

import time

import pytest
import torch
from tests.vitals.loops import chart_of, watch
from torch import nn

STEPS, PAUSE = 40, 0.02
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


class Busy(nn.Module):
    """Some tens of milliseconds of work for a GPU, which the host has handed over in one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("heavy", torch.randn(8192, 8192))

    def forward(self, x):
        for _ in range(8 if self.heavy.is_cuda else 0):
            torch.mm(self.heavy, self.heavy)
        return self.layer(x)


def waits(device: str, batches) -> torch.Tensor:
    model = Busy().to(device) if device == "cuda" else nn.Linear(64, 64)
    chart = chart_of(watch(model, torch.optim.SGD(model.parameters(), 0.01), batches, nn.MSELoss(), STEPS))
    return torch.tensor(chart["data_seconds"].values[-3:])


def from_memory(device: str, pause: float):
    def batches(step):
        time.sleep(pause)
        return torch.randn(8, 64).to(device), torch.zeros(8, 64).to(device)

    return batches


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def test_a_slow_source(device):
    # On the GPU the pause is longer than what the device still has to do.
    pause = PAUSE if device == "cpu" else 20 * PAUSE
    assert waits(device, from_memory(device, pause)).min() > pause / 2


@NEEDS_CUDA
def test_a_busy_device():
    """The copy waits until the device has done its work: that is no wait for data."""
    spent = []

    def batches(step):
        began = time.perf_counter()
        batch = from_memory("cuda", 0.0)(step)
        spent.append(time.perf_counter() - began)
        return batch

    found = waits("cuda", batches)
    assert found.max() < 0.2 * sorted(spent)[STEPS // 2]
