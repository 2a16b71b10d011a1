"""Further arenas, for kinds that are only ever reported: texts, signals, sets, pairs, flows.

>>> arena = ARENAS["points"](random.Random(0))
>>> x, y = next(arena.batches())
>>> arena.model(x).shape[1] == arena.classes
True
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import Arena, Build, corpus, windows
from torchdoctor.clinic.data import load_text

Split = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]
WORDS = 400
"""Of which the last stands for all that are rarer."""


def split(x: Tensor, y: Tensor, held_out: int = 320) -> Split:
    """Training and validation, in this order."""
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def word_numbers() -> Tensor:
    """Python's own documentation, word by word; frequent words have small numbers."""
    found = re.findall(r"[a-z_]+|[.,:()=]", load_text()[:500_000].lower())
    number = {word: index for index, (word, _) in enumerate(Counter(found).most_common(WORDS - 1))}
    return torch.tensor([number.get(word, WORDS - 1) for word in found], device="cpu")


def gaps(count: int, kinds: int) -> tuple[Tensor, Tensor]:
    """Six characters before and six after one that is missing, and which of the most frequent ones that was."""
    tokens = corpus().tokens.long()
    frequent = torch.bincount(tokens).argsort(descending=True)[: kinds - 1]
    number = torch.full((int(tokens.max()) + 1,), kinds - 1)
    number[frequent] = torch.arange(kinds - 1)
    pieces = tokens[torch.randint(len(tokens) - 13, (count, 1)) + torch.arange(13)]
    return torch.cat([pieces[:, :6], pieces[:, 7:]], 1), number[pieces[:, 6]]


def strokes(count: int, size: int = 14) -> Tensor:
    """Black ink on white paper: two short strokes each, as pixels of zero and one."""
    places = torch.linspace(0, 1, size)
    grid = torch.stack(torch.meshgrid(places, places, indexing="ij"), -1).view(1, -1, 1, 2)
    ends = 0.15 + 0.7 * torch.rand(count, 1, 2, 2, 2)
    begin, along = ends[..., 0, :], ends[..., 1, :] - ends[..., 0, :]
    share = (((grid - begin) * along).sum(-1) / along.pow(2).sum(-1).clamp(min=1e-4)).clamp(0, 1)
    far: Tensor = (grid - begin - share.unsqueeze(-1) * along).pow(2).sum(-1).amin(-1).sqrt()
    return (far < 0.09).float().view(count, 1, size, size)


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class WordWriter(nn.Module):
    """An LSTM that predicts the next word."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next word at each place."""
        scores: Tensor = self.head(self.rnn(self.embed(x))[0])
        return scores


class GatedConvolutions(nn.Module):
    """Causal convolutions with gates, dilated further and further, that predict the next character."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**depth) for depth in range(4))
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        inner = self.embed(x).transpose(1, 2)
        for depth, layer in enumerate(self.layers):
            inner = inner + functional.glu(layer(functional.pad(inner, (2**depth, 0))), dim=1)
        scores: Tensor = self.head(inner.transpose(1, 2))
        return scores


class Sorter(nn.Module):
    """An encoder that sees a whole row of numbers, and is to give it in order."""

    def __init__(self, numbers: int, length: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(numbers, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, numbers)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the number at each place of the sorted row."""
        scores: Tensor = self.head(self.norm(self.blocks(self.embed(x) + self.place)))
        return scores


class Grouped(nn.Module):
    """A residual convolution with GroupNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x and a little more."""
        more: Tensor = self.conv(functional.relu(self.norm(x)))
        return x + more


class Reader(nn.Module):
    """A GRU that reads a series, and a head on its last state."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(given, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number for each series."""
        number: Tensor = self.head(self.rnn(x)[0][:, -1])
        return number


class Sines(nn.Module):
    """A net of sines that gives the colour at a place."""

    def __init__(self, width: int, omega: float = 8.0) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, 3)
        self.omega = omega

    def forward(self, x: Tensor) -> Tensor:
        """Red, green and blue."""
        colour: Tensor = self.head(torch.sin(2 * self.second(torch.sin(self.omega * self.first(x)))))
        return colour


class PointSet(nn.Module):
    """Each point goes through the same net; what is largest over the points goes on."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2 * width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.each(x).amax(1))
        return scores


class Twins(nn.Module):
    """The distance between the codes of two things."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(given, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.code = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        """How far apart the codes are, each of length one."""
        first, second = functional.normalize(self.code(self.encoder(x)), dim=-1).unbind(1)
        return ((first - second).pow(2).sum(-1) + 1e-8).sqrt()


class Margin(nn.Module):
    """Those of one kind are drawn together, others held apart by a margin."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, distance: Tensor, same: Tensor) -> Tensor:
        """The mean over the batch."""
        return (same * distance.pow(2) + (1 - same) * functional.relu(self.margin - distance).pow(2)).mean()


class Towers(nn.Module):
    """A code for a user and one for an item, from tables and a layer each."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user, self.item = nn.Linear(width, 16), nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        """The two codes, side by side."""
        return torch.stack([self.user(self.users(x[:, 0])), self.item(self.items(x[:, 1]))], dim=1)


class AmongTheBatch(nn.Module):
    """Each user is to find the item that they took among those of the batch; the same item elsewhere does not count."""

    def __init__(self, sharpness: float = 5.0) -> None:
        super().__init__()
        self.sharpness = sharpness

    def forward(self, codes: Tensor, item: Tensor) -> Tensor:
        """Cross-entropy over the batch."""
        users, items = functional.normalize(codes, dim=-1).unbind(1)
        same = (item[:, None] == item[None]) & ~torch.eye(len(item), dtype=torch.bool, device=item.device)
        scores = (self.sharpness * users @ items.T).masked_fill(same, -1e4)
        return functional.cross_entropy(scores, torch.arange(len(item), device=item.device))


class InkCode(nn.Module):
    """A variational autoencoder of pictures, with convolutions."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.moments = nn.Linear(2 * width * 16, 2 * code)
        self.decoder = nn.Sequential(nn.Linear(code, 96), nn.ReLU(), nn.Linear(96, 196), nn.Unflatten(1, (1, 14, 14)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the pixels, mean and log-variance of the code."""
        mean, log_variance = self.moments(self.encoder(x)).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


class InkBound(nn.Module):
    """What it minimises: cross-entropy of the pixels and the distance of the code from a normal one, both summed."""

    def forward(self, made: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        """The mean over the batch."""
        scores, mean, log_variance = made
        pixels = functional.binary_cross_entropy_with_logits(scores, x, reduction="none").flatten(1).sum(1).mean()
        return pixels - 0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()


class Flow(nn.Module):
    """Couplings that carry points of a plane to a normal distribution, and how much they stretch it."""

    def __init__(self, couplings: int, width: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
            for _ in range(couplings)
        )
        self.bounded = True

    def forward(self, x: Tensor) -> Tensor:
        """The log-likelihood of each point."""
        kept, moved = x.chunk(2, dim=1)
        stretched = torch.zeros_like(kept)
        for net in self.nets:
            scale, shift = net(kept).chunk(2, dim=1)
            scale = torch.tanh(scale) if self.bounded else scale
            kept, moved, stretched = moved * scale.exp() + shift, kept, stretched + scale
        likelihood: Tensor = stretched - 0.5 * (kept.pow(2) + moved.pow(2)) - math.log(2 * math.pi)
        return likelihood


class Unlikelihood(nn.Module):
    """The mean of the negative log-likelihood."""

    def forward(self, likelihood: Tensor, y: Tensor) -> Tensor:
        """What is to be as small as can be."""
        return -likelihood.mean()


# ── arenas ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _words(dice: random.Random) -> Arena:
    tokens = word_numbers()
    starts = torch.randint(len(tokens) - 13, (5000, 1))
    pieces = tokens[starts + torch.arange(13)]
    x, y, validation = split(pieces[:, :-1], pieces[:, 1:], held_out=96)
    model = WordWriter(WORDS, dice.choice([48, 64]))
    size = dice.choice([16, 24])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=5e-3, sgd=0.5, classes=WORDS, steps=400)


def _gaps(dice: random.Random) -> Arena:
    classes, width = dice.choice([20, 30]), dice.choice([96, 128])
    x, y, validation = split(*gaps(12_000, classes))
    embed = nn.Embedding(corpus().vocabulary, 16)
    model = nn.Sequential(embed, nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Linear(width, classes))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=3e-3, sgd=0.1, classes=classes, steps=400)


def _bytes(dice: random.Random) -> Arena:
    tokens = corpus().vocabulary
    x, y, validation = split(*windows(6064, 32), held_out=64)
    model = GatedConvolutions(tokens, dice.choice([32, 48]))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 16, adam=4e-3, sgd=0.2, classes=tokens, steps=350)


def _speech(dice: random.Random) -> Arena:
    classes, count = dice.choice([4, 6]), 4400
    y = torch.randint(classes, (count,))
    time = torch.linspace(0, 1, 128)
    pitch = (6 + 3 * y + 2 * torch.rand(count)).unsqueeze(1)
    glide = (torch.rand(count, 1) - 0.5) * 4
    x = torch.sin(2 * math.pi * (pitch + glide * time) * time + 6 * torch.rand(count, 1))
    x = x * torch.exp(-(((time - 0.2 - 0.6 * torch.rand(count, 1)) / 0.3) ** 2)) + 0.3 * torch.randn(count, 128)
    x, y, validation = split((x / x.std()).unsqueeze(1), y)
    width = dice.choice([12, 16])
    layers: list[nn.Module] = []
    for given, made in ((1, width), (width, width), (width, 2 * width)):
        layers += [nn.Conv1d(given, made, 7, 2, 3), nn.BatchNorm1d(made), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, classes))
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=3e-3, sgd=0.05, classes=classes, steps=350)


def _glyphs(dice: random.Random) -> Arena:
    count, classes = 4400, 8
    y = torch.randint(classes, (count,))
    shapes = functional.interpolate((torch.rand(4, 1, 4, 4) > 0.5).float(), (10, 10))
    colours = torch.tensor([[1.0, 0.3, 0.1], [0.1, 0.3, 1.0]])
    x = 0.25 * torch.rand(count, 3, 16, 16)
    rows, columns = torch.randint(7, (2, count)).tolist()
    for index, kind in enumerate(y.tolist()):
        row, column = rows[index], columns[index]
        glyph = shapes[kind % 4] * colours[kind // 4].view(3, 1, 1)
        x[index, :, row : row + 10, column : column + 10] += glyph
    x = x + 0.15 * torch.randn_like(x)
    x, y, validation = split((x - x.mean()) / x.std(), y)
    width = dice.choice([12, 16])
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1),
        Grouped(width),
        Grouped(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * 16, classes),
    )
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=2e-3, sgd=0.02, classes=classes, steps=350)


def _loans(dice: random.Random) -> Arena:
    x = torch.randn(8000, 4) @ torch.randn(4, 14) * 0.5 + torch.randn(8000, 14)
    x = (x - x.mean(0)) / x.std(0)
    risk = torch.tanh(x @ torch.randn(14, 12) / 2) @ torch.randn(12, 1) + 0.5 * torch.randn(8000, 1)
    x, y, validation = split(x, (risk > risk.median()).float())
    width = dice.choice([48, 64])
    model = nn.Sequential(nn.Linear(14, width), nn.SELU(), nn.Linear(width, width), nn.SELU(), nn.Linear(width, 1))
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=0.05, steps=500)


def _sensors(dice: random.Random) -> Arena:
    length = dice.choice([16, 20])
    x = torch.randn(5000, length, 5)
    for step in range(1, length):
        x[:, step] = 0.7 * x[:, step - 1] + 0.7 * x[:, step]
    wear = (torch.relu(x @ torch.randn(5, 3)) * torch.linspace(0.3, 1, length).view(1, -1, 1)).mean(1)
    y = wear @ torch.randn(3, 1)
    y = (y - y.mean()) / y.std() + 0.1 * torch.randn_like(y)
    x, y, validation = split(x, y)
    return Arena(
        Reader(5, dice.choice([24, 32])), nn.SmoothL1Loss(), x, y, validation, 32, adam=4e-3, sgd=0.1, steps=350
    )


def _sorting(dice: random.Random) -> Arena:
    numbers, length = 10, dice.choice([6, 8])
    x = torch.randint(numbers, (9000, length))
    x, y, validation = split(x, x.sort(1).values, held_out=256)
    model = Sorter(numbers, length, 32)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 48, adam=2e-3, sgd=0.05, classes=numbers, steps=400)


def _coordinates(dice: random.Random) -> Arena:
    x = 2 * torch.rand(6000, 2) - 1
    waves = torch.sin(x @ (3.0 * torch.randn(2, 6)) + 6 * torch.rand(6))
    y = waves @ torch.randn(6, 3) / 2 + 0.05 * torch.randn(6000, 3)
    x, y, validation = split(x, y)
    return Arena(Sines(dice.choice([64, 96])), nn.MSELoss(), x, y, validation, 64, adam=2e-3, sgd=0.05, steps=500)


def _points(dice: random.Random) -> Arena:
    count, classes = 4000, 4
    y = torch.randint(classes, (count,))
    raw = torch.randn(count, 24, 3)
    ball = raw / raw.norm(dim=-1, keepdim=True)
    box = raw.clamp(-1, 1) / raw.clamp(-1, 1).abs().amax(-1, keepdim=True)
    tube = torch.cat([raw[..., :2] / raw[..., :2].norm(dim=-1, keepdim=True), raw[..., 2:].clamp(-1, 1)], -1)
    cone = torch.cat([tube[..., :2] * (1 - tube[..., 2:]) / 2, tube[..., 2:]], -1)
    x = torch.stack([ball, box, tube, cone], 1)[torch.arange(count), y]
    x, y, validation = split((x + 0.05 * torch.randn_like(x)) * (0.8 + 0.4 * torch.rand(count, 1, 1)), y)
    model = PointSet(dice.choice([32, 48]), classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=2e-3, sgd=0.05, classes=classes, steps=400)


def _pairs(dice: random.Random) -> Arena:
    centres = torch.randn(12, 20)
    same = (torch.rand(5000) < 0.5).float()
    first = torch.randint(12, (5000,))
    second = torch.where(same > 0, first, (first + torch.randint(1, 12, (5000,))) % 12)
    x = torch.stack([centres[first], centres[second]], 1)
    x, y, validation = split(x + 0.8 * torch.randn_like(x), same)
    return Arena(Twins(20, dice.choice([48, 64])), Margin(), x, y, validation, 48, adam=1e-3, sgd=0.1, steps=500)


def _towers(dice: random.Random) -> Arena:
    users, items = 200, 120
    taste = 1.5 * torch.randn(users, 4) @ torch.randn(4, items)
    user = torch.randint(users, (9000,))
    item = torch.multinomial(taste.softmax(1)[user], 1).squeeze(1)
    x, y, validation = split(torch.stack([user, item], 1), item, held_out=64)
    return Arena(Towers(users, items, 24), AmongTheBatch(), x, y, validation, 64, adam=5e-3, sgd=2.0, steps=500)


def _ink(dice: random.Random) -> Arena:
    x = strokes(3600)
    x, y, validation = split(x, x)
    model = InkCode(dice.choice([8, 12]), dice.choice([8, 12]))
    return Arena(model, InkBound(), x, y, validation, 32, adam=2e-3, sgd=5e-4, steps=400)


def _flow(dice: random.Random) -> Arena:
    angle, side = math.pi * torch.rand(7000, 1), torch.randint(2, (7000, 1)).float()
    x = torch.cat([angle.cos() + side - 0.5, angle.sin() * (1 - 2 * side) + 0.5 * side - 0.25], 1)
    x, y, validation = split((x + 0.1 * torch.randn_like(x)) * 1.3, torch.zeros(7000))
    return Arena(Flow(dice.choice([4, 6]), 32), Unlikelihood(), x, y, validation, 64, adam=2e-3, sgd=0.005, steps=500)


def _demand(dice: random.Random) -> Arena:
    hour, day, warmth = 24 * torch.rand(8000), 7 * torch.rand(8000), torch.randn(8000, 3)
    daily = torch.stack([(2 * math.pi * hour / 24).sin(), (2 * math.pi * hour / 24).cos()], 1)
    weekly = torch.stack([(2 * math.pi * day / 7).sin(), (2 * math.pi * day / 7).cos()], 1)
    x = torch.cat([1.4 * daily, 1.4 * weekly, warmth, (torch.rand(8000, 1) < 0.3).float() * 2.2 - 0.66], 1)
    y = torch.relu(x @ torch.randn(8, 16) + torch.randn(16)) @ torch.randn(16, 1)
    y = (y - y.mean()) / y.std() + 0.1 * torch.randn_like(y)
    x, y, validation = split(x, y)
    width = dice.choice([48, 64])
    model = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
    model.append(nn.Linear(width, 1))
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=0.02, steps=500)


ARENAS: dict[str, Build] = {
    "words": _words,
    "gaps": _gaps,
    "bytes": _bytes,
    "speech": _speech,
    "glyphs": _glyphs,
    "loans": _loans,
    "sensors": _sensors,
    "sorting": _sorting,
    "coordinates": _coordinates,
    "points": _points,
    "pairs": _pairs,
    "towers": _towers,
    "ink": _ink,
    "flow": _flow,
    "demand": _demand,
}
"""By name. Players against each other, and for rewards, bring loops of their own."""
