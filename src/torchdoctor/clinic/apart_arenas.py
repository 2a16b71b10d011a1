"""Where kinds written apart are trained: other models, losses and data than the arenas of development.

>>> from torchdoctor.clinic.arenas import build
>>> arena = build("translate", seed=0)
>>> x, y = next(arena.batches())
>>> arena.model(x).shape[:2] == y.shape
True
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic import apart_models as models
from torchdoctor.clinic.arenas import Arena, Build, corpus, perceptron, pictures, windows


def _split(x: Tensor, y: Tensor, held_out: int = 384) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


# ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Pinball(nn.Module):
    """The loss of quantiles, one to a column."""

    shares = (0.1, 0.5, 0.9)

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean over quantiles and samples."""
        missed = y - outputs
        share = torch.tensor(self.shares)
        return torch.maximum(share * missed, (share - 1) * missed).mean()


class MixtureLikelihood(nn.Module):
    """Minus the log-likelihood under a mixture of normal densities."""

    def forward(self, made: Tensor, y: Tensor) -> Tensor:
        """The mean over the batch."""
        shares, places, widths = made.chunk(3, dim=1)
        each = -0.5 * ((y - places) / widths.exp()).pow(2) - widths
        return -torch.logsumexp(shares.log_softmax(1) + each, dim=1).mean()


class ClassAndNumber(nn.Module):
    """Cross-entropy of the first columns, squared error of the last."""

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Their sum."""
        said = functional.cross_entropy(outputs[:, :-1], y[:, 0].long())
        return said + functional.mse_loss(outputs[:, -1], y[:, 1])


class Triplet(nn.Module):
    """The positive is to be nearer than the negative, by a margin."""

    def forward(self, codes: Tensor, y: Tensor) -> Tensor:
        """The mean of what is missing."""
        anchor, positive, negative = codes.unbind(1)
        near = (anchor - positive).pow(2).sum(1).sqrt()
        far = (anchor - negative).pow(2).sum(1).sqrt()
        return functional.relu(near - far + 1.0).mean()


# ── arenas ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _decoder(dice: random.Random) -> Arena:
    tokens = corpus().vocabulary
    x, y, validation = _split(*windows(6064, 24), held_out=64)
    model, size = models.Decoder(tokens, dice.choice([32, 40])), dice.choice([8, 12])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, 4e-3, 0.3, classes=tokens, steps=300)


def _patches(dice: random.Random) -> Arena:
    classes = dice.choice([6, 8])
    x, y, validation = _split(*pictures(4480, classes, 16))
    model = models.Patches(classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, 1.5e-3, 0.02, classes=classes, steps=300)


def _mixer(dice: random.Random) -> Arena:
    arena = _patches(dice)
    arena.model = models.Mixer(arena.classes)
    arena.adam, arena.sgd = 2e-3, 0.02
    return arena


def _unet(dice: random.Random) -> Arena:
    """Blots on uneven ground, to be found pixel by pixel."""
    ground = functional.interpolate(torch.randn(1984, 1, 3, 3), (16, 16), mode="bicubic")
    blots = functional.interpolate(torch.randn(1984, 1, 5, 5), (16, 16), mode="bicubic")
    y = (blots > dice.choice([0.3, 0.5])).float()
    x = ground + 1.5 * y + 0.7 * torch.randn_like(ground)
    x, y, validation = _split((x - x.mean()) / x.std(), y, held_out=128)
    return Arena(models.UNet(), nn.BCEWithLogitsLoss(), x, y, validation, 16, 3e-3, 0.1, steps=250)


def _table(dice: random.Random) -> Arena:
    """Categories and numbers as they come: ages, incomes, shares."""
    levels, categories, numbers, classes = 12, 4, 6, dice.choice([3, 4])
    chosen = torch.randint(levels, (8576, categories))
    drawn = torch.randn(8576, numbers)
    effects = torch.randn(categories, levels, 8)
    hidden = sum(effects[column][chosen[:, column]] for column in range(categories)) + drawn @ torch.randn(numbers, 8)
    scores = torch.tanh(hidden / 2) @ torch.randn(8, classes)
    y = (scores - scores.mean(0) + 0.2 * torch.randn_like(scores)).argmax(1)
    scales, shifts = torch.tensor([1.0, 15, 4000, 0.1, 30, 2]), torch.tensor([0.0, 40, 20_000, 0.5, 0, 10])
    x, y, validation = _split(torch.cat([chosen.float(), drawn * scales + shifts], dim=1), y)
    model = models.Table(levels, categories, numbers, classes)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 64, 4e-3, 0.05, classes=classes, steps=400)


def _ratings(dice: random.Random) -> Arena:
    users, items = 120, 80
    x = torch.stack([torch.randint(users, (16_384,)), torch.randint(items, (16_384,))], dim=1)
    taste = (0.8 * torch.randn(users, 4))[x[:, 0]] * torch.randn(items, 4)[x[:, 1]]
    y = taste.sum(1) + 0.5 * torch.randn(users)[x[:, 0]] + 0.5 * torch.randn(items)[x[:, 1]]
    x, y, validation = _split(x, y + dice.choice([0.2, 0.4]) * torch.randn_like(y))
    return Arena(models.Ratings(users, items), nn.MSELoss(), x, y, validation, 128, 2e-2, 0.5, steps=500)


def _graph(dice: random.Random) -> Arena:
    """Random graphs; the class is which kind of node has the most neighbours of another kind."""
    count, nodes, given = 4480, 12, 5
    kinds = functional.one_hot(torch.randint(given, (count, nodes)), given).float()
    edges = (torch.rand(count, nodes, nodes) < 0.25).float().triu(1)
    edges = edges + edges.transpose(1, 2)
    pairs = kinds.transpose(1, 2) @ edges @ kinds
    scores = pairs.flatten(1) @ torch.randn(given * given, 4)
    scores = (scores - scores.mean(0)) / scores.std(0)
    x, y, validation = _split(torch.cat([kinds, edges], dim=2), scores.argmax(1))
    model = models.Graph(given, dice.choice([24, 32]), 4)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 48, 4e-3, 0.05, classes=4, steps=400)


def _forecast(dice: random.Random) -> Arena:
    """Sums of waves in noise, and how they go on."""
    time = torch.arange(36.0)
    periods = torch.tensor([5.0, 9.0, 14.0])
    phases, sizes = 6.3 * torch.rand(4480, 3, 1), 0.4 + torch.rand(4480, 3, 1)
    series = (sizes * torch.sin(6.283 * time / periods.view(1, 3, 1) + phases)).sum(1, keepdim=True)
    series = series + dice.choice([0.15, 0.3]) * torch.randn_like(series)
    x, y, validation = _split(series[..., :32], series[:, 0, 32:])
    return Arena(models.Forecast(), nn.MSELoss(), x, y, validation, 32, 3e-3, 0.02, steps=400)


def _translate(dice: random.Random) -> Arena:
    """A row of digits of some length, to be given again backwards, each moved on by one."""
    tokens, length = 12, 8
    lengths = torch.randint(4, length + 1, (6384, 1))
    place = torch.arange(length)
    source = torch.randint(2, tokens, (6384, length)).masked_fill(place >= lengths, 0)
    backwards = source.gather(1, (lengths - 1 - place).clamp_min(0))
    y = (2 + (backwards - 1) % (tokens - 2)).masked_fill(place >= lengths, -100)
    given = torch.cat([torch.ones(6384, 1, dtype=torch.long), y[:, :-1].clamp_min(0)], dim=1)
    x, y, validation = _split(torch.cat([source, given], dim=1), y)
    model = models.Translator(tokens, dice.choice([40, 48]), length)
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 48, 6e-3, 0.5, classes=tokens, steps=400)


def _tags(dice: random.Random) -> Arena:
    """Sixteen yes-or-no questions of one sample."""
    x = torch.randn(8576, 24)
    hidden = torch.tanh(x @ torch.randn(24, 24) / 24**0.5 * 2)
    scores = hidden @ torch.randn(24, 16) + 0.5 * torch.randn(8576, 16)
    x, y, validation = _split(x, (scores > scores.quantile(0.75, dim=0)).float())
    model = perceptron([24, 96, 96, 16], nn.LeakyReLU)
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([32, 64]), 3e-3, 0.5, steps=400)


def _quantiles(dice: random.Random) -> Arena:
    x = torch.rand(8576, 6) * 2 - 1
    middle = torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.5 * x[:, 3:4]
    y = middle + (0.1 + 0.3 * x[:, 4:5].abs()) * torch.randn_like(middle)
    x, y, validation = _split(x, y)
    return Arena(perceptron([6, 48, 48, 3], nn.SiLU), Pinball(), x, y, validation, 64, 4e-3, 0.2, steps=400)


def _counts(dice: random.Random) -> Arena:
    """Numbers of events, whose logarithm is to be said."""
    x = torch.randn(8576, 8)
    rate = (0.6 * torch.tanh(x @ torch.randn(8, 12) / 2) @ torch.randn(12, 1) + 1.0).clamp(-3, 3.5).exp()
    x, y, validation = _split(x, torch.poisson(rate))
    model = perceptron([8, 48, 48, 1], dice.choice([nn.ReLU, nn.GELU]))
    return Arena(model, nn.PoissonNLLLoss(), x, y, validation, 64, 2e-3, 2e-3, steps=400)


def _mixture(dice: random.Random) -> Arena:
    """Two answers to each question, one more likely."""
    x = torch.randn(8576, 5)
    upper = torch.rand(8576, 1) < 0.65
    y = torch.where(upper, 1 + x[:, :1].tanh(), -1.5 + 0.5 * x[:, 1:2]) + 0.15 * torch.randn(8576, 1)
    x, y, validation = _split(x, y)
    return Arena(models.Mixture(5), MixtureLikelihood(), x, y, validation, 64, 4e-3, 0.02, steps=400)


def _diffusion(dice: random.Random) -> Arena:
    """Noise in a picture of digits' size, to be told from the picture at every strength."""
    clean, _ = pictures(4480, dice.choice([3, 4]), 8)
    clean = functional.avg_pool2d(clean, 3, 1, 1).flatten(1) * 2
    strength = torch.rand(len(clean), 1) * 0.9 + 0.05
    noise = torch.randn_like(clean)
    noisy = (1 - strength).sqrt() * clean + strength.sqrt() * noise
    x, y, validation = _split(torch.cat([noisy, 2 * strength - 1], dim=1), noise)
    model = perceptron([65, 128, 128, 64], nn.SiLU)
    return Arena(model, nn.MSELoss(), x, y, validation, 64, 3e-3, 0.5, steps=400)


def _triplet(dice: random.Random) -> Arena:
    centres = torch.randn(20, 16)
    kind = torch.randint(20, (6016,))
    other = (kind + torch.randint(1, 20, (6016,))) % 20
    x = centres[torch.stack([kind, kind, other], dim=1)] + 1.2 * torch.randn(6016, 3, 16)
    x, y, validation = _split(x, kind)
    return Arena(models.Fold(16, 48), Triplet(), x, y, validation, 48, 2e-3, 0.02, steps=400)


def _two_heads(dice: random.Random) -> Arena:
    x = torch.randn(8576, 14)
    hidden = torch.tanh(x @ torch.randn(14, 20) / 2)
    scores = hidden @ torch.randn(20, 5)
    number = hidden @ torch.randn(20, 1)
    number = (number - number.mean()) / number.std() + 0.2 * torch.randn_like(number)
    y = torch.cat([(scores - scores.mean(0)).argmax(1, keepdim=True).float(), number], dim=1)
    x, y, validation = _split(x, y)
    return Arena(models.TwoHeads(14, 5), ClassAndNumber(), x, y, validation, dice.choice([32, 64]), 3e-3, 0.03)


ARENAS: dict[str, Build] = {
    "decoder": _decoder,
    "patches": _patches,
    "mixer": _mixer,
    "unet": _unet,
    "table": _table,
    "ratings": _ratings,
    "graph": _graph,
    "forecast": _forecast,
    "translate": _translate,
    "tags": _tags,
    "quantiles": _quantiles,
    "counts": _counts,
    "mixture": _mixture,
    "diffusion": _diffusion,
    "triplet": _triplet,
    "two-heads": _two_heads,
}
"""By name: what makes it from a die that its seed has loaded."""
