"""Further arenas for kinds that are only ever reported: tables, spectra, stamps, sets, graphs, series, text and games.

>>> from random import Random
>>> arena = ARENAS["alarms"](Random(0))
>>> arena.model(arena.x[:3]).shape
torch.Size([3, 1])
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import Arena, Build, corpus, perceptron, windows
from torchdoctor.clinic.sealed_nets_b import (
    Agreement,
    Bag,
    Deliveries,
    Duel,
    Hands,
    Lines,
    Molecule,
    Oscillator,
    Pair,
    PixelBound,
    Proof,
    Rooms,
    Sketcher,
    Step,
    alarm_net,
)

Sized = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]


def _split(x: Tensor, y: Tensor, held_out: int = 512) -> Sized:
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _deliveries(dice: random.Random) -> Arena:
    measures = torch.randn(7680, 6)
    depots, vehicles = torch.randint(12, (7680,)), torch.randint(5, (7680,))
    slowness = torch.randn(12)[depots] + 0.5 * torch.randn(5)[vehicles]
    y = torch.tanh(measures @ torch.randn(6, 12) * 0.6) @ torch.randn(12) * 0.4 + slowness * (1 + 0.4 * measures[:, 0])
    y = ((y - y.mean()) / y.std() + dice.choice([0.15, 0.25]) * torch.randn(7680)).unsqueeze(1)
    x, y, validation = _split(torch.cat([measures, torch.stack([depots, vehicles], 1).float()], 1), y)
    model = Deliveries(dice.choice([48, 64]))
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=0.02)


def _alarms(dice: random.Random) -> Arena:
    x = torch.randn(8704, 24)
    score = torch.tanh(x @ torch.randn(24, 16) * 0.4) @ torch.randn(16) + x[:, 0] * x[:, 1]
    threshold = score.quantile(dice.choice([0.7, 0.8]))
    y = (score + 0.3 * torch.randn(8704) > threshold).float().unsqueeze(1)
    x, y, validation = _split(x, y)
    model = alarm_net(24, dice.choice([96, 128]))
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=0.1, steps=500)


# ── signals and series ───────────────────────────────────────────────────────────────────────────────────────────────


def spectra(count: int, lines: Tensor) -> tuple[Tensor, Tensor]:
    """Spectra of 64 channels: the lines of a substance over a sloping ground, in noise."""
    y = torch.randint(len(lines), (count,))
    places = torch.arange(64.0)
    heights = 0.6 + torch.rand(count, lines.shape[1], 1)
    centres = lines[y].unsqueeze(2) + torch.randn(count, 1, 1)
    x = (heights * torch.exp(-0.5 * ((places - centres) / 1.6).square())).sum(1)
    x = x + torch.rand(count, 1) * places / 64 + 0.3 * torch.randn(count, 64)
    return ((x - 0.5) / 0.6).unsqueeze(1), y


def _spectra(dice: random.Random) -> Arena:
    classes = dice.choice([6, 8])
    x, y, validation = _split(*spectra(5632, 4 + 56 * torch.rand(classes, 4)))
    model = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 24, 5, padding=2),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Flatten(),
        nn.Linear(24 * 8, classes),
    )
    size = dice.choice([32, 48])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=1e-3, sgd=0.02, classes=classes)


def _springs(dice: random.Random) -> Arena:
    count, length = 3584, 36
    coupling = torch.tensor([[-2.0, 1.0, 0.0], [1.0, -2.0, 1.0], [0.0, 1.0, -2.0]]) * dice.choice([0.8, 1.2])
    place, speed, path = torch.randn(count, 3), torch.randn(count, 3), []
    for _ in range(length + 1):
        speed = speed + 0.35 * (place @ coupling)
        place = place + 0.35 * speed
        path.append(place)
    seen = torch.stack(path, 1)
    seen = seen / seen.std() + 0.1 * torch.randn_like(seen)
    x, y, validation = _split(seen[:, :-1], seen[:, 1:])
    width = dice.choice([32, 48])
    model = Oscillator(nn.GRU(3, width, batch_first=True), width)
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([16, 32]), adam=3e-3, sgd=0.05, steps=400)


def renderings(tunes: Tensor) -> Tensor:
    """Two ways to play each tune: in other keys, unevenly, with slips."""
    views = []
    for _ in range(2):
        rolled = torch.stack([torch.roll(tune, int(torch.randint(-1, 2, ()))) for tune in tunes])
        views.append(rolled + 0.5 * torch.randn(len(tunes), 1) + 0.7 * torch.randn_like(tunes))
    return torch.stack(views, 1)


def _melodies(dice: random.Random) -> Arena:
    size = dice.choice([32, 48])
    tunes = functional.interpolate(torch.randn(3600, 1, 9), 32, mode="linear").squeeze(1)
    x, y, validation = _split(renderings(1.3 * tunes), torch.zeros(3600), held_out=size)
    return Arena(Pair(dice.choice([96, 128])), Agreement(), x, y, validation, size, adam=1e-3, sgd=0.1)


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FONT = (
    "01110100011001110101110011000101110 00100011000010000100001000010001110 01110100010000100010001000100011111"
    " 11111000100010000010000011000101110 00010001100101010010111110001000010 11111100001111000001000011000101110"
    " 00110010001000011110100011000101110 11111000010001000100010000100001000 01110100011000101110100011000101110"
    " 01110100011000101111000010001001100"
)
"""Ten digits of five by seven dots, row by row."""


def stamps(count: int) -> tuple[Tensor, Tensor]:
    """Digits as a stamp prints them: anywhere in the field, faint, with dirt."""
    digits = torch.tensor([[float(dot) for dot in digit] for digit in FONT.split()]).view(10, 1, 7, 5)
    large = functional.interpolate(digits, scale_factor=2.0).squeeze(1)
    y = torch.randint(10, (count,))
    x = torch.zeros(count, 1, 16, 16)
    for row, (digit, top, left) in enumerate(
        zip(y, torch.randint(3, (count,)), torch.randint(7, (count,)), strict=True)
    ):
        x[row, 0, top : top + 14, left : left + 10] = large[digit] * (0.7 + 0.5 * float(torch.rand(())))
    x = x + 0.35 * torch.randn_like(x)
    return (x - 0.25) / 0.5, y


def _stamps(dice: random.Random) -> Arena:
    x, y, validation = _split(*stamps(4096))
    width = dice.choice([12, 16])
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Step(width),
        Step(width),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * width, 10),
    )
    size = dice.choice([32, 48])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=2e-3, sgd=0.03, classes=10, steps=300)


def _beacon(dice: random.Random) -> Arena:
    count = 4608
    y = 2 * torch.rand(count, 2) - 1
    lines = torch.linspace(-1.2, 1.2, 16)
    across = torch.exp(-((lines - y[:, :1]) / 0.2).square())
    down = torch.exp(-((lines - y[:, 1:]) / 0.2).square())
    x = 3 * (down.unsqueeze(2) * across.unsqueeze(1)).unsqueeze(1)
    x = (
        x
        + 0.7 * functional.interpolate(torch.randn(count, 1, 4, 4), (16, 16), mode="bilinear")
        + 0.2 * torch.randn_like(x)
    )
    x, y, validation = _split(x, y / y.std())
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        perceptron([16 * 16, dice.choice([48, 64]), 2]),
    )
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=0.02)


def _roofs(dice: random.Random) -> Arena:
    count = 2048
    y = torch.zeros(count, 16, 16, dtype=torch.long)
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    for field in y:
        for _ in range(random.Random(int(torch.randint(1 << 30, ()))).choice([1, 2])):
            top, left, height, width = (int(torch.randint(*ends, ())) for ends in ((0, 12), (0, 12), (3, 7), (3, 7)))
            field[top : top + height, left : left + width] = 1
        centre = 3 + 10 * torch.rand(2)
        field[(rows - centre[0]).square() + (columns - centre[1]).square() < 5] = 2
    x = torch.tensor([0.0, 1.2, -0.9])[y].unsqueeze(1)
    ground = functional.interpolate(torch.randn(count, 1, 3, 3), (16, 16), mode="bilinear")
    x, y, validation = _split(x + 0.5 * ground + 0.5 * torch.randn_like(x), y, held_out=256)
    width = dice.choice([16, 24])
    layers: list[nn.Module] = []
    for given, spread in ((1, 1), (width, 2), (width, 4)):
        convolution = nn.Conv2d(given, width, 3, padding=spread, dilation=spread)
        layers += [convolution, nn.GroupNorm(4, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(width, 3, 1))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 16, adam=3e-3, sgd=0.1, classes=3)


def _rings(dice: random.Random) -> Arena:
    count = 4608
    rows, columns = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    centre, radius = 4.5 + 4 * torch.rand(count, 2, 1, 1), 2 + 2.5 * torch.rand(count, 1, 1)
    far = ((rows - centre[:, 0]).square() + (columns - centre[:, 1]).square()).sqrt()
    pictures = torch.exp(-((far - radius) / 0.8).square()).flatten(1)
    x, y, validation = _split(pictures, pictures)
    model = Sketcher(dice.choice([64, 96]), 8)
    return Arena(model, PixelBound(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=3e-4, steps=500)


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(dice: random.Random) -> Arena:
    tokens = corpus().vocabulary
    x, y, validation = _split(*windows(5064, 32), held_out=64)
    model = Lines(tokens, dice.choice([64, 80]))
    size = dice.choice([12, 16])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=4e-3, sgd=0.15, classes=tokens)


def misprint(text: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Some characters replaced by others, drawn as often as they occur; and where."""
    wrong = torch.rand(text.shape) < share
    others = text.flatten()[torch.randint(text.numel(), text.shape)]
    x = torch.where(wrong, others, text)
    return x, (x != text).float()


def _misprints(dice: random.Random) -> Arena:
    text, _ = windows(5632, 32)
    x, y, validation = _split(*misprint(text, 0.2), held_out=256)
    model = Proof(corpus().vocabulary, dice.choice([32, 48]), 2)
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([16, 24]), adam=2e-3, sgd=0.2)


def sections_of(count: int, buckets: int, parts: int = 5) -> tuple[Tensor, Tensor]:
    """Pieces of text as the hashed triples of their characters, and from which part of the book they are."""
    tokens = corpus().tokens.long()
    y = torch.randint(parts, (count,))
    span = len(tokens) // parts - 100
    starts = y * (len(tokens) // parts) + torch.randint(span, (count,))
    pieces = tokens[starts.unsqueeze(1) + torch.arange(96)]
    triples = pieces[:, :-2] * 7919 + pieces[:, 1:-1] * 104_729 + pieces[:, 2:] * 1_299_709
    return triples.remainder(1_000_003).remainder(buckets), y


def _sections(dice: random.Random) -> Arena:
    buckets = dice.choice([1024, 2048])
    x, y, validation = _split(*sections_of(12_000, buckets))
    size = dice.choice([48, 64])
    return Arena(
        Bag(buckets, 5), nn.CrossEntropyLoss(), x, y, validation, size, adam=8e-3, sgd=0.5, classes=5, steps=500
    )


# ── sets, graphs and games ───────────────────────────────────────────────────────────────────────────────────────────


def _hands(dice: random.Random) -> Arena:
    count = 6656
    cards = torch.stack([torch.randperm(32)[:7] + 1 for _ in range(count)])
    sizes = torch.randint(4, 7, (count, 1))
    x = torch.where(torch.arange(7) < sizes, cards, 0)
    ranks = functional.one_hot((x + 3) // 4, 9)[..., 1:].sum(1)
    suits = functional.one_hot(torch.where(x > 0, (x - 1) % 4 + 1, 0), 5)[..., 1:].sum(1)
    y = torch.where(suits.amax(1) >= 4, 2, torch.where((ranks == 2).sum(1) >= 2, 3, 0))
    y = torch.where((y == 0) & (ranks.amax(1) >= 2), 1, y)
    x, y, validation = _split(x, y)
    model = Hands(dice.choice([32, 48]), 4)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 48, adam=1.5e-3, sgd=0.05, classes=4, steps=600)


def _compounds(dice: random.Random) -> Arena:
    count, most = 12_800, 9
    there = (torch.arange(most) < torch.randint(4, most + 1, (count, 1))).float()
    kinds = functional.one_hot(torch.randint(4, (count, most)), 4).float() * there.unsqueeze(-1)
    bonds = (torch.rand(count, most, most) < 0.25).float().triu(1)
    bonds = (bonds + bonds.transpose(1, 2)) * there.unsqueeze(1) * there.unsqueeze(2)
    charge = kinds @ torch.randn(4)
    pull = torch.tanh(charge.unsqueeze(2) - charge.unsqueeze(1)) * bonds
    y = (charge.square() * 0.5 + pull.abs().sum(2) * (kinds @ torch.randn(4))).sum(1) / there.sum(1)
    y = ((y - y.mean()) / y.std() + 0.1 * torch.randn(count)).unsqueeze(1)
    x, y, validation = _split(torch.cat([kinds, bonds], 2), y)
    model = Molecule(dice.choice([32, 48]))
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 48]), adam=2e-3, sgd=0.02)


def _islands(dice: random.Random) -> Arena:
    angles = torch.randint(4, (4608,)) * (torch.pi / 2)
    x = torch.stack([angles.cos(), angles.sin()], 1) * 1.2 + 0.25 * torch.randn(4608, 2)
    x, y, validation = _split(x, torch.ones(4608, 1))
    return Arena(
        Duel(64), nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([64, 96]), adam=2e-3, sgd=0.02, steps=500
    )


def walk(rooms: Tensor, ways: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Where one comes to, and what is paid: one for the last room, and a little less than nothing for each step."""
    rows, columns = rooms // side, rooms % side
    down, right = torch.tensor([-1, 1, 0, 0])[ways], torch.tensor([0, 0, -1, 1])[ways]
    reached = (rows + down).clamp(0, side - 1) * side + (columns + right).clamp(0, side - 1)
    return reached, (reached == side * side - 1).float() - 0.01


def _rooms(dice: random.Random) -> Arena:
    side = 4
    x = torch.randint(side * side - 1, (4096,))
    y = torch.stack([walk(x, torch.full_like(x, way), side)[1] for way in range(4)], 1)  # what each way pays at once
    x, y, validation = _split(x, y)
    return Arena(Rooms(side), nn.MSELoss(), x, y, validation, 32, adam=2e-3, sgd=0.05)


ARENAS: dict[str, Build] = {
    "deliveries": _deliveries,
    "alarms": _alarms,
    "spectra": _spectra,
    "springs": _springs,
    "melodies": _melodies,
    "stamps": _stamps,
    "beacon": _beacon,
    "roofs": _roofs,
    "rings": _rings,
    "lines": _lines,
    "misprints": _misprints,
    "sections": _sections,
    "hands": _hands,
    "compounds": _compounds,
    "islands": _islands,
    "rooms": _rooms,
}
"""By name, as in `arenas`; islands and rooms are for kinds that bring loops of their own."""
