"""Ranks side by side: two real processes under torchrun, and what is made of journals by rank."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import torchdoctor
from torchdoctor.ranks import Rank, Ranks, compared

SCRIPT = """
import sys
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchdoctor.vitals.ranks
from torchdoctor import Doctor

torchdoctor.vitals.ranks.SECONDS = 0.1
fault = sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
model = inner if fault == "not wrapped" else DistributedDataParallel(inner)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(rank)

def slow(*args):
    if fault == "slow" and rank == 1:
        torch.cuda._sleep(40_000_000) if device == "cuda" else time.sleep(0.02)

inner.register_forward_hook(slow)
with Doctor(model, optimizer, journal=sys.argv[1], settings={"quiet": True}) as doctor:
    for step in range(400):
        x = torch.randn(16, 8, generator=generator).to(device)
        if fault == "nan" and rank == 1 and step == 200:
            x[0] = float("nan")
        called = inner if fault == "bypassed" else model
        loss = (called(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault == "flipped" and rank == 1 and step == 150:
            with torch.no_grad():
                inner[0].weight[3, 3] += 4.0
        doctor.log_loss(loss)
        time.sleep(0.004)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", {}),
        ("bypassed", {"rank-divergence": None}),
        ("not wrapped", {"rank-divergence": None}),
        ("flipped", {"rank-divergence": None}),
        ("slow", {"straggler-rank": 1}),
        ("nan", {"straggler-rank": 1}),
    ],
)
def test_two_processes(fault, expected, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*command, script, tmp_path / "run", fault], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = torchdoctor.diagnose(tmp_path / "run")
    found = {item.name: item.rank for item in report.symptoms if item.code.startswith("RA")}
    assert found == expected


def rank(*, weights: float = 1.0, norm: float = 1.0, loss: float = 1.0, own: float = 0.01) -> Rank:
    """A rank whose numbers differ from the others' by a factor."""
    made = Rank(Path("none"))
    for step in range(40):
        vitals = {"loss": loss * (2 + math.sin(step)), "grad_norm": norm * (1 + step), "seconds": 0.1}
        made.take({"type": "vitals", "step": step, "vitals": {**vitals, "forward_seconds": own, "data_seconds": 0.0}})
        if step % 10 == 0:
            made.take({"type": "tensors", "step": step, "vitals": {"weight_norm": [weights, 2.0]}})
    return made


def test_replicas_that_differ_and_those_that_do_not():
    same = compared([rank(), rank(loss=1.1), rank(loss=0.9)], "replicas")
    assert same["rank_weights_apart"] == same["rank_gradients_apart"] == 0
    other = compared([rank(), rank(loss=1.1), rank(loss=0.9, weights=1.02)], "")
    assert other["rank_weights_apart"] == pytest.approx(0.02, rel=0.1)
    assert other["rank_apart"] == 2


def test_shards_are_not_compared():
    shards = [rank(), rank(weights=1.5, norm=2.0)]  # of one batch: the same loss
    assert "rank_weights_apart" not in compared(shards, "shards")
    assert "rank_weights_apart" not in compared(shards, "")


def test_the_slowest_rank():
    found = compared([rank(), rank(own=0.03), rank()], "")
    assert found["rank_slowest"] == 1
    assert found["rank_slowness"] == pytest.approx(3)
    assert found["rank_waited"] == pytest.approx(0.2)


def test_a_loss_that_is_lost_on_one_rank_alone():
    ranks = [rank(), rank(), rank()]
    ranks[2].take({"type": "vitals", "step": 40, "vitals": {"loss": "NaN"}})
    assert "rank_lost" not in compared(ranks, "")  # the others may come to it too
    for number in (0, 1):
        ranks[number].take({"type": "vitals", "step": 40, "vitals": {"loss": 1.0}})
    assert compared(ranks, "")["rank_lost"] == 2
    ranks[0].take({"type": "vitals", "step": 41, "vitals": {"loss": "NaN"}})  # that is what followed
    assert compared(ranks, "")["rank_lost_at"] == 40


def test_journals_are_read_as_they_grow(tmp_path):
    ranks = Ranks(tmp_path / "journal.jsonl", 2, "")
    assert ranks.compare() == {}
    one, two = tmp_path / "journal.jsonl", tmp_path / "journal.rank1.jsonl"
    one.write_text('{"type": "vitals", "step": 3, "vitals": {"loss": 1.0}}\nnot json\n[1]\n')
    two.write_text('{"type": "vitals", "step": 3, "vitals": {"lo')
    assert ranks.compare() == {}
    with two.open("a") as file:
        file.write('ss": "NaN"}}\n')
    assert ranks.compare() == {"rank_lost": 1.0, "rank_lost_at": 3.0}
