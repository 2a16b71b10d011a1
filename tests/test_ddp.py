"""Two real processes under torchrun: each rank has its journal, and both see the same, reduced gradients."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import torchdoctor

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchdoctor import Doctor

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(rank)
with Doctor(model, optimizer, journal=sys.argv[1]) as doctor:
    for step in range(40):
        x = torch.randn(16, 8, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        if step == 30:
            torch._foreach_mul_([p.grad for p in model.parameters()], 1000.0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss)
    report = doctor.diagnose()
    print(rank, report.health, [note for note in report.notes])
dist.destroy_process_group()
"""


def test_each_rank_keeps_its_journal_and_sees_the_reduced_gradient(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*command, str(script), str(tmp_path / "run")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    runs = [torchdoctor.read(tmp_path / "run" / name) for name in ("journal.jsonl", "journal.rank1.jsonl")]
    vitals = [[record["vitals"] for record in run if record["type"] == "vitals"] for run in runs]
    norms = [[step["grad_norm"] for step in rank] for rank in vitals]
    losses = [[step["loss"] for step in rank] for rank in vitals]
    assert len(norms[0]) == 40 and norms[0] == norms[1] and losses[0] != losses[1]
    report = torchdoctor.diagnose(tmp_path / "run")
    assert report.context["world_size"] == 2
    assert [(s.name, s.first_step) for s in report.symptoms if s.severity != "info"] == [("gradient-explosion", 30)]
    # Findings are announced by rank 0 alone.
    assert done.stderr.count("gradient-explosion") == 1
