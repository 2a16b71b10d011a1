"""Faults and healthy runs on models that are not the clinic's patient; a set to report on, not to tune on.

    python benchmarks/elsewhere.py            # some minutes on one core

Nine set-ups (MLPs with three optimizers, a regression on targets in the hundreds, LSTM, autoencoder, a summed loss,
REINFORCE, a CNN with BatchNorm), two seeds, faults at steps 40, 120 and 400; every second seed clips at 1.0. "Found"
is any finding at warning or above within three steps. Some faults do no harm here (an outlier that tanh or BatchNorm
absorbs, a learning rate that was low): they count as missed all the same. Then healthy runs of 2,000 steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor import Doctor, Report

FAULTS = ("gradients x 20", "gradients x 1e-8", "NaN batch", "batch x 100", "learning rate x 100")
STEPS = (40, 120, 400)
Scale = list[float]
SetUp = tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]


class Sequence(nn.Module):
    """An LSTM with a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One output for every position."""
        out: Tensor = self.head(self.cell(x)[0])
        return out


def classification(optimizer: str, scale: Scale, draw: torch.Generator, reduction: str = "mean") -> SetUp:
    """Five overlapping clouds."""
    centres = 1.5 * torch.randn(5, 20, generator=draw)
    y = torch.randint(0, 5, (2000,), generator=draw)
    x = centres[y] + 1.5 * torch.randn(2000, 20, generator=draw)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    made: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=1e-4 if reduction == "sum" else 0.1),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=1e-3),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    }

    def loss() -> Tensor:
        rows = torch.randint(0, 2000, (128 if reduction == "sum" else 32,), generator=draw)
        return functional.cross_entropy(model(x[rows] * scale[0]), y[rows], reduction=reduction)

    return model, made[optimizer](), loss


def regression(scale: Scale, draw: torch.Generator) -> SetUp:
    """Targets in the hundreds, not normalized."""
    model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))
    x = torch.randn(3000, 10, generator=draw)
    y = x @ (300 * torch.randn(10, 1, generator=draw)) + 50 * torch.randn(3000, 1, generator=draw)

    def loss() -> Tensor:
        rows = torch.randint(0, 3000, (64,), generator=draw)
        return functional.mse_loss(model(x[rows] * scale[0]), y[rows])

    return model, torch.optim.Adam(model.parameters(), lr=1e-2), loss


def recurrent(scale: Scale, draw: torch.Generator) -> SetUp:
    """The next value of a sine."""
    model = Sequence()

    def loss() -> Tensor:
        wave = torch.sin(0.3 * torch.arange(30) + 6.28 * torch.rand(16, 1, generator=draw)).unsqueeze(-1)
        return functional.mse_loss(model(wave[:, :-1] * scale[0]), wave[:, 1:])

    return model, torch.optim.Adam(model.parameters(), lr=3e-3), loss


def autoencoder(scale: Scale, draw: torch.Generator) -> SetUp:
    """Eight hidden directions in fifty dimensions."""
    model = nn.Sequential(nn.Linear(50, 16), nn.ReLU(), nn.Linear(16, 50))
    basis = torch.randn(8, 50, generator=draw)

    def loss() -> Tensor:
        x = torch.randn(64, 8, generator=draw) @ basis
        return functional.mse_loss(model(x * scale[0]), x)

    return model, torch.optim.AdamW(model.parameters(), lr=2e-3), loss


def reinforce(scale: Scale, draw: torch.Generator) -> SetUp:
    """A policy gradient on a contextual bandit: a loss that is mostly noise."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    reward = torch.randn(4, 3, generator=draw)

    def loss() -> Tensor:
        x = torch.randn(20, 4, generator=draw) * scale[0]
        chances = model(x).log_softmax(-1)
        action = torch.multinomial(chances.exp().nan_to_num(1 / 3), 1, generator=draw)
        gain = (x @ reward).gather(1, action)
        out: Tensor = -(chances.gather(1, action) * (gain - gain.mean())).mean()
        return out

    return model, torch.optim.Adam(model.parameters(), lr=3e-3), loss


def convolutional(scale: Scale, draw: torch.Generator) -> SetUp:
    """Four noisy patterns, with BatchNorm."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4)
    )
    patterns = torch.randn(4, 1, 12, 12, generator=draw)

    def loss() -> Tensor:
        y = torch.randint(0, 4, (32,), generator=draw)
        x = patterns[y] + 1.2 * torch.randn(32, 1, 12, 12, generator=draw)
        return functional.cross_entropy(model(x * scale[0]), y)

    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loss


SET_UPS: dict[str, Callable[[Scale, torch.Generator], SetUp]] = {
    "MLP, SGD": lambda scale, draw: classification("sgd", scale, draw),
    "MLP, Adam": lambda scale, draw: classification("adam", scale, draw),
    "MLP, momentum": lambda scale, draw: classification("momentum", scale, draw),
    "regression in hundreds": regression,
    "LSTM": recurrent,
    "autoencoder": autoencoder,
    "summed loss": lambda scale, draw: classification("sgd", scale, draw, reduction="sum"),
    "REINFORCE": reinforce,
    "CNN": convolutional,
}


def train(name: str, seed: int, steps: int, fault: str | None = None, at: int = -1) -> Report:
    """One watched run, with a fault at a step or without."""
    torch.manual_seed(seed)
    scale = [1.0]
    model, optimizer, loss_of = SET_UPS[name](scale, torch.Generator().manual_seed(seed + 1))
    rate: Any = optimizer.param_groups[0]["lr"]
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for step in range(steps):
            here = step == at
            scale[0] = {"batch x 100": 100.0, "NaN batch": float("nan")}.get(fault or "", 1.0) if here else 1.0
            if fault == "learning rate x 100" and step >= at:
                optimizer.param_groups[0]["lr"] = 100 * rate
            loss = loss_of()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if here and fault in ("gradients x 20", "gradients x 1e-8"):
                factor = 20.0 if fault == "gradients x 20" else 1e-8
                torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], factor)
            if seed % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            doctor.log_loss(loss)
        return doctor.diagnose()


@click.command()
@click.option("--seeds", default=2, show_default=True)
@click.option("--healthy-seeds", default=3, show_default=True)
def main(seeds: int, healthy_seeds: int) -> None:
    """Print what is found of each fault on each set-up, and what is said of healthy runs."""
    torch.set_num_threads(1)
    print(f"{'set-up':24}" + "".join(f"{fault:>21}" for fault in FAULTS))
    totals: Counter[str] = Counter()
    for name in SET_UPS:
        row = ""
        for fault in FAULTS:
            runs = [(train(name, 100 + seed, at + 5, fault, at), at) for seed in range(seeds) for at in STEPS]
            found = sum(
                any(s.severity != "info" and at <= s.first_step <= at + 3 for s in report.symptoms)
                for report, at in runs
            )
            totals["found"] += found
            totals["runs"] += len(runs)
            row += f"{f'{found} of {len(runs)}':>21}"
        print(f"{name:24}{row}", flush=True)
    print(f"found within 3 steps at warning or above: {totals['found']} of {totals['runs']}")
    for name in SET_UPS:
        for seed in range(healthy_seeds):
            report = train(name, seed, 2000)
            warned = [f"step {s.first_step} {s.name}" for s in report.symptoms if s.severity != "info"]
            totals["warned"] += bool(warned)
            if warned:
                print(f"healthy {name}, seed {seed}: {', '.join(warned)}", flush=True)
    print(f"healthy runs with a warning: {totals['warned']} of {len(SET_UPS) * healthy_seeds}, 2,000 steps each")


if __name__ == "__main__":
    main()
