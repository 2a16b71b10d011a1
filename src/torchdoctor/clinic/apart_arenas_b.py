"""More arenas for kinds written apart: other nets, losses and data than those of `arenas`.

>>> sorted(ARENAS)[:3]
['backwards', 'bands', 'branches']
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.apart_nets import (
    BothTasks,
    Censored,
    Dilated,
    Forecaster,
    Graphs,
    MixtureDensity,
    PatchTransformer,
    Pinball,
    Ratings,
    Reader,
    Sets,
    Table,
    TiedDecoder,
    Translator,
    Triplet,
    TwoHeads,
    UNet,
)
from torchdoctor.clinic.arenas import Arena, Build, corpus, perceptron, pictures, teacher_labels, windows

HIDDEN = -100
"""A target that cross-entropy leaves out."""


def _split(x: Tensor, y: Tensor, held_out: int = 256) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


def _smooth(x: Tensor, units: int = 24) -> Tensor:
    """A smooth random function of vectors, of about unit scale."""
    y = torch.tanh(x @ torch.randn(x.shape[1], units) / x.shape[1] ** 0.5 * 1.5) @ torch.randn(units)
    return (y - y.mean()) / y.std()


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _cells(dice: random.Random) -> Arena:
    """Bright and dark discs on a noisy ground: the class of each pixel."""
    size, count = 16, 1280
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    y = torch.zeros(count, size, size, dtype=torch.long)
    for label in (1, 2):
        middle, radius = 3 + 10 * torch.rand(count, 2, 1, 1), 2 + 2 * torch.rand(count, 1, 1)
        near = (rows - middle[:, 0]).pow(2) + (columns - middle[:, 1]).pow(2) < radius.pow(2)
        y[near] = label
    x = torch.tensor([0.0, 1.2, -1.2])[y] + 0.8 * torch.randn(count, size, size)
    x, y, validation = _split(x.unsqueeze(1), y, 128)
    model = UNet(dice.choice([6, 8]), 3)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 16, adam=4e-3, sgd=0.1, classes=3, steps=250)


def _patches(dice: random.Random) -> Arena:
    classes = dice.choice([4, 6])
    x, y, validation = _split(*pictures(4352, classes))
    model = PatchTransformer(dice.choice([24, 32]), classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 24, adam=2e-3, sgd=0.05, classes=classes, steps=250)


def _denoiser(dice: random.Random) -> Arena:
    clean, _ = pictures(3328, 6)
    clean = functional.avg_pool2d(clean, 3, 1, 1).flatten(1)
    clean = clean / clean.std()
    x, y, validation = _split(clean + 0.5 * torch.randn_like(clean), clean)
    model = nn.Sequential(perceptron([144, 96, 24]), nn.ReLU(), perceptron([24, 96, 144]))
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 48]), adam=2e-3, sgd=0.5, steps=300)


# ── texts and symbols ────────────────────────────────────────────────────────────────────────────────────────────────


def _masked_text(dice: random.Random) -> Arena:
    tokens = corpus().vocabulary
    text, _ = windows(4160, 24)
    hidden = torch.rand(text.shape) < 0.2
    x, y, validation = _split(text.masked_fill(hidden, tokens), text.masked_fill(~hidden, HIDDEN), 128)
    model = Reader(tokens, dice.choice([32, 48]))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 16, adam=3e-3, sgd=0.1, classes=tokens, steps=300)


def _tied_text(dice: random.Random) -> Arena:
    tokens = corpus().vocabulary
    x, y, validation = _split(*windows(4160, 24), 64)
    model = TiedDecoder(tokens, dice.choice([32, 48]))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 12, adam=3e-3, sgd=0.1, classes=tokens, steps=300)


def _backwards(dice: random.Random) -> Arena:
    """A row of symbols is written backwards, with some slips; the decoder is given what was written so far."""
    symbols, length = dice.choice([8, 10]), 7
    source = torch.randint(symbols, (6400, length))
    target = source.flip(1)
    wrong = torch.rand(target.shape) < 0.1
    target = torch.where(wrong, torch.randint(symbols, target.shape), target)
    given = torch.cat([torch.full((len(source), 1), symbols), target[:, :-1]], 1)
    x, y, validation = _split(torch.cat([source, given], 1), target)
    model = Translator(symbols, 48, length)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=5e-3, sgd=0.3, classes=symbols, steps=400)


# ── tables, pairs and sets ───────────────────────────────────────────────────────────────────────────────────────────


def _ratings(dice: random.Random) -> Arena:
    users, things, rank = 150, 100, 3
    x = torch.stack([torch.randint(users, (9216,)), torch.randint(things, (9216,))], 1)
    y = (torch.randn(users, rank)[x[:, 0]] * torch.randn(things, rank)[x[:, 1]]).sum(1) / rank**0.5
    y = y + 0.5 * torch.randn(users)[x[:, 0]] + 0.2 * torch.randn(len(x))
    x, y, validation = _split(x, y, 512)
    model = Ratings(users, things, 6)
    return Arena(model, nn.MSELoss(), x, y, validation, 128, adam=2e-2, sgd=0.5, steps=400)


def _table(dice: random.Random) -> Arena:
    numbers, sizes = torch.randn(6656, 8), [6, 12]
    words = torch.stack([torch.randint(size, (len(numbers),)) for size in sizes], 1)
    score = 1.6 * _smooth(numbers) + sum(torch.randn(size)[words[:, place]] for place, size in enumerate(sizes))
    y = (score + 0.4 * torch.randn(len(numbers)) > score.mean()).float().unsqueeze(1)
    x, y, validation = _split(torch.cat([numbers, words.float()], 1), y, 512)
    model = Table(8, sizes, dice.choice([32, 48]))
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, 64, adam=3e-3, sgd=0.05, steps=350)


def _tags(dice: random.Random) -> Arena:
    """Several labels may hold at once; each holds for about one in six."""
    x = torch.randn(6656, 16)
    scores = torch.stack([_smooth(x) for _ in range(8)], 1)
    x, y, validation = _split(x, (scores > 0.95).float(), 512)
    model = perceptron([16, 64, 64, 8], nn.SiLU)
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([48, 64]), adam=3e-3, sgd=0.3, steps=400)


def _two_tasks(dice: random.Random) -> Arena:
    x = torch.randn(6656, 12)
    classes = dice.choice([4, 6])
    y = torch.stack([teacher_labels(x, classes).float(), _smooth(x) + 0.1 * torch.randn(len(x))], 1)
    x, y, validation = _split(x, y, 512)
    model = TwoHeads(12, 64, classes)
    return Arena(model, BothTasks(), x, y, validation, dice.choice([32, 64]), adam=3e-3, sgd=0.05, steps=400)


def _triplets(dice: random.Random) -> Arena:
    """Points about ten centres, under noise in most directions."""
    centres = 1.2 * torch.randn(10, 6)
    mix, count = torch.randn(30, 30) / 30**0.5, 4352
    kinds = torch.randint(10, (count, 2))
    kinds[:, 1] = (kinds[:, 0] + torch.randint(1, 10, (count,))) % 10
    chosen = kinds[:, [0, 0, 1]]
    x = torch.cat([centres[chosen] + 0.4 * torch.randn(count, 3, 6), torch.randn(count, 3, 24)], -1) @ mix
    x, y, validation = _split(x, torch.zeros(count))
    model = perceptron([30, 64, 64, 8])
    return Arena(model, Triplet(), x, y, validation, dice.choice([32, 64]), adam=1e-3, sgd=0.03, steps=300)


def _members(dice: random.Random) -> Arena:
    """Sets of vectors whose spread along hidden directions decides the class."""
    x = torch.randn(4352, 12, 4) * (0.5 + torch.rand(4352, 1, 4))
    scores = x.pow(2).mean(1) @ torch.randn(4, 4) + x.mean(1) @ torch.randn(4, 4)
    x, y, validation = _split(x, (scores - scores.mean(0)).argmax(1))
    model = Sets(4, dice.choice([32, 48]), 4)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 48, adam=3e-3, sgd=0.1, classes=4, steps=350)


def _graphs(dice: random.Random) -> Arena:
    """Nodes in two to four groups with more links inside: the class is the group's, the features are faint."""
    nodes, classes, count = 24, 3, 1408
    y = torch.randint(classes, (count, nodes))
    same = y.unsqueeze(1) == y.unsqueeze(2)
    links = (torch.rand(count, nodes, nodes) < torch.where(same, 0.5, 0.06)).float()
    links = ((links + links.transpose(1, 2)) > 0).float().maximum(torch.eye(nodes))
    features = torch.randn(classes, 8)[y] * 0.5 + torch.randn(count, nodes, 8)
    x, y, validation = _split(torch.cat([features, links], -1), y, 128)
    model = Graphs(8, 32, classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 16, adam=4e-3, sgd=0.1, classes=classes, steps=250)


# ── numbers, densities and series ────────────────────────────────────────────────────────────────────────────────────


def _counts(dice: random.Random) -> Arena:
    x = torch.randn(6656, 10)
    y = torch.poisson((0.8 * _smooth(x) + dice.choice([0.3, 0.8])).exp()).unsqueeze(1)
    x, y, validation = _split(x, y, 512)
    model = perceptron([10, 48, 48, 1], nn.Tanh)
    return Arena(model, nn.PoissonNLLLoss(), x, y, validation, 64, adam=3e-3, sgd=0.02, steps=400)


def _quantiles(dice: random.Random) -> Arena:
    x = torch.randn(6656, 8)
    y = _smooth(x) + (0.2 + 0.3 * torch.sigmoid(_smooth(x))) * torch.randn(len(x))
    x, y, validation = _split(x, y.unsqueeze(1), 512)
    model = perceptron([8, 64, 64, 3])
    return Arena(model, Pinball(), x, y, validation, dice.choice([48, 64]), adam=3e-3, sgd=0.2, steps=400)


def _mixture(dice: random.Random) -> Arena:
    """Two branches over each point, sharp enough that the density is far above one."""
    x = torch.randn(6656, 4)
    branch = torch.where(torch.rand(len(x)) < 0.4, 1.0, -1.0)
    y = 0.3 * _smooth(x) + branch * (0.5 + 0.2 * torch.sigmoid(_smooth(x))) + 0.05 * torch.randn(len(x))
    x, y, validation = _split(x, y.unsqueeze(1), 512)
    model = perceptron([4, 64, 64, 12], nn.Tanh)
    return Arena(model, MixtureDensity(), x, y, validation, 64, adam=3e-3, sgd=0.01, steps=500)


def _censored_times(dice: random.Random) -> Arena:
    x = torch.randn(6656, 8)
    time = torch.empty(len(x)).exponential_() / (1.2 * _smooth(x)).exp()
    end = dice.choice([0.3, 0.6])
    y = torch.stack([time.clamp(max=end), (time < end).float()], 1)
    x, y, validation = _split(x, y, 512)
    model = perceptron([8, 48, 48, 1], nn.ELU)
    return Arena(model, Censored(), x, y, validation, 64, adam=2e-3, sgd=0.05, steps=400)


def _waves(count: int, length: int) -> Tensor:
    """Sums of two waves of random speed and phase, in a little noise."""
    time = torch.arange(length).view(1, 1, -1)
    speed, phase = 0.15 + 0.5 * torch.rand(count, 2, 1), 6.3 * torch.rand(count, 2, 1)
    return (speed * time + phase).sin().sum(1) + 0.1 * torch.randn(count, length)


def _forecast(dice: random.Random) -> Arena:
    series, ahead = _waves(4352, 28), 4
    x, y, validation = _split(series[:, :-ahead].unsqueeze(-1), series[:, -ahead:])
    model = Forecaster(dice.choice([24, 32]), ahead)
    return Arena(model, nn.MSELoss(), x, y, validation, 32, adam=4e-3, sgd=0.1, steps=300)


def _dilated_series(dice: random.Random) -> Arena:
    series = _waves(3328, 33)
    series[:, 1:] += 0.6 * torch.randn(3328, 32)
    x, y, validation = _split(series[:, None, :-1], series[:, None, 1:])
    model = Dilated(dice.choice([16, 24]))
    return Arena(model, nn.MSELoss(), x, y, validation, 24, adam=3e-3, sgd=0.1, steps=300)


ARENAS: dict[str, Build] = {
    "cells": _cells,
    "shapes-vit": _patches,
    "denoiser": _denoiser,
    "masked-text": _masked_text,
    "tied-text": _tied_text,
    "backwards": _backwards,
    "films": _ratings,
    "customers": _table,
    "keywords": _tags,
    "class-and-number": _two_tasks,
    "metric": _triplets,
    "members": _members,
    "communities": _graphs,
    "visits": _counts,
    "bands": _quantiles,
    "branches": _mixture,
    "censored-times": _censored_times,
    "tides": _forecast,
    "dilated-series": _dilated_series,
}
"""By name, as in `arenas`."""
