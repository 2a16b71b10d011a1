"""Where kinds written blind of the loop, its steps and its numbers are trained: tasks and nets that no other kind uses.

>>> sorted(ARENAS)[:3]
['broad-text', 'chapters', 'chirps']
"""

from __future__ import annotations

import math
import random
import re
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import Arena, Build, corpus, windows
from torchdoctor.clinic.blind_nets import (
    Bagged,
    Cells,
    Chirper,
    Decoder,
    Factors,
    Fields,
    Fourier,
    Grouped,
    Inpainter,
    Mover,
    Normed,
    Points,
    Tally,
    Vitals,
    Words,
)
from torchdoctor.clinic.data import load_text

HELD_OUT = 384


def _cut(x: Tensor, y: Tensor, held_out: int = HELD_OUT) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _decoder(dice: random.Random, *, broad: bool = False) -> Arena:
    x, y, validation = _cut(*windows(6096, 32), held_out=96)
    width = 128 if broad else dice.choice([48, 64])
    model = Decoder(corpus().vocabulary, width, layers=4 if broad else 3)
    return Arena(
        model,
        nn.CrossEntropyLoss(),
        x,
        y,
        validation,
        8 if broad else dice.choice([10, 14]),
        adam=1.5e-3 if broad else 2.5e-3,
        sgd=0.08,
        classes=corpus().vocabulary,
        steps=300,
    )


def _broad(dice: random.Random) -> Arena:
    return _decoder(dice, broad=True)


@cache
def vocabulary(size: int = 600) -> tuple[dict[str, int], list[str]]:
    """The commonest words of the documentation, and all of its words in order."""
    words = re.findall(r"[a-z_]+|[^\sa-z_]", load_text()[:400_000].lower())
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    common = sorted(counts, key=lambda word: (-counts[word], word))[: size - 1]
    return {word: index + 1 for index, word in enumerate(common)}, words


def _words(dice: random.Random) -> Arena:
    numbers, words = vocabulary()
    tokens = torch.tensor([numbers.get(word, 0) for word in words])
    starts = torch.randint(len(tokens) - 21, (5096, 1))
    pieces = tokens[starts + torch.arange(21)]
    x, y, validation = _cut(pieces[:, :-1], pieces[:, 1:], held_out=96)
    model = Words(len(numbers) + 1, dice.choice([48, 64]))
    loss = nn.CrossEntropyLoss()
    return Arena(model, loss, x, y, validation, 16, adam=5e-3, sgd=0.5, classes=len(numbers) + 1, steps=300)


def _chapters(dice: random.Random) -> Arena:
    tokens, classes, length = corpus().tokens.long(), 6, 80
    starts = torch.randint(len(tokens) - length, (16000,))
    starts = torch.cat([(held := starts[(starts // 800) % 8 == 0])[:HELD_OUT], starts[(starts // 800) % 8 != 0]])
    pieces = tokens[starts.unsqueeze(1) + torch.arange(length)]
    grams = (pieces[:, :-2] * 7919 + pieces[:, 1:-1] * 104729 + pieces[:, 2:] * 1299709) % 3000
    x, y, validation = _cut(grams, starts * classes // len(tokens), held_out=min(len(held), HELD_OUT))
    model = Bagged(3000, dice.choice([32, 48]), classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 64, adam=2e-3, sgd=0.3, classes=classes, steps=300)


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def strokes(count: int, size: int = 14) -> tuple[Tensor, Tensor]:
    """Eight signs drawn with a soft pen: turned, stretched, moved and in a little noise."""
    t = torch.linspace(-1, 1, 20)
    zero, circle = torch.zeros_like(t), math.pi * t
    halves = torch.linspace(-1, 1, 10)
    flat = torch.zeros(10)
    signs = torch.stack(
        [
            torch.stack([t, zero], 1),
            torch.stack([circle.cos(), circle.sin()], 1) * 0.8,
            torch.stack([t, t.abs() * 2 - 1], 1),
            torch.stack([t, (math.pi * t).sin() * 0.7], 1),
            torch.stack([torch.cat([halves, flat]), torch.cat([flat, halves])], 1),
            torch.stack([torch.cat([halves, flat - 1]), torch.cat([flat + 1, halves])], 1),
            torch.stack([torch.cat([halves, halves]), torch.cat([flat - 0.6, flat + 0.6])], 1),
            torch.stack([torch.cat([halves, halves]), torch.cat([flat + 1, -halves])], 1),
        ]
    )
    y = torch.randint(len(signs), (count,))
    angle, stretch = 0.35 * torch.randn(count, 1), 0.55 + 0.35 * torch.rand(count, 1, 2)
    points = signs[y] * stretch
    turned = torch.stack(
        [
            points[..., 0] * angle.cos() - points[..., 1] * angle.sin(),
            points[..., 0] * angle.sin() + points[..., 1] * angle.cos(),
        ],
        2,
    )
    turned = turned + 0.15 * torch.randn(count, 1, 2)
    axis = torch.linspace(-1.1, 1.1, size)
    pen = 0.012
    across = (-(turned[..., 0].unsqueeze(2) - axis).pow(2) / pen).exp()
    down = (-(turned[..., 1].unsqueeze(2) - axis).pow(2) / pen).exp()
    ink = torch.einsum("npx,npy->nyx", across, down).clamp(max=1)
    x = ink.unsqueeze(1) + 0.25 * torch.randn(count, 1, size, size)
    return (x - x.mean()) / x.std(), y


def _strokes(dice: random.Random) -> Arena:
    x, y, validation = _cut(*strokes(3584))
    model = Grouped(dice.choice([12, 16]), 8)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=3e-3, sgd=0.05, classes=8, steps=320)


def _textures(dice: random.Random) -> Arena:
    count, size, classes = 3584, 16, 6
    y = torch.randint(classes, (count,))
    angle = math.pi * y / classes + 0.12 * torch.randn(count)
    pitch, phase = 1.2 + 0.5 * torch.rand(count), 2 * math.pi * torch.rand(count)
    axis = torch.arange(size, dtype=torch.float)
    along = (
        axis.view(1, 1, -1) * angle.cos().view(-1, 1, 1) + axis.view(1, -1, 1) * angle.sin().view(-1, 1, 1)
    ) * pitch.view(-1, 1, 1) + phase.view(-1, 1, 1)
    colours = torch.rand(count, 3, 1, 1)
    x = along.sin().unsqueeze(1) * colours + 0.8 * torch.randn(count, 3, size, size)
    x, y, validation = _cut((x - x.mean()) / x.std(), y)
    model = Normed(dice.choice([10, 14]), classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=2e-3, sgd=0.03, classes=classes, steps=300)


def _repaint(dice: random.Random) -> Arena:
    count, size = 3584, 12
    whole = functional.interpolate(torch.randn(count, 1, 4, 4), (size, size), mode="bicubic")
    whole = whole / whole.std()
    mask = torch.ones_like(whole)
    corner = torch.randint(0, size - 4, (count, 2))
    rows = torch.arange(size)
    inside = ((rows - corner[:, :1] >= 0) & (rows - corner[:, :1] < 4)).unsqueeze(2) & (
        (rows - corner[:, 1:] >= 0) & (rows - corner[:, 1:] < 4)
    ).unsqueeze(1)
    mask[inside.unsqueeze(1)] = 0
    x, y, validation = _cut(torch.cat([whole * mask + 0.05 * torch.randn_like(whole), mask], 1), whole)
    model = Inpainter(dice.choice([12, 16]))
    return Arena(model, nn.L1Loss(), x, y, validation, 32, adam=3e-3, sgd=0.025, steps=250)


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _chirps(dice: random.Random) -> Arena:
    count, length, classes = 3584, 96, 6
    y = torch.randint(classes, (count,))
    t = torch.linspace(0, 1, length)
    low = (8 + 10 * torch.rand(count, 1)) * math.pi
    phase = 2 * math.pi * torch.rand(count, 1)
    signals = torch.stack(
        [
            (low * t + phase).sin().expand(count, length),
            (low * (0.5 * t + 0.8 * t * t) + phase).sin(),
            (low * (2.1 * t - 0.8 * t * t) + phase).sin(),
            (low * t + phase).sin() * (6 * math.pi * t).sin(),
            ((low * t + phase).sin() + (1.6 * low * t).sin()) / 2**0.5,
            (low * t + phase).sin().sign(),
        ],
        1,
    )
    x = signals[torch.arange(count), y].unsqueeze(1) + 0.4 * torch.randn(count, 1, length)
    x, y, validation = _cut(x, y)
    model = Chirper(dice.choice([24, 32]), classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=4e-3, sgd=0.05, classes=classes, steps=320)


def _vitals(dice: random.Random) -> Arena:
    count, length, channels, labels = 4480, 20, 6, 5
    drift = torch.randn(count, 1, channels) * torch.linspace(-1, 1, length).view(1, -1, 1)
    x = drift + torch.randn(count, 1, channels) + 0.5 * torch.randn(count, length, channels)
    seen = torch.cat([x[:, -6:].mean(1) - x[:, :6].mean(1), x.mean(1)], 1)
    scores = torch.tanh(seen @ torch.randn(2 * channels, 16)) @ torch.randn(16, labels)
    x, y, validation = _cut(x, (scores > scores.quantile(0.7, 0)).float())
    model = Vitals(channels, dice.choice([32, 40]), labels)
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, 32, adam=4e-3, sgd=0.2, steps=350)


def _pendulum(dice: random.Random) -> Arena:
    count = 8384
    angle, speed = (2 * torch.rand(count) - 1) * math.pi, 2 * torch.randn(count)
    push = torch.randn(count)
    x = torch.stack([angle.cos(), angle.sin(), speed / 2, push], 1)
    for _ in range(12):
        speed = speed + 0.06 * (-6 * angle.sin() + 1.5 * push - 0.2 * speed)
        angle = angle + 0.06 * speed
    y = torch.stack([angle.cos(), angle.sin(), speed / 3], 1)
    y = (y - y.mean(0)) / y.std(0) + 0.05 * torch.randn(count, 3)
    x, y, validation = _cut(x, y)
    width = dice.choice([64, 96])
    layers: list[nn.Module] = [nn.Linear(4, width), nn.SiLU()]
    for _ in range(2):
        layers += [nn.Linear(width, width), nn.SiLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 3))
    return Arena(model, nn.MSELoss(), x, y, validation, 64, adam=3e-3, sgd=0.05, steps=450)


# ── tables, sets and boards ──────────────────────────────────────────────────────────────────────────────────────────


def _flats(dice: random.Random) -> Arena:
    count, sizes = 8384, (30, 6, 10)
    kinds = torch.stack([torch.randint(size, (count,)) for size in sizes], 1)
    numbers = torch.randn(count, 8)
    effects = sum(torch.randn(size)[kinds[:, index]] for index, size in enumerate(sizes))
    y = (
        effects
        + (numbers @ torch.randn(8, 12)).tanh() @ torch.randn(12) * 0.6
        + numbers[:, 0] * torch.randn(30)[kinds[:, 0]]
    )
    y = ((y - y.mean()) / y.std()).unsqueeze(1) + 0.15 * torch.randn(count, 1)
    x, y, validation = _cut(torch.cat([kinds.float(), numbers], 1), y)
    model = Fields(sizes, 8, dice.choice([48, 64]))
    return Arena(model, nn.SmoothL1Loss(), x, y, validation, 64, adam=3e-3, sgd=0.1, steps=400)


def _clicks(dice: random.Random) -> Arena:
    count, fields, size = 40384, 6, 60
    x = (torch.rand(count, fields).pow(2) * size).long()
    taste = torch.randn(fields, size, 4)
    vectors = torch.stack([taste[index, x[:, index]] for index in range(fields)], 1)
    score = (vectors[:, :3].sum(1) * vectors[:, 3:].sum(1)).sum(1)
    y = (score + 2 * torch.randn(count) > score.quantile(0.7)).float().unsqueeze(1)
    x, y, validation = _cut(x + torch.arange(fields) * size, y)
    model = Factors(fields * size, fields, dice.choice([8, 12]))
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, 128, adam=6e-3, sgd=0.6, steps=350)


def _points(dice: random.Random) -> Arena:
    count, points = 3584, 24
    y = torch.randint(5, (count,))
    raw = torch.randn(count, points, 3)
    ball = raw / raw.norm(dim=2, keepdim=True)
    box = raw.clamp(-1, 1) / raw.abs().amax(2, keepdim=True).clamp(max=1)
    tube = torch.cat([raw[..., :2] / raw[..., :2].norm(dim=2, keepdim=True), raw[..., 2:].clamp(-1, 1)], 2)
    cone = torch.cat([tube[..., :2] * (1 - tube[..., 2:]) / 2, tube[..., 2:]], 2)
    sheet = torch.cat([raw[..., :2], 0.3 * raw[..., :1] * raw[..., 1:2]], 2)
    shapes = torch.stack([ball, box, tube, cone, sheet], 1)[torch.arange(count), y]
    x, y, validation = _cut(shapes + 0.15 * torch.randn_like(shapes), y)
    model = Points(dice.choice([48, 64]), 5)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=3e-3, sgd=0.05, classes=5, steps=400)


def _moves(dice: random.Random) -> Arena:
    count, size = 4992, 7
    walls = torch.rand(count, size, size) < 0.2
    goal, start = torch.randint(size * size, (2, count))
    everyone = torch.arange(count)
    for cell in (goal, start):
        walls.view(count, -1)[everyone, cell] = False
    far = torch.full((count, size * size), 99.0)
    far[everyone, goal] = 0
    for _ in range(24):
        grid = functional.pad(far.view(count, size, size), (1, 1, 1, 1), value=99.0)
        near = torch.stack([grid[:, :-2, 1:-1], grid[:, 2:, 1:-1], grid[:, 1:-1, :-2], grid[:, 1:-1, 2:]], 1)
        far = torch.minimum(far.view(count, size, size), near.amin(1) + 1).masked_fill(walls, 99.0).view(count, -1)
    kept = (far[everyone, start] < 99) & (goal != start)
    y = near.flatten(2)[everyone, :, start].argmin(1)
    marks = torch.zeros(2, count, size * size)
    marks[0, everyone, goal] = marks[1, everyone, start] = 1
    x = torch.stack([walls.float(), marks[0].view_as(walls), marks[1].view_as(walls)], 1)
    x, y, validation = _cut(x[kept], y[kept])
    model = Mover(dice.choice([16, 20]), size)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=3e-3, sgd=0.05, classes=4, steps=400)


def _tallies(dice: random.Random) -> Arena:
    count, length, symbols = 6384, 16, 5
    leaning = torch.randn(count, symbols).mul(0.7).softmax(1)
    x = torch.multinomial(leaning, length, replacement=True)
    tally = functional.one_hot(x, symbols).float()
    y = (tally[:, : length // 2].sum(1) + 3 * tally[:, length // 2 :].sum(1) + 0.1 * torch.rand(count, symbols)).argmax(
        1
    )
    x, y, validation = _cut(x, y)
    model = Tally(symbols, dice.choice([32, 40]), length)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=1.5e-3, sgd=0.015, classes=symbols, steps=300)


def _coordinates(dice: random.Random) -> Arena:
    place = 2 * torch.rand(8384, 2) - 1
    y = sum(
        (torch.randn(1) * (place @ torch.randn(2, 1) * 5 + 6 * torch.rand(1)).sin() for _ in range(8)),
        start=torch.zeros(len(place), 1),
    )
    x, y, validation = _cut(place, (y - y.mean()) / y.std())
    model = Fourier(dice.choice([24, 32]), 64)
    return Arena(model, nn.MSELoss(), x, y, validation, 96, adam=3e-3, sgd=0.1, steps=450)


def _steps_of_cells(dice: random.Random) -> Arena:
    count, size = 3584, 10
    before = (torch.rand(count, 1, size, size) < 0.35).float()
    around = functional.conv2d(functional.pad(before, (1, 1, 1, 1), mode="circular"), torch.ones(1, 1, 3, 3)) - before
    after = ((around == 3) | ((around == 2) & (before == 1))).float()
    x, y, validation = _cut(before, after)
    model = Cells(dice.choice([12, 16]))
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, 24, adam=4e-3, sgd=0.3, steps=350)


ARENAS: dict[str, Build] = {
    "rms-text": _decoder,
    "broad-text": _broad,
    "word-text": _words,
    "chapters": _chapters,
    "strokes": _strokes,
    "textures": _textures,
    "repaint": _repaint,
    "chirps": _chirps,
    "vitals": _vitals,
    "pendulum": _pendulum,
    "flats": _flats,
    "clicks": _clicks,
    "solids": _points,
    "moves": _moves,
    "tallies": _tallies,
    "heights": _coordinates,
    "game-of-life": _steps_of_cells,
}
