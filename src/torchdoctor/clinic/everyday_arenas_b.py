"""Ordinary projects, small: tables, pictures, texts, signals, ratings, generators, metric learning.

>>> import random
>>> arena = ARENAS["everyday-house-prices"](random.Random(0))
>>> arena.model(arena.x[:4]).shape
torch.Size([4, 1])
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic import everyday_nets_b as nets
from torchdoctor.clinic.arenas import Arena, Build, Residual, corpus, perceptron, teacher_labels, windows

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""The bars of a pocket calculator's digits."""
BARS = {
    "a": (2, 4, 5, 11),
    "g": (7, 9, 5, 11),
    "d": (12, 14, 5, 11),
    "f": (2, 9, 4, 6),
    "b": (2, 9, 10, 12),
    "e": (7, 14, 4, 6),
    "c": (7, 14, 10, 12),
}


def _split(x: Tensor, y: Tensor, held_out: int = 512) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Digits of 16 × 16 pixels between 0 and 1, shifted, of different brightness."""
    shapes = torch.zeros(10, 16, 16)
    for digit, bars in enumerate(SEGMENTS):
        for bar in bars:
            top, bottom, left, right = BARS[bar]
            shapes[digit, top:bottom, left:right] = 1
    y = torch.randint(10, (count,))
    x = shapes[y] * (0.6 + 0.4 * torch.rand(count, 1, 1))
    down, across = torch.randint(-2, 3, (2, count))
    rows, columns = torch.arange(16).view(1, 16, 1), torch.arange(16).view(1, 1, 16)
    each = torch.arange(count).view(-1, 1, 1)
    return x[each, (rows - down.view(-1, 1, 1)) % 16, (columns - across.view(-1, 1, 1)) % 16].unsqueeze(1), y


def noisy_digits(count: int, noise: float) -> tuple[Tensor, Tensor]:
    """Digits in noise, standardised."""
    x, y = digits(count)
    x = x + noise * torch.randn_like(x)
    return (x - x.mean()) / x.std(), y


def _digits(dice: random.Random) -> Arena:
    x, y, validation = _split(*noisy_digits(5120, dice.choice([0.35, 0.5])))
    model = nets.SmallLeNet(dice.choice([6, 8]), 10)
    size = dice.choice([32, 48])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=2e-3, sgd=0.02, classes=10, steps=350)


def _patches(dice: random.Random) -> Arena:
    arena = _digits(dice)
    arena.model = nets.PatchNet(dice.choice([32, 48]), 10)
    arena.adam, arena.sgd = 2e-3, 0.05
    return arena


def _photos(dice: random.Random) -> Arena:
    count = 3584
    y = torch.randint(6, (count,))
    angle = (y % 3).float() * math.pi / 3 + 0.15 * torch.randn(count)
    pitch, phase = 0.9 + 0.5 * torch.rand(count), 6.3 * torch.rand(count)
    grid = torch.arange(16.0)
    along = angle.cos().view(-1, 1, 1) * grid.view(1, 1, 16) + angle.sin().view(-1, 1, 1) * grid.view(1, 16, 1)
    stripes = (along * pitch.view(-1, 1, 1) + phase.view(-1, 1, 1)).sin().unsqueeze(1)
    tints = torch.tensor([[1.0, 0.6, 0.2], [0.3, 0.6, 1.0]])[y // 3].view(-1, 3, 1, 1)
    x = stripes * tints + 0.8 * torch.randn(count, 3, 16, 16)
    x, y, validation = _split((x - x.mean()) / x.std(), y)
    model = nets.SmallResNet(dice.choice([8, 12]), 6)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=2e-3, sgd=0.05, classes=6, steps=300)


def _cells(dice: random.Random) -> Arena:
    count = 1600
    grid = torch.arange(16.0)
    y = torch.zeros(count, 16, 16, dtype=torch.long)
    for _ in range(3):
        centre, radius = 2 + 12 * torch.rand(2, count, 1, 1), 1.5 + 1.5 * torch.rand(count, 1, 1)
        far = (grid.view(1, -1, 1) - centre[0]).square() + (grid.view(1, 1, -1) - centre[1]).square()
        y[far < radius.square()] = 1
    x = (y.float() + 0.7 * torch.randn(count, 16, 16)).unsqueeze(1)
    x, y, validation = _split((x - x.mean()) / x.std(), y, held_out=256)
    model = nets.SmallUNet(dice.choice([8, 12]), 2)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 16, adam=2e-3, sgd=0.05, classes=2, steps=300)


def _churn(dice: random.Random) -> Arena:
    numbers, categories = torch.randn(9216, 8), torch.randint(6, (9216, 3))
    effects = torch.randn(3, 6)
    score = torch.tanh(numbers @ torch.randn(8, 12) / 2) @ torch.randn(12)
    score = score + sum(effects[column][categories[:, column]] for column in range(3))
    score = 2.5 * (score - score.mean()) / score.std() - 0.8
    y = (torch.rand(9216) < score.sigmoid()).float().unsqueeze(1)
    x, y, validation = _split(torch.cat([numbers, categories.float()], 1), y, held_out=1024)
    model = nets.MixedTable(8, 3, 6, dice.choice([32, 64]))
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([32, 64]), adam=3e-3, sgd=0.05)


def _prices(dice: random.Random) -> Arena:
    x = torch.randn(8704, 12)
    y = x @ torch.randn(12, 1) + 2 * torch.tanh(x @ torch.randn(12, 8) / 3) @ torch.randn(8, 1)
    y = (y - y.mean()) / y.std() + 0.2 * torch.randn_like(y)
    x, y, validation = _split(x, y)
    model = perceptron([12, 64, 64, 1], dice.choice([nn.ReLU, nn.SiLU]))
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 64]), adam=3e-3, sgd=0.01)


def _tags(dice: random.Random) -> Arena:
    x = torch.randn(8704, 24)
    y = ((x @ torch.randn(24, 6) / 3 - 0.5 + 0.4 * torch.randn(8704, 6)) > 0).float()
    x, y, validation = _split(x, y)
    model = perceptron([24, 64, 64, 6], dropout=dice.choice([0.0, 0.1]))
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=0.1)


def _species(dice: random.Random) -> Arena:
    x = torch.randn(8704, 16)
    x, y, validation = _split(x, teacher_labels(x, 8))
    width = dice.choice([32, 48])
    blocks = (Residual(width) for _ in range(8))
    model = nn.Sequential(nn.Linear(16, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 8))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 48, adam=1e-3, sgd=0.02, classes=8)


def sentences(count: int, words: int = 120, longest: int = 20) -> tuple[Tensor, Tensor]:
    """Texts padded with 0: words of praise, of blame and of neither; word 1 turns the next one round."""
    feeling = torch.randint(-1, 2, (words,)).float()
    feeling[:2] = 0
    x = torch.randint(2, words, (count, longest))
    x[torch.rand(count, longest) < 0.1] = 1
    x[torch.arange(longest) >= torch.randint(6, longest + 1, (count, 1))] = 0
    turned = torch.cat([torch.zeros(count, 1), (x[:, :-1] == 1).float()], 1)
    total = (feeling[x] * (1 - 2 * turned)).sum(1) + 0.3 * torch.randn(count)
    return x, (total > 0).long()


def _reviews(dice: random.Random) -> Arena:
    x, y, validation = _split(*sentences(6656))
    model = nets.TextReader(120, dice.choice([24, 32]), 2)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=4e-3, sgd=0.3, classes=2, steps=400)


def _comments(dice: random.Random) -> Arena:
    x, y, validation = _split(*sentences(6656))
    model = nets.TextEncoder(120, dice.choice([24, 32]), 2)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=2e-3, sgd=0.1, classes=2, steps=400)


def _tagger(dice: random.Random) -> Arena:
    x, _ = sentences(4608)
    group = torch.randint(4, (120,))[x]
    before = torch.cat([torch.zeros(len(x), 1, dtype=torch.long), group[:, :-1]], 1)
    y = torch.where(before == 3, 4, group).masked_fill(x == 0, -100)
    x, y, validation = _split(x, y, held_out=256)
    model = nets.Tagger(120, dice.choice([16, 24]), 5)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 24, adam=4e-3, sgd=0.3, classes=5, steps=300)


def _novel(dice: random.Random) -> Arena:
    tokens = corpus().vocabulary
    x, y, validation = _split(*windows(6064, 32), held_out=64)
    model = nets.SmallGPT(tokens, dice.choice([32, 48]), dropout=dice.choice([0.0, 0.1]))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 12, adam=3e-3, sgd=0.2, classes=tokens, steps=350)


def _power(dice: random.Random) -> Arena:
    count, length = 5120, 24
    time = torch.arange(length + 1.0)
    waves = torch.zeros(count, length + 1)
    for slow in (0.25, 0.7):
        pace = slow * (0.8 + 0.4 * torch.rand(count, 1))
        waves = waves + (0.5 + torch.rand(count, 1)) * (pace * time + 6.3 * torch.rand(count, 1)).sin()
    waves = waves / waves.std() + 0.1 * torch.randn_like(waves)
    x, y, validation = _split(waves[:, :-1].unsqueeze(2), waves[:, -1:])
    model = nets.LastState(nn.GRU(1, dice.choice([24, 32]), batch_first=True), 1)
    return Arena(model, nn.MSELoss(), x, y, validation, 32, adam=4e-3, sgd=0.05, steps=350)


def _recall(dice: random.Random) -> Arena:
    length, count = 14, 4608
    y = torch.randint(4, (count,))
    x = 0.3 * torch.randn(count, length, 6)
    x[:, :3, :4] += 2 * functional.one_hot(y, 4).float().unsqueeze(1)
    x[:, :3, 5] += 2
    x, y, validation = _split(x, y)
    model = nets.LastState(nn.GRU(6, dice.choice([24, 32]), batch_first=True), 4)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=5e-3, sgd=0.2, classes=4, steps=400)


def _motion(dice: random.Random) -> Arena:
    count, length = 4608, 48
    y = torch.randint(5, (count,))
    pace = (0.2 + 0.15 * y.float()) * (0.9 + 0.2 * torch.rand(count))
    time = torch.arange(float(length)).view(1, 1, -1)
    phase, strength = 6.3 * torch.rand(count, 3, 1), 0.6 + 0.8 * torch.rand(count, 3, 1)
    x = strength * (pace.view(-1, 1, 1) * time + phase).sin() + 0.8 * torch.randn(count, 3, length)
    x, y, validation = _split(x / x.std(), y)
    width = dice.choice([16, 24])
    model = nn.Sequential(
        nn.Conv1d(3, width, 7, 2, 3), nn.ReLU(), nn.Conv1d(width, width, 5, 2, 2), nn.ReLU(),
        nn.Conv1d(width, width, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 5),
    )  # fmt: skip
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=4e-3, sgd=0.05, classes=5, steps=400)


def _ratings(dice: random.Random) -> Arena:
    users, items = torch.randn(150, 3), torch.randn(100, 3)
    x = torch.stack([torch.randint(150, (14000,)), torch.randint(100, (14000,))], 1)
    score = (users[x[:, 0]] * items[x[:, 1]]).sum(1) + 0.7 * torch.randn(100)[x[:, 1]]
    y = score / score.std() + 0.2 * torch.randn(len(x))
    x, y, validation = _split(x, y, held_out=1000)
    model = nets.Factors(150, 100, dice.choice([4, 6]))
    return Arena(model, nn.MSELoss(), x, y, validation, 128, adam=2e-2, sgd=0.7, steps=500)


def _denoise(dice: random.Random) -> Arena:
    clean, _ = digits(4608)
    x, y, validation = _split(clean + 0.5 * torch.randn_like(clean), clean)
    width = dice.choice([6, 8])
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 1, 4, 2, 1),
    )  # fmt: skip
    return Arena(model, nn.MSELoss(), x, y, validation, 32, adam=3e-3, sgd=0.2, steps=350)


def _vae(dice: random.Random) -> Arena:
    x, _ = digits(5120)
    x, y, validation = _split(x.flatten(1), x.flatten(1))
    model = nets.PixelVAE(256, 96, dice.choice([8, 12]))
    return Arena(model, nets.PixelBound(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=1e-4, steps=500)


def views(count: int, times: int) -> tuple[Tensor, Tensor]:
    """Digits, each several times, with noise and brightness of its own; and which they are."""
    x, y = digits(count)
    x = x.unsqueeze(1).expand(-1, times, -1, -1, -1)
    x = x * (0.5 + torch.rand(count, times, 1, 1, 1)) + 0.3 * torch.randn(count, times, 1, 16, 16)
    return (x - x.mean()) / x.std(), y


def _pairs(dice: random.Random) -> Arena:
    x, y, validation = _split(*views(4160, 2), held_out=64)
    return Arena(nets.PairEncoder(8), nets.NTXent(), x, y, validation, dice.choice([32, 64]), adam=1e-3, sgd=0.05)


def _triplets(dice: random.Random) -> Arena:
    x, y = views(4352, 2)
    partner = torch.randperm(len(x))
    same = y[partner] == y
    triplets = torch.stack([x[:, 0], x[:, 1], x[partner, 0]], 1)[~same]
    x, y, validation = _split(triplets, y[~same], held_out=256)
    return Arena(nets.PairEncoder(8), nets.TripletLoss(), x, y, validation, 32, adam=1e-3, sgd=0.02, steps=300)


def _blobs(dice: random.Random) -> Arena:
    angle = torch.randint(6, (6144,)) * (2 * math.pi / 6)
    x = torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.15 * torch.randn(6144, 2)
    x, y, validation = _split(x, torch.ones(len(x), 1))
    model = nets.Players(8, dice.choice([48, 64]), 2)
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, 64, adam=1e-3, sgd=0.01, steps=500)


def _offers(dice: random.Random) -> Arena:
    x = torch.randn(8704, 10)
    x, y, validation = _split(x, teacher_labels(x, 5))
    model = perceptron([10, 48, 48, 5], nn.Tanh)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 64, adam=3e-3, sgd=0.05, classes=5, steps=500)


ARENAS: dict[str, Build] = {
    "everyday-pocket-digits": _digits,
    "everyday-patch-digits": _patches,
    "everyday-photos": _photos,
    "everyday-cells": _cells,
    "everyday-churn": _churn,
    "everyday-house-prices": _prices,
    "everyday-topic-tags": _tags,
    "everyday-species": _species,
    "everyday-reviews": _reviews,
    "everyday-comments": _comments,
    "everyday-word-tagger": _tagger,
    "everyday-novel": _novel,
    "everyday-power-demand": _power,
    "everyday-recall": _recall,
    "everyday-motion": _motion,
    "everyday-film-ratings": _ratings,
    "everyday-denoise": _denoise,
    "everyday-digit-vae": _vae,
    "everyday-view-pairs": _pairs,
    "everyday-view-triplets": _triplets,
    "everyday-blobs": _blobs,
    "everyday-offers": _offers,
}
"""The last two are played by kinds with loops of their own: a generator against a critic, and a choice of offers."""
