"""Several trainings in one process: a clip in one thread must not touch the gradients of another."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import threading, torch
from torch import nn
from torchdoctor import Doctor

reached = []

def train(watched):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = Doctor(model, optimizer, settings={"quiet": True}) if watched else None
    for _ in range(300):
        loss = model(torch.randn(32, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if doctor is not None:
            doctor.log_loss(loss)
    if doctor is not None:
        reached.append(doctor.diagnose().step)

threads = [threading.Thread(target=train, args=(watched,)) for watched in %r]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*reached)
"""


@pytest.mark.parametrize("watched", [(True, True, True), (True, False, False)])
def test_runs_in_several_threads_do_not_meet(watched):
    done = subprocess.run([sys.executable, "-c", SCRIPT % (watched,)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.split()) == (0, ["299"] * sum(watched)), done.stderr
