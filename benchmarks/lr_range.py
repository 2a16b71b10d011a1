"""Is the learning rate that `torchdoctor.lr_range` suggests a good one? Compared with a grid search, on eight problems.

Each problem is trained at every rate of a grid (a quarter of a decade apart) and at the suggested one, from the same
weights, over the same batches, with the same schedule (a short warm-up, then a cosine to zero), and judged by the loss
on data that was held out. The suggestion is right where its loss is within 10 % of the grid's best.

    python benchmarks/lr_range.py [--steps 300] [--seeds 1] [--only NAME]
"""

from __future__ import annotations

import argparse
import copy
import gzip
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchdoctor
from torchdoctor.clinic.data import Corpus, load_text

GRID = [10 ** (power / 4) for power in range(-18, 5)]
"""From 3e-5 to 10, a quarter of a decade apart."""
GOOD = 1.10
BATCH = 32


@dataclass
class Problem:
    """A model, its loss, its data and its optimizer."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    x: Tensor
    y: Tensor
    held_out: tuple[Tensor, Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]

    def batches(self, count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        """So many batches, the same for every rate."""
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(len(self.x), (count, BATCH), generator=generator)
        return [(self.x[row], self.y[row]) for row in rows]


@cache
def pictures() -> tuple[Tensor, Tensor]:
    """Fashion-MNIST's test images at half their size, from the folder TORCHDOCTOR_DATA; else a stand-in."""
    folder = Path(os.environ.get("TORCHDOCTOR_DATA", "")) / "fashion_mnist"
    if (folder / "t10k-images-idx3-ubyte.gz").is_file():
        with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
        with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8)
        x = functional.avg_pool2d(torch.from_numpy(pixels.astype(np.float32)), 2)
        return (x - x.mean()) / x.std(), torch.from_numpy(labels.astype(np.int64))
    generator = torch.Generator().manual_seed(0)
    kinds = functional.avg_pool2d(torch.randn(10, 1, 14, 14, generator=generator), 5, 1, 2) * 5
    y = torch.randint(10, (10_000,), generator=generator)
    return kinds[y] + 4 * torch.randn(10_000, 1, 14, 14, generator=generator), y


def images(seed: int, channels: bool) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Images to train on and images held out, as they are or as rows."""
    x, y = pictures()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = (x if channels else x.flatten(1))[order], y[order]
    return x[:8000], y[:8000], (x[8000:], y[8000:])


def mlp(seed: int) -> Problem:
    """A multilayer perceptron that classifies, with Adam."""
    x, y, held = images(seed, channels=False)
    model = nn.Sequential(nn.Linear(196, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return Problem(model, nn.CrossEntropyLoss(), x, y, held, lambda p: torch.optim.Adam(p))


def plain_cnn(seed: int) -> Problem:
    """A convolutional network, with SGD and momentum."""
    x, y, held = images(seed, channels=True)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10),
    )  # fmt: skip
    return Problem(model, nn.CrossEntropyLoss(), x, y, held, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def norm_cnn(seed: int) -> Problem:
    """A convolutional network with batch normalization, with AdamW."""
    x, y, held = images(seed, channels=True)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1),
        nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10),
    )  # fmt: skip
    return Problem(model, nn.CrossEntropyLoss(), x, y, held, lambda p: torch.optim.AdamW(p, weight_decay=0.05))


class Characters(nn.Module):
    """The next character of a text, by a recurrent network."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, 48)
        self.cell = nn.GRU(48, 96, batch_first=True)
        self.head = nn.Linear(96, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits for every position."""
        out: Tensor = self.head(self.cell(self.token(tokens))[0])
        return out


def text(seed: int, length: int) -> tuple[Corpus, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Pieces of a text, and the same moved by one character."""
    corpus = Corpus(load_text(None))
    draw = corpus.batches("train", batch_size=1500, context=length, seed=seed, device="cpu")
    validation = corpus.batches("validation", batch_size=150, context=length, seed=seed, device="cpu")
    x, y = draw()
    return corpus, x, y, validation()


def of_tokens(logits: Any, targets: Tensor) -> Tensor:
    """Cross-entropy of every position."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def gru(seed: int) -> Problem:
    """A recurrent network on characters, with Adam."""
    corpus, x, y, held = text(seed, 24)
    return Problem(Characters(corpus.vocabulary), of_tokens, x, y, held, lambda p: torch.optim.Adam(p))


def gpt(seed: int) -> Problem:
    """A small transformer on characters, with AdamW."""
    from torchdoctor.clinic.patient import GPT, Recipe

    corpus, x, y, held = text(seed, 24)
    recipe = Recipe(layers=2, heads=2, width=48, context=24, dropout=0.1)
    model = GPT(recipe, corpus.vocabulary)
    return Problem(model, of_tokens, x, y, held, lambda p: torch.optim.AdamW(p, betas=(0.9, 0.99), weight_decay=0.1))


def regression(seed: int) -> Problem:
    """A regression on ten columns, half of which matter (Friedman's function), with SGD."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2500, 10, generator=generator)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = y + torch.randn(y.shape, generator=generator)
    x, y = (x - 0.5) * 3.46, ((y - y.mean()) / y.std()).unsqueeze(1)
    model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    held = (x[2000:], y[2000:])
    return Problem(model, nn.MSELoss(), x[:2000], y[:2000], held, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def autoencoder(seed: int) -> Problem:
    """An autoencoder, with Adam."""
    x, _, held = images(seed, channels=False)
    model = nn.Sequential(
        nn.Linear(196, 64), nn.GELU(), nn.Linear(64, 16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 196)
    )
    return Problem(model, nn.MSELoss(), x, x, (held[0], held[0]), lambda p: torch.optim.Adam(p))


def linear(seed: int) -> Problem:
    """A logistic regression, with plain SGD."""
    x, y, held = images(seed, channels=False)
    return Problem(nn.Linear(196, 10), nn.CrossEntropyLoss(), x, y, held, lambda p: torch.optim.SGD(p, lr=0.1))


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "mlp, Adam": mlp,
    "cnn, SGD 0.9": plain_cnn,
    "batch-norm cnn, AdamW": norm_cnn,
    "gru on text, Adam": gru,
    "gpt on text, AdamW": gpt,
    "regression, SGD 0.9": regression,
    "autoencoder, Adam": autoencoder,
    "logistic, SGD": linear,
}


def trained(problem: Problem, lr: float, batches: list[tuple[Tensor, Tensor]]) -> float:
    """The loss on what was held out, after training at a rate; infinite where it diverged."""
    torch.manual_seed(1)
    model = copy.deepcopy(problem.model).train()
    optimizer = problem.optimizer(model.parameters())
    warmup = max(1, len(batches) // 20)
    for step, (x, y) in enumerate(batches):
        done = (step - warmup) / max(1, len(batches) - warmup)
        share = (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = lr * share
        loss = problem.loss_fn(model(x), y)
        if not torch.isfinite(loss):
            return math.inf
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    with torch.no_grad():
        found = float(problem.loss_fn(model(problem.held_out[0]), problem.held_out[1]))
    return found if math.isfinite(found) else math.inf


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    row = "{:<24} {:>4} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}  {}"
    print(
        row.format("problem", "seed", "suggested", "safe max", "grid best", "loss", "best loss", "ratio", "s", "right")
    )
    right = total = 0
    for name, build in PROBLEMS.items():
        for seed in range(given.seeds):
            if given.only not in name:
                continue
            torch.manual_seed(seed)
            problem = build(seed)
            batches = problem.batches(given.steps, seed)
            begun = time.perf_counter()
            optimizer = problem.optimizer(problem.model.parameters())
            found = torchdoctor.lr_range(problem.model, problem.loss_fn, batches, optimizer)
            took = time.perf_counter() - begun
            losses = {lr: trained(problem, lr, batches) for lr in GRID}
            best = min(losses, key=losses.__getitem__)
            loss = trained(problem, found.suggestion, batches) if found.suggestion else math.inf
            ratio = loss / losses[best]
            total, right = total + 1, right + (ratio <= GOOD)
            print(
                row.format(
                    name, seed, f"{found.suggestion or math.nan:.2g}", f"{found.maximum or math.nan:.2g}",
                    f"{best:.2g}", f"{loss:.4f}", f"{losses[best]:.4f}", f"{ratio:.3f}", f"{took:.1f}",
                    "yes" if ratio <= GOOD else "NO",
                ),
                flush=True,
            )  # fmt: skip
    print(f"\n{right} of {total} suggestions train to within 10 % of the best of {len(GRID)} rates.")


if __name__ == "__main__":
    main()
