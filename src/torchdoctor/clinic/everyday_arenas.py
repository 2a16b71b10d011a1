"""Where everyday kinds are trained: tables, digits, textures, texts, series, ratings, masks of pictures.

>>> from torchdoctor.clinic.arenas import Arena
>>> isinstance(ARENAS["everyday-prices"](random.Random(0)), Arena)
True
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic import everyday_nets as nets
from torchdoctor.clinic.arenas import Arena, Build, corpus, perceptron, windows


def _parts(x: Tensor, y: Tensor, held_out: int = 384) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


def _table(count: int, codes: int, numbers: int, levels: int) -> tuple[Tensor, Tensor]:
    """Rows of codes and numbers, and for each row a few hidden traits that depend on them."""
    kinds = torch.randint(levels, (count, codes))
    values = torch.randn(count, numbers)
    values[:, 0] = values[:, 0] + 0.5 * values[:, 1]
    effects = torch.randn(codes, levels, 8)
    traits = sum((effects[column, kinds[:, column]] for column in range(codes)), torch.zeros(count, 8))
    traits = torch.tanh((traits / codes**0.5 + values @ torch.randn(numbers, 8) / numbers**0.5) * 0.8)
    return torch.cat([kinds.float(), values], dim=1), traits


def _contracts(dice: random.Random) -> Arena:
    classes = dice.choice([3, 4])
    x, traits = _table(6384, 4, 8, 8)
    scores = traits @ torch.randn(8, classes) * 2
    labels = (scores - scores.mean(0) + 0.3 * torch.randn_like(scores)).argmax(1)
    x, y, validation = _parts(x, labels)
    model = nets.TableNet(8, 4, 8, classes, dice.choice([0.1, 0.2]))
    loss, size = nn.CrossEntropyLoss(), dice.choice([48, 64])
    return Arena(model, loss, x, y, validation, size, adam=3e-3, sgd=0.05, classes=classes)


def _prices(dice: random.Random) -> Arena:
    x = torch.randn(6384, 13)
    hidden = torch.relu(x @ torch.randn(13, 20) / 13**0.5)
    price = hidden @ torch.randn(20, 1) + 0.5 * x[:, :1] * x[:, 1:2]
    price = (price - price.mean()) / price.std() + 0.15 * torch.randn_like(price)
    x, y, validation = _parts(x, price)
    model = perceptron([13, 80, 40, 1])
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 64]), adam=3e-3, sgd=0.02)


def _strokes(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Digits of seven strokes as on a pocket calculator: moved, thick or thin, in noise; of mean 0 and scale 1."""
    on = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011"]
    bars = [(1, 2, 3, 7), (2, 6, 2, 3), (2, 6, 7, 8), (6, 7, 3, 7), (7, 11, 2, 3), (7, 11, 7, 8), (11, 12, 3, 7)]
    shapes = torch.zeros(10, size, size)
    for digit, lit in enumerate(on):
        for bar, (top, bottom, left, right) in zip(lit, bars, strict=True):
            if bar == "1":
                shapes[digit, top:bottom, left:right] = 1
    y = torch.randint(10, (count,))
    shifts = torch.randint(-1, 3, (count, 2)).tolist()
    drawn = [torch.roll(shapes[digit], (down, right), (0, 1)) for digit, (down, right) in zip(y, shifts, strict=True)]
    x = torch.stack(drawn).unsqueeze(1) * (0.5 + 0.5 * torch.rand(count, 1, 1, 1))
    x = x + 0.3 * torch.randn_like(x)
    return (x - x.mean()) / x.std(), y


def _digits(dice: random.Random) -> Arena:
    x, y, validation = _parts(*_strokes(4480, 14))
    size = dice.choice([32, 48])
    model = nets.LeNet(10)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=2e-3, sgd=0.05, classes=10)


def _textures(count: int, classes: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Colour gratings: a direction, a pitch and a tint for each class, any phase, and noise."""
    y = torch.randint(classes, (count,))
    angle, pitch = torch.rand(classes) * math.pi, 0.5 + 1.2 * torch.rand(classes)
    tint = torch.randn(classes, 3, 1, 1)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    along = angle[y].cos().view(-1, 1, 1) * rows + angle[y].sin().view(-1, 1, 1) * columns
    wave = torch.sin(pitch[y].view(-1, 1, 1) * along + 2 * math.pi * torch.rand(count, 1, 1)).unsqueeze(1)
    x = wave * (1 + 0.4 * tint[y]) + 2.2 * torch.randn(count, 3, size, size)
    return x / x.std(), y


def _pictures(model: Callable[[int], nn.Module], *, adam: float, sgd: float) -> Build:
    def make(dice: random.Random) -> Arena:
        classes = dice.choice([6, 8])
        x, y, validation = _parts(*_textures(3984, classes))
        size = dice.choice([32, 40])
        loss = nn.CrossEntropyLoss()
        return Arena(model(classes), loss, x, y, validation, size, adam, sgd, classes=classes, steps=320)

    return make


def _text(model: Callable[[int], nn.Module], *, adam: float, sgd: float, context: int = 32) -> Build:
    def make(dice: random.Random) -> Arena:
        tokens = corpus().vocabulary
        x, y, validation = _parts(*windows(6064, context), held_out=64)
        size = dice.choice([8, 12])
        loss = nn.CrossEntropyLoss()
        return Arena(model(tokens), loss, x, y, validation, size, adam, sgd, classes=tokens, steps=360)

    return make


def _opinions(dice: random.Random) -> Arena:
    words, length = 300, 20
    x = torch.randint(words, (9384, length))
    mood = torch.randn(words) * (torch.rand(words) < 0.5)
    turned = torch.where(torch.roll(x, 1, 1) < 40, -1.0, 1.0)  # a word of negation comes before
    score = (mood[x] * turned).sum(1)
    x, y, validation = _parts(x, (score > score.median()).float().unsqueeze(1))
    model = nets.ReviewNet(words, dice.choice([32, 40]))
    loss = nn.BCEWithLogitsLoss()
    return Arena(model, loss, x, y, validation, dice.choice([32, 48]), adam=5e-3, sgd=0.3, steps=400)


def _forecast(cell: type[nn.RNNBase], *, adam: float, sgd: float) -> Build:
    def make(dice: random.Random) -> Arena:
        count, length, ahead = 4384, 24, 4
        time = torch.arange(length + ahead).float()
        pitch, phase = 0.2 + 0.6 * torch.rand(count, 1), 2 * math.pi * torch.rand(count, 1)
        slope = 0.03 * torch.randn(count, 1)
        series = torch.sin(pitch * time + phase) + slope * time + 0.1 * torch.randn(count, length + ahead)
        x, y, validation = _parts(series[:, :length].unsqueeze(2), series[:, length:])
        model = nets.Forecaster(dice.choice([32, 40]), ahead, cell)
        return Arena(model, nn.MSELoss(), x, y, validation, 32, adam, sgd, steps=360)

    return make


def _ratings(dice: random.Random) -> Arena:
    users, films, rank = 120, 90, 4
    pairs = torch.stack([torch.randint(users, (24384,)), torch.randint(films, (24384,))], dim=1)
    tastes, traits = torch.randn(users, rank) * 0.5, torch.randn(films, rank) * 0.5
    fans, fame = 0.5 * torch.randn(users), 0.7 * torch.randn(films)
    stars = (tastes[pairs[:, 0]] * traits[pairs[:, 1]]).sum(1) + fans[pairs[:, 0]] + fame[pairs[:, 1]] + 3.5
    stars = stars + 0.2 * torch.randn_like(stars)
    x, y, validation = _parts(pairs, stars.unsqueeze(1))
    model = nets.Factors(users, films, dice.choice([4, 6]))
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([64, 128]), adam=0.02, sgd=1.0, steps=500)


def _topics(dice: random.Random) -> Arena:
    words, classes = 600, 8
    leanings = torch.softmax(1.2 * torch.randn(classes, words), dim=1)
    y = torch.randint(classes, (6384,))
    x, y, validation = _parts(torch.multinomial(leanings[y], 16, replacement=True), y)
    model = nets.TopicNet(words, 32, classes)
    size = dice.choice([32, 64])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=5e-3, sgd=0.5, classes=classes, steps=450)


def _blobs(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Bright round things on uneven ground, and where they are."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centre, radius = 3 + torch.rand(count, 2, 2) * (size - 6), 2 + 2.5 * torch.rand(count, 2)
    down = (rows.view(1, 1, size, size) - centre[:, :, 0].view(count, 2, 1, 1)) ** 2
    right = (columns.view(1, 1, size, size) - centre[:, :, 1].view(count, 2, 1, 1)) ** 2
    mask = ((down + right) < radius.view(count, 2, 1, 1) ** 2).any(1, keepdim=True).float()
    ground = functional.interpolate(torch.randn(count, 1, 3, 3), (size, size), mode="bilinear")
    return mask * 1.5 + 0.6 * ground + 0.5 * torch.randn(count, 1, size, size), mask


def _tissue(dice: random.Random) -> Arena:
    x, y, validation = _parts(*_blobs(2176, 16), held_out=128)
    loss = nn.BCEWithLogitsLoss()
    return Arena(nets.UNet(8), loss, x, y, validation, dice.choice([12, 16]), adam=1e-2, sgd=0.2, steps=300)


def _denoiser(dice: random.Random) -> Arena:
    noisy, clean = _blobs(3376, 16)
    x, y, validation = _parts(noisy, clean + 0.3 * functional.avg_pool2d(noisy, 5, 1, 2))
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(12, 16, 3, 2, 1),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose2d(16, 12, 4, 2, 1),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose2d(12, 1, 4, 2, 1),
    )
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([24, 32]), adam=3e-3, sgd=0.2)


def _tagger(dice: random.Random) -> Arena:
    words, tags, length = 120, 6, 16
    x = torch.randint(words, (4384, length))
    own, style = torch.randint(tags, (words,)), torch.randint(3, (words,))
    y = (own[x] + style[x[:, :1]]) % tags  # the first word says which set of tags is in use
    x, y, validation = _parts(x, y)
    model = nets.TinyGPT(words, tags, 32, causal=False)
    size = dice.choice([16, 24])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=3e-3, sgd=0.1, classes=tags)


def _sensor(dice: random.Random) -> Arena:
    classes, length = 5, 32
    y = torch.randint(classes, (4384,))
    pace, weight = 0.3 + 0.35 * torch.arange(classes) + 0.1 * torch.rand(classes), 0.5 + torch.rand(classes, 3)
    phase = 2 * math.pi * torch.rand(4384, 1)
    wave = torch.sin(pace[y].unsqueeze(1) * torch.arange(length) + phase).unsqueeze(1)
    x = wave * weight[y].unsqueeze(2) + 1.5 * torch.randn(4384, 3, length)
    x, y, validation = _parts(x, y)
    model = nets.SensorNet(3, classes)
    size = dice.choice([32, 64])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=3e-3, sgd=0.05, classes=classes)


ARENAS: dict[str, Build] = {
    "everyday-contracts": _contracts,
    "everyday-prices": _prices,
    "everyday-digits": _digits,
    "everyday-resnet": _pictures(nets.TinyResNet, adam=3e-3, sgd=0.05),
    "everyday-vit": _pictures(nets.TinyViT, adam=1.5e-3, sgd=0.05),
    "everyday-gpt": _text(lambda tokens: nets.TinyGPT(tokens, tokens), adam=3e-3, sgd=0.1),
    "everyday-post-norm": _text(lambda tokens: nets.TinyGPT(tokens, tokens, 32, 6, post=True), adam=1e-3, sgd=0.03),
    "everyday-char-lstm": _text(lambda tokens: nets.CharLSTM(tokens, 64), adam=5e-3, sgd=1.0),
    "everyday-opinions": _opinions,
    "everyday-forecast": _forecast(nn.GRU, adam=5e-3, sgd=0.1),
    "everyday-elman": _forecast(nn.RNN, adam=2e-3, sgd=0.01),
    "everyday-ratings": _ratings,
    "everyday-topics": _topics,
    "everyday-tissue": _tissue,
    "everyday-denoiser": _denoiser,
    "everyday-tagger": _tagger,
    "everyday-sensor": _sensor,
}
