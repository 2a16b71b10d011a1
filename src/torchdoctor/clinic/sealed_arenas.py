"""Arenas of sealed kinds: texts, signals, pictures, tables, molecules and fields, with the nets people use there.

>>> import random
>>> arena = ARENAS["trips"](random.Random(0))
>>> arena.model(arena.x[:3]).shape
torch.Size([3, 1])
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import Arena, Build, corpus, windows
from torchdoctor.clinic.sealed_nets import (
    LETTERS,
    MONTHS,
    READ,
    BagOfPieces,
    Beat,
    Factors,
    Forecaster,
    GatedConvolutions,
    GatedScan,
    Molecules,
    ParallelDecoder,
    Promoters,
    Scanner,
    Separable,
    Sharpener,
    Spectral,
    Translator,
    Trips,
)

Split = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]


def split(x: Tensor, y: Tensor, held_out: int = 512) -> Split:
    """Training samples, their targets, and what is held out of both."""
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


def standardised(y: Tensor) -> Tensor:
    """Of mean zero and spread one."""
    return (y - y.mean(0)) / y.std(0)


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _writer(dice: random.Random, model: nn.Module, adam: float, sgd: float, context: int = 24) -> Arena:
    tokens = corpus().vocabulary
    x, y, validation = split(*windows(6064, context), held_out=64)
    size = dice.choice([8, 12])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam, sgd, classes=tokens, steps=400)


def _glu_text(dice: random.Random) -> Arena:
    return _writer(dice, GatedConvolutions(corpus().vocabulary, dice.choice([48, 64])), 3e-3, 0.1)


def _gated_scan(dice: random.Random) -> Arena:
    return _writer(dice, GatedScan(corpus().vocabulary, dice.choice([48, 64])), 4e-3, 0.1)


def _parallel_text(dice: random.Random) -> Arena:
    return _writer(dice, ParallelDecoder(corpus().vocabulary, 64, dice.choice([3, 4])), 1.5e-3, 0.1, context=32)


def chunks(length: int) -> tuple[Tensor, Tensor]:
    """Pieces of the documentation, and what was done to each: nothing, turned round, letters exchanged or shuffled."""
    tokens = corpus().tokens.long()
    count = len(tokens) // length
    x = tokens[: count * length].view(count, length)[torch.randperm(count)]
    y = torch.randint(4, (count,))
    pairs = x.view(count, -1, 2).flip(2).flatten(1)
    shuffled = x.gather(1, torch.rand(x.shape).argsort(dim=1))
    return torch.stack([x, x.flip(1), pairs, shuffled])[y, torch.arange(count)], y


def _scrambled(dice: random.Random) -> Arena:
    x, y, validation = split(*chunks(48))
    model = BagOfPieces(2048, dice.choice([16, 24]), 4)
    size = dice.choice([32, 48])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=1e-2, sgd=1.0, classes=4, steps=400)


def _passages(dice: random.Random) -> Arena:
    x, y, validation = split(*chunks(48))
    model = Scanner(corpus().vocabulary, dice.choice([32, 48]), 4)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=2e-3, sgd=0.05, classes=4, steps=400)


def _date(dice: random.Random) -> tuple[list[int], list[int]]:
    year, month, day = dice.randint(1950, 2049), dice.randint(1, 12), dice.randint(1, 28)
    name = MONTHS[month - 1]
    forms = (
        f"{day} {name} {year}",
        f"{name[:3]} {day}, {year}",
        f"{day}.{month}.{year}",
        f"{month}/{day}/{year % 100}",
    )
    read = [LETTERS.index(letter) for letter in dice.choice(forms).ljust(READ)]
    digits = [int(digit) for digit in f"{year % 100:02d}{month:02d}{day:02d}"]
    return read + [10, *digits[:-1]], digits


def _dates(dice: random.Random) -> Arena:
    pairs = [_date(dice) for _ in range(6656)]
    x, y = torch.tensor([given for given, _ in pairs]), torch.tensor([made for _, made in pairs])
    x, y, validation = split(x, y)
    model = Translator(dice.choice([48, 64]))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=4e-3, sgd=0.3, classes=10, steps=400)


def _promoters(dice: random.Random) -> Arena:
    classes, count, length = 5, 5120, 28
    x, y = torch.randint(4, (count, length)), torch.randint(classes, (count,))
    places = torch.randint(length - 8, (count, 1)) + torch.arange(8)
    motif = torch.randint(4, (classes, 8))[y]
    mutated = torch.where(torch.rand(count, 8) < 0.08, torch.randint(4, (count, 8)), motif)
    x, y, validation = split(x.scatter(1, places, mutated), y)
    model = Promoters(dice.choice([24, 32]), classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 24, adam=2e-3, sgd=0.03, classes=classes, steps=350)


# ── signals and pictures ─────────────────────────────────────────────────────────────────────────────────────────────


def _heartbeats(dice: random.Random) -> Arena:
    count, classes = 4608, 4
    y = torch.randint(classes, (count,))
    time = torch.linspace(0, 1, 80) + 0.06 * torch.randn(count, 1)

    def wave(centre: float, width: Tensor, height: Tensor) -> Tensor:
        return height * torch.exp(-(((time - centre) / width) ** 2))

    one = 1 + 0.15 * torch.randn(count, 1)
    wide, inverted, early = ((y == index).float().unsqueeze(1) for index in (1, 2, 3))
    beat = wave(0.45, 0.025 + 0.02 * wide, one * 2.0) + wave(0.7, 0.06 * one, (1 - 1.7 * inverted) * 0.6)
    beat = beat + wave(0.25, 0.04 * one, 0.4 * (1 - early)) + 0.3 * torch.sin(4 * time + 6 * torch.rand(count, 1))
    x = standardised((beat + 0.35 * torch.randn_like(beat)).flatten()).view(count, 1, -1)
    x, y, validation = split(x, y)
    width = dice.choice([12, 16])
    model = nn.Sequential(
        nn.Sequential(
            nn.Conv1d(1, width, 7, stride=2, padding=3), Beat(width), nn.MaxPool1d(2), Beat(width), Beat(width)
        ),
        nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, classes)),
    )
    size = dice.choice([24, 32])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=2e-3, sgd=0.015, classes=classes, steps=350)


def _weather(dice: random.Random) -> Arena:
    length, channels, ahead, days = 20, 4, 5, 6000
    hours = torch.arange(days).unsqueeze(1)
    slow = torch.sin(2 * math.pi * hours / torch.tensor([24.0, 24.0, 12.0, 60.0]) + 6 * torch.rand(channels))
    front = torch.zeros(days, channels)
    noise = 0.25 * torch.randn(days, channels)
    for day in range(1, days):
        front[day] = 0.92 * front[day - 1] + noise[day]
    series = standardised(slow + front @ (torch.eye(channels) + 0.2 * torch.randn(channels, channels)))
    starts = torch.randperm(days - length - ahead).unsqueeze(1)
    x, y = series[starts + torch.arange(length)], series[starts + length + torch.arange(ahead)][..., 0]
    x, y, validation = split(x, y)
    model = Forecaster(channels, dice.choice([32, 48]), ahead)
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([24, 32]), adam=4e-3, sgd=0.1, steps=400)


def _leaves(dice: random.Random) -> Arena:
    count, classes, size = 4608, 5, 16
    y = torch.randint(classes, (count,))
    axis = torch.linspace(-1, 1, size)
    rows, columns = (
        axis.view(1, -1, 1) + 0.2 * torch.randn(count, 1, 1),
        axis.view(1, 1, -1) + 0.2 * torch.randn(count, 1, 1),
    )
    turn = torch.atan2(rows, columns) + 0.25 * torch.randn(count, 1, 1)
    edge = 0.55 + 0.25 * torch.cos((y + 2).view(-1, 1, 1) * turn)
    inside = torch.sigmoid(12 * (edge - (rows**2 + columns**2).sqrt())).unsqueeze(1)
    colour = 0.6 + 0.3 * torch.randn(count, 3, 1, 1)
    x, y, validation = split(
        standardised((inside * colour + 0.25 * torch.randn(count, 3, size, size)).flatten()).view(-1, 3, size, size), y
    )
    width = dice.choice([12, 16])
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        Separable(width, 2 * width),
        nn.MaxPool2d(2),
        Separable(2 * width, 2 * width),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * width, classes),
    )
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=2e-3, sgd=0.05, classes=classes, steps=350)


def _boxes(dice: random.Random) -> Arena:
    count, size = 4608, 20
    boxes = torch.cat([0.25 + 0.5 * torch.rand(count, 2), 0.2 + 0.3 * torch.rand(count, 2)], dim=1)
    axis = torch.linspace(0, 1, size)
    near = [torch.sigmoid(40 * (boxes[:, 2 + i, None] / 2 - (axis - boxes[:, i, None]).abs())) for i in range(2)]
    light = (1.0 + torch.rand(count, 1, 1)) * near[0].unsqueeze(2) * near[1].unsqueeze(1)
    x = (light + 0.3 * torch.randn(count, size, size)).unsqueeze(1)
    x, y, validation = split((x - x.mean()) / x.std(), standardised(boxes))
    width = dice.choice([8, 12])
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(50 * width, 64), nn.ReLU()),
        nn.Linear(64, 4),
    )
    return Arena(model, nn.SmoothL1Loss(), x, y, validation, dice.choice([32, 48]), adam=2e-3, sgd=0.1, steps=400)


def _sharpen(dice: random.Random) -> Arena:
    count, size = 2560, 20
    axis = torch.linspace(-1, 1, size)
    waves = torch.zeros(count, size, size)
    for _ in range(3):
        slope, where = 3 * torch.randn(count, 2, 1, 1), torch.randn(count, 1, 1)
        waves += torch.tanh(4 * (slope[:, 0] * axis.view(1, -1, 1) + slope[:, 1] * axis.view(1, 1, -1) + where))
    y = ((waves - waves.mean()) / waves.std()).unsqueeze(1)
    x, y, validation = split(functional.avg_pool2d(y, 2) + 0.02 * torch.randn(count, 1, size // 2, size // 2), y)
    return Arena(Sharpener(dice.choice([16, 24])), nn.L1Loss(), x, y, validation, 24, adam=2e-3, sgd=0.1, steps=400)


# ── tables, molecules, fields ────────────────────────────────────────────────────────────────────────────────────────


def _trips(dice: random.Random) -> Arena:
    count, zones = 8704, 30
    zone, hour, numbers = torch.randint(zones, (count,)), torch.randint(24, (count,)), torch.randn(count, 5)
    rush = torch.cos(2 * math.pi * (hour - 8) / 12) * (1 + 0.5 * torch.randn(zones)[zone])
    y = (
        0.8 * numbers[:, 0].abs().sqrt()
        + torch.randn(zones)[zone] * 0.7
        + 0.5 * rush
        + 0.3 * numbers[:, 1] * numbers[:, 2]
    )
    y = standardised(y).unsqueeze(1) + 0.2 * torch.randn(count, 1)
    x, y, validation = split(torch.cat([zone.unsqueeze(1), hour.unsqueeze(1), numbers], dim=1), y)
    return Arena(
        Trips(zones, dice.choice([48, 64])), nn.MSELoss(), x, y, validation, 48, adam=4e-3, sgd=0.05, steps=450
    )


def _fraud(dice: random.Random) -> Arena:
    count, fields, values = 12800, 8, 12
    x = torch.randint(values, (count, fields))
    traits = torch.randn(fields * values, 2)[x + values * torch.arange(fields)]
    score = standardised(traits[..., 0].sum(1) + 0.7 * traits[:, :4, 1].sum(1) * traits[:, 4:, 1].sum(1) / 2)
    y = (torch.rand(count) < torch.sigmoid(4 * score - 3)).float().unsqueeze(1)
    x, y, validation = split(x, y)
    model = Factors(fields, values, dice.choice([4, 6]))
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, 64, adam=5e-3, sgd=0.3, steps=450)


def _molecules(dice: random.Random) -> Arena:
    count, atoms, kinds = 3072, 8, 4
    kind, places = torch.randint(kinds, (count, atoms)), 1.1 * torch.randn(count, atoms, 3)
    charge = torch.tensor([-1.0, -0.4, 0.5, 1.2])[kind]
    squared = (places.unsqueeze(1) - places.unsqueeze(2)).pow(2).sum(-1)
    energy = (charge.unsqueeze(1) * charge.unsqueeze(2) * torch.exp(-squared / 3)).sum((1, 2))
    y = standardised(energy).unsqueeze(1) + 0.1 * torch.randn(count, 1)
    x, y, validation = split(torch.cat([functional.one_hot(kind, kinds), places], dim=-1), y)
    return Arena(
        Molecules(kinds, dice.choice([24, 32])), nn.MSELoss(), x, y, validation, 32, adam=3e-3, sgd=0.03, steps=400
    )


def _burgers(dice: random.Random) -> Arena:
    count, points, dt = 2048, 64, 0.004
    waves = torch.arange(1, 5).view(1, -1, 1)
    place = torch.linspace(0, 1, points + 1)[:-1]
    start = (torch.randn(count, 4, 1) / waves * torch.sin(2 * math.pi * (waves * place + torch.rand(count, 4, 1)))).sum(
        1
    )
    rate = 2 * math.pi * torch.arange(points // 2 + 1)
    state = start
    for _ in range(50):
        slope = torch.fft.irfft(1j * rate * torch.fft.rfft(state), n=points)
        bent = torch.fft.rfft(state - dt * state * slope) / (1 + dt * 0.02 * rate**2)
        state = torch.fft.irfft(bent * (torch.arange(points // 2 + 1) < 20), n=points)
    x, y, validation = split(start / start.std(), state / start.std(), held_out=256)
    width = dice.choice([16, 20])
    model = nn.Sequential(
        nn.Unflatten(1, (1, points)),
        nn.Conv1d(1, width, 3, padding=1, padding_mode="circular"),
        nn.GELU(),
        *(layer for _ in range(3) for layer in (Spectral(width, 12), nn.GELU())),
        nn.Conv1d(width, 1, 1),
        nn.Flatten(),
    )
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([16, 24]), adam=3e-3, sgd=0.03, steps=400)


ARENAS: dict[str, Build] = {
    "glu-text": _glu_text,
    "gated-scan": _gated_scan,
    "parallel-text": _parallel_text,
    "scrambled": _scrambled,
    "passages": _passages,
    "dates": _dates,
    "promoters": _promoters,
    "heartbeats": _heartbeats,
    "weather": _weather,
    "leaves": _leaves,
    "boxes": _boxes,
    "sharpen": _sharpen,
    "trips": _trips,
    "fraud": _fraud,
    "molecules": _molecules,
    "burgers": _burgers,
}
"""By name: what makes it from a die that its seed has loaded."""
