"""Where the kinds of the benchmark are trained: small models, each with data that it can learn in some hundred steps.

Everything is drawn from the run's seed: the data's teacher, the model's width, the batch size. A hundred steps take
a second or less on one core.

>>> arena = build("mlp", seed=0)
>>> x, y = next(arena.batches())
>>> arena.model(x).shape[1] == arena.classes
True
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.data import Corpus, load_text
from torchdoctor.errors import PatientError, did_you_mean


@dataclass
class Arena:
    """A model, its loss and its data, before anybody has done anything wrong."""

    model: nn.Module
    loss_fn: nn.Module
    x: Tensor
    y: Tensor
    validation: tuple[Tensor, Tensor]
    batch_size: int
    adam: float
    """A learning rate that suits Adam here."""
    sgd: float
    """One that suits SGD with momentum 0.9."""
    classes: int = 0
    steps: int = 400
    seed: int = 0

    def batches(self, *, shuffle: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches without end, epoch after epoch, as a loader gives them; the rest of an epoch is dropped."""
        generator = torch.Generator("cpu").manual_seed(self.seed)
        size = self.batch_size
        while True:
            count = len(self.x)
            order = torch.arange(count, device="cpu")
            if shuffle:
                order = torch.randperm(count, generator=generator, device="cpu")
            for start in range(0, max(count - size, 0) + 1, size):
                chosen = order[start : start + size]
                yield self.x[chosen], self.y[chosen]

    def move(self, device: torch.device) -> None:
        """Have all of it on a device."""
        self.model.to(device)
        self.loss_fn.to(device)
        self.x, self.y = self.x.to(device), self.y.to(device)
        self.validation = self.validation[0].to(device), self.validation[1].to(device)

    @property
    def epoch(self) -> int:
        """Steps in one pass over the data."""
        return max(len(self.x) // self.batch_size, 1)


Build = Callable[[random.Random], Arena]


def makers() -> dict[str, Build]:
    """All arenas by name: those below, and those of kinds written apart."""
    from torchdoctor.clinic import (  # made of what is below
        apart_arenas,
        apart_arenas_b,
        blind_arenas,
        blind_arenas_b,
        everyday_arenas,
        everyday_arenas_b,
        sealed_arenas,
        sealed_arenas_b,
    )

    opened = apart_arenas.ARENAS | apart_arenas_b.ARENAS | blind_arenas.ARENAS | blind_arenas_b.ARENAS
    everyday = everyday_arenas.ARENAS | everyday_arenas_b.ARENAS
    return ARENAS | opened | sealed_arenas.ARENAS | sealed_arenas_b.ARENAS | everyday


def build(name: str, seed: int) -> Arena:
    """The arena of a name, drawn from a seed: data, model and weights are the same for the same seed."""
    known = makers()
    maker = known.get(name)
    if maker is None:
        raise PatientError(f"there is no arena {name!r}. {did_you_mean(name, known)}")
    torch.manual_seed(seed)
    with torch.device("cpu"):  # the same numbers, wherever it is trained
        arena = maker(random.Random(f"{name} {seed}"))
    arena.seed = seed
    arena.move(torch.get_default_device())
    return arena


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _split(x: Tensor, y: Tensor, held_out: int = 512) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    return x[held_out:], y[held_out:], (x[:held_out], y[:held_out])


def teacher_labels(x: Tensor, classes: int) -> Tensor:
    """Classes that a random two-layer net gives, about equally often, with a few wrong ones."""
    hidden = torch.tanh(x @ torch.randn(x.shape[1], 32) / x.shape[1] ** 0.5 * 2)
    scores = hidden @ torch.randn(32, classes)
    labels = (scores - scores.mean(0)).argmax(1)
    wrong = torch.rand(len(x)) < 0.03
    return torch.where(wrong, torch.randint(classes, (len(x),)), labels)


def pictures(count: int, classes: int, size: int = 12) -> tuple[Tensor, Tensor]:
    """Smooth random shapes, one for each class, shifted, dimmed and in noise; about unit scale."""
    shapes = functional.interpolate(torch.randn(classes, 1, 4, 4), (size, size), mode="bicubic")
    y = torch.randint(classes, (count,))
    x = shapes[y] * (0.7 + 0.6 * torch.rand(count, 1, 1, 1))
    shifts = torch.randint(-2, 3, (count,))
    x = torch.stack([torch.roll(item, int(shift), dims=2) for item, shift in zip(x, shifts, strict=True)])
    x = x + 1.5 * torch.randn_like(x)
    return (x - x.mean()) / x.std(), y


@cache
def corpus() -> Corpus:
    """Python's own documentation, character by character."""
    return Corpus(load_text()[:400_000])


def windows(count: int, context: int) -> tuple[Tensor, Tensor]:
    """Random pieces of text, and the same moved on by one character."""
    tokens = corpus().tokens
    starts = torch.randint(len(tokens) - context - 1, (count, 1))
    pieces = tokens[starts + torch.arange(context + 1)].long()
    return pieces[:, :-1], pieces[:, 1:]


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def perceptron(sizes: list[int], activation: type[nn.Module] = nn.ReLU, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for index, (given, made) in enumerate(zip(sizes, sizes[1:], strict=False)):
        layers.append(nn.Linear(given, made))
        if index < len(sizes) - 2:
            layers.append(activation())
            if dropout:
                layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


class Convolutions(nn.Module):
    """Two convolutions, perhaps with BatchNorm, and a linear head."""

    def __init__(self, width: int, classes: int, *, norm: bool) -> None:
        super().__init__()

        def block(given: int, made: int) -> list[nn.Module]:
            return [nn.Conv2d(given, made, 3, padding=1), *([nn.BatchNorm2d(made)] if norm else []), nn.ReLU()]

        self.trunk = nn.Sequential(*block(1, width), nn.MaxPool2d(2), *block(width, 2 * width), nn.MaxPool2d(2))
        self.head = nn.Linear(2 * width * 9, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.trunk(x).flatten(1))
        return scores


class Residual(nn.Module):
    """A block that adds to what it is given; with ``zero``, nothing at first."""

    def __init__(self, width: int, *, zero: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = perceptron([width, 2 * width, width], nn.GELU)
        if zero:
            last = self.inner[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x and a little more."""
        more: Tensor = self.inner(self.norm(x))
        return x + more


class Sequences(nn.Module):
    """A recurrent net that reads a sequence of vectors, and a head on its last state."""

    def __init__(self, kind: Callable[..., nn.RNNBase], given: int, width: int, classes: int) -> None:
        super().__init__()
        self.rnn = kind(given, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.rnn(x)[0][:, -1])
        return scores


class Writer(nn.Module):
    """A recurrent net that predicts the next character."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        scores: Tensor = self.head(self.rnn(self.embed(x))[0])
        return scores


class Transformer(nn.Module):
    """A decoder of a few layers that predicts the next character."""

    def __init__(self, tokens: int, width: int, *, layers: int = 2, norm_first: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        nn.init.normal_(self.embed.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=norm_first)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)
        self.hides_from = 1
        """How far ahead of a place the mask begins; 1 is right."""

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        length = x.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(self.hides_from)
        inner = self.blocks(self.embed(x) + self.place[:length], mask=mask)
        scores: Tensor = self.head(self.norm(inner))
        return scores


class Variational(nn.Module):
    """A variational autoencoder of vectors: gives the picture again, with mean and log-variance of its code."""

    def __init__(self, given: int, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(given, width), nn.ReLU())
        self.mean = nn.Linear(width, code)
        self.log_variance = nn.Linear(width, code)
        self.decoder = perceptron([code, width, given])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The picture made again, mean and log-variance."""
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


class EvidenceBound(nn.Module):
    """What a variational autoencoder minimises: squared error and the distance of the code from a normal one."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, made: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        """The mean over the batch, summed over features."""
        again, mean, log_variance = made
        distance = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
        return (again - x).pow(2).sum(1).mean() + self.beta * distance


class Views(nn.Module):
    """An encoder of two views of the same thing."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.encoder = perceptron([given, width, width, 16])

    def forward(self, x: Tensor) -> Tensor:
        """The two codes, side by side."""
        codes: Tensor = self.encoder(x)
        return codes


class Contrast(nn.Module):
    """InfoNCE: each code is to find the other view of its own among the batch."""

    def forward(self, codes: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy over the batch."""
        first, second = functional.normalize(codes, dim=-1).unbind(1)
        return functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(codes)))


# ── arenas ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mlp(dice: random.Random) -> Arena:
    given, classes, width = dice.choice([12, 20, 32]), dice.choice([4, 10]), dice.choice([48, 64, 96])
    x = torch.randn(8704, given)
    x, y, validation = _split(x, teacher_labels(x, classes))
    model = perceptron([given, width, width, classes])
    size = dice.choice([32, 64])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=3e-3, sgd=0.05, classes=classes)


def _dropout_mlp(dice: random.Random) -> Arena:
    arena = _mlp(dice)
    given, classes = arena.x.shape[1], arena.classes
    arena.model = perceptron([given, 128, 128, classes], dropout=dice.choice([0.1, 0.2, 0.3]))
    return arena


def _linear(dice: random.Random) -> Arena:
    arena = _mlp(dice)
    given = arena.x.shape[1]
    arena.model = nn.Linear(given, arena.classes)
    scores = torch.cat([arena.validation[0], arena.x]) @ torch.randn(given, arena.classes)
    labels = (scores + torch.randn_like(scores)).argmax(1)
    arena.validation = (arena.validation[0], labels[:512])
    arena.y = labels[512:]
    arena.adam, arena.sgd = 1e-2, 0.05
    return arena


def _deep(activation: type[nn.Module], *, normalized: bool) -> Build:
    def make(dice: random.Random) -> Arena:
        arena = _mlp(dice)
        depth, width = dice.choice([10, 14, 18]), 48
        sizes = [arena.x.shape[1], *[width] * depth, arena.classes]
        layers: list[nn.Module] = []
        for layer in perceptron(sizes, activation):
            layers.append(layer)
            if normalized and isinstance(layer, activation):
                layers.append(nn.LayerNorm(width))
        arena.model = nn.Sequential(*layers)
        arena.adam, arena.sgd = 1e-3, 0.01
        return arena

    return make


def _resnet(dice: random.Random) -> Arena:
    arena = _mlp(dice)
    width = dice.choice([32, 48])
    arena.model = nn.Sequential(
        nn.Linear(arena.x.shape[1], width),
        *(Residual(width) for _ in range(dice.choice([3, 4, 6]))),
        nn.LayerNorm(width),
        nn.Linear(width, arena.classes),
    )
    arena.adam, arena.sgd = 1e-3, 0.02
    return arena


def _cnn(dice: random.Random, *, norm: bool = False) -> Arena:
    classes = dice.choice([5, 10])
    x, y, validation = _split(*pictures(4608, classes))
    model = Convolutions(dice.choice([8, 12]), classes, norm=norm)
    size = dice.choice([32, 48])
    return Arena(model, nn.CrossEntropyLoss(), x, y, validation, size, adam=2e-3, sgd=0.02, classes=classes, steps=300)


def _batchnorm(dice: random.Random) -> Arena:
    return _cnn(dice, norm=True)


def _binary(dice: random.Random) -> Arena:
    x = torch.randn(8704, 16)
    y = teacher_labels(x, 2).float().unsqueeze(1)
    x, y, validation = _split(x, y)
    model = perceptron([16, 64, 64, 1])
    return Arena(model, nn.BCEWithLogitsLoss(), x, y, validation, dice.choice([32, 64]), adam=3e-3, sgd=0.1)


def _regression(dice: random.Random) -> Arena:
    x = torch.randn(8704, 10)
    y = torch.tanh(x @ torch.randn(10, 24) / 10**0.5 * 1.5) @ torch.randn(24, 1)
    y = (y - y.mean()) / y.std() + dice.choice([0.05, 0.2]) * torch.randn_like(y)
    x, y, validation = _split(x, y)
    model = perceptron([10, 64, 64, 1], dice.choice([nn.ReLU, nn.Tanh]))
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 64]), adam=3e-3, sgd=0.02)


def _sequences(kind: type[nn.RNNBase], *, sgd: float) -> Build:
    def make(dice: random.Random) -> Arena:
        length, classes = dice.choice([12, 16]), dice.choice([3, 5])
        x = torch.randn(4608, length, 6)
        drift = (x * torch.linspace(0.5, 1, length).view(1, -1, 1)).sum(1) @ torch.randn(6, classes)
        x, y, validation = _split(x, (drift - drift.mean(0)).argmax(1))
        model = Sequences(kind, 6, dice.choice([24, 32]), classes)
        return Arena(model, nn.CrossEntropyLoss(), x, y, validation, 32, adam=4e-3, sgd=sgd, classes=classes, steps=300)

    return make


def _text(model: Callable[[int, random.Random], nn.Module], *, adam: float, sgd: float) -> Build:
    def make(dice: random.Random) -> Arena:
        tokens = corpus().vocabulary
        x, y, validation = _split(*windows(6064, 24), held_out=64)
        return Arena(
            model(tokens, dice),
            nn.CrossEntropyLoss(),
            x,
            y,
            validation,
            dice.choice([8, 12]),
            adam,
            sgd,
            classes=tokens,
            steps=300,
        )

    return make


def _autoencoder(dice: random.Random) -> Arena:
    x, _ = pictures(4608, 8)
    x, y, validation = _split(x.flatten(1), x.flatten(1))
    model = nn.Sequential(perceptron([144, 64, 12]), nn.ReLU(), perceptron([12, 64, 144]))
    return Arena(model, nn.MSELoss(), x, y, validation, dice.choice([32, 64]), adam=3e-3, sgd=0.5)


def _vae(dice: random.Random) -> Arena:
    x, _ = pictures(4608, 8)
    x, y, validation = _split(x.flatten(1), x.flatten(1))
    model = Variational(144, 64, dice.choice([6, 10]))
    return Arena(model, EvidenceBound(), x, y, validation, dice.choice([32, 64]), adam=2e-3, sgd=2e-4)


def _contrastive(dice: random.Random) -> Arena:
    things = torch.randn(4608, 12) @ torch.randn(12, 24) / 12**0.5
    views = torch.stack([things + 0.4 * torch.randn_like(things) for _ in range(2)], dim=1)
    x, y, validation = _split(views, torch.zeros(len(views)), held_out=64)
    return Arena(Views(24, 64), Contrast(), x, y, validation, dice.choice([32, 64]), adam=1e-3, sgd=0.1)


ARENAS: dict[str, Build] = {
    "mlp": _mlp,
    "dropout-mlp": _dropout_mlp,
    "linear": _linear,
    "deep-sigmoid": _deep(nn.Sigmoid, normalized=False),
    "deep-tanh": _deep(nn.Tanh, normalized=True),
    "deep-relu": _deep(nn.ReLU, normalized=False),
    "resnet": _resnet,
    "cnn": _cnn,
    "batchnorm": _batchnorm,
    "binary": _binary,
    "regression": _regression,
    "lstm": _sequences(nn.LSTM, sgd=0.1),
    "rnn": _sequences(nn.RNN, sgd=0.02),
    "gru-text": _text(lambda tokens, dice: Writer(tokens, dice.choice([48, 64])), adam=4e-3, sgd=0.5),
    "transformer": _text(lambda tokens, dice: Transformer(tokens, dice.choice([32, 48])), adam=2e-3, sgd=0.1),
    "post-norm": _text(lambda tokens, dice: Transformer(tokens, 32, layers=4, norm_first=False), adam=5e-4, sgd=0.05),
    "autoencoder": _autoencoder,
    "vae": _vae,
    "contrastive": _contrastive,
}
"""By name: what makes it from a die that its seed has loaded. GAN, bandit and the like bring loops of their own."""
