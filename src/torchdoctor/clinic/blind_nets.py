"""The nets of the blind arenas: each small, and built of parts as people build them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RootMeanSquare(nn.Module):
    """Divides by the root of the mean square, with a gain for each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x of unit size."""
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * self.gain


class DecoderBlock(nn.Module):
    """Causal attention of four heads, and a gated layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = RootMeanSquare(width), RootMeanSquare(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x and what the block has to add."""
        count, length, width = x.shape
        parts = self.qkv(self.before(x)).view(count, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.between(x)
        more: Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return x + more


class Decoder(nn.Module):
    """Predicts the next character."""

    def __init__(self, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(DecoderBlock(width) for _ in range(layers))
        self.norm = RootMeanSquare(width)
        self.head = nn.Linear(width, tokens, bias=False)
        for table in (self.embed, self.place):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        inner = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            inner = block(inner)
        scores: Tensor = self.head(self.norm(inner))
        return scores


class Words(nn.Module):
    """A recurrent net of two layers that predicts the next word."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.rnn = nn.LSTM(width, width, num_layers=2, dropout=0.1, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next word at each place."""
        scores: Tensor = self.head(self.drop(self.rnn(self.embed(x))[0]))
        return scores


class Bagged(nn.Module):
    """The mean of what the pieces of a text stand for, and two layers on it."""

    def __init__(self, tokens: int, width: int, classes: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(tokens, width, mode="mean")
        self.trunk = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.trunk(self.bag(x)))
        return scores


class Bottle(nn.Module):
    """Two convolutions with a norm each, beside a straight way."""

    def __init__(self, width: int, *, batch: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if batch else (lambda channels: nn.GroupNorm(4, channels))
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x and a little more."""
        return functional.relu(x + self.inner(x))


class Grouped(nn.Module):
    """A small residual net with GroupNorm."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, stride=2),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            Bottle(width, batch=False),
            nn.MaxPool2d(2, ceil_mode=True),
            Bottle(width, batch=False),
        )
        self.head = nn.Linear(16 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.trunk(x).flatten(1))
        return scores


class Normed(nn.Module):
    """A small residual net with BatchNorm, and the mean over all places at its end."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2, stride=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            Bottle(width, batch=True),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            Bottle(2 * width, batch=True),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.trunk(x).mean((2, 3)))
        return scores


class Inpainter(nn.Module):
    """Down, up again, and the picture beside it: fills what is missing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
            nn.LeakyReLU(0.1),
        )
        self.middle = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 5, padding=2), nn.LeakyReLU(0.1))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.head = nn.Conv2d(width + 2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The whole picture."""
        inner = functional.leaky_relu(self.up(self.middle(self.down(x))), 0.1)
        whole: Tensor = self.head(torch.cat([inner, x], 1))
        return whole


class Chirper(nn.Module):
    """Convolutions over a wave, and a recurrent net that reads it both ways."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv1d(1, width, 7, stride=2, padding=3),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.Conv1d(width, width, 5, stride=4, padding=2),
            nn.GELU(),
        )
        self.rnn = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.rnn(self.trunk(x).transpose(1, 2))[0].mean(1))
        return scores


class Vitals(nn.Module):
    """A recurrent net over several measurements, and several yes-or-no answers."""

    def __init__(self, channels: int, width: int, labels: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(channels, width), nn.Tanh())
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, labels)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the labels."""
        scores: Tensor = self.head(self.norm(self.rnn(self.trunk(x))[0][:, -1]))
        return scores


class Fields(nn.Module):
    """Categories by their vectors, numbers as they are, and residual layers on both."""

    def __init__(self, sizes: tuple[int, ...], numbers: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 6) for size in sizes)
        self.into = nn.Linear(6 * len(sizes) + numbers, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(2)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A price."""
        count = len(self.tables)
        parts = [table(x[:, index].long()) for index, table in enumerate(self.tables)]
        inner = self.into(torch.cat([*parts, x[:, count:]], 1))
        for block in self.blocks:
            inner = inner + block(inner)
        price: Tensor = self.head(inner)
        return price


class Factors(nn.Module):
    """A factorisation machine with a small net beside it."""

    def __init__(self, features: int, fields: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(features, width)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.single = nn.Embedding(features, 1)
        nn.init.zeros_(self.single.weight)
        self.trunk = nn.Sequential(nn.Linear(fields * width, 48), nn.ReLU())
        self.head = nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The score of a click."""
        vectors = self.embed(x)
        pairs = 0.5 * (vectors.sum(1).pow(2) - vectors.pow(2).sum(1)).sum(1, keepdim=True)
        score: Tensor = self.head(self.trunk(vectors.flatten(1))) + pairs + self.single(x).sum(1)
        return score


class Points(nn.Module):
    """The same layers for each point, and the largest answer of all."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()
        )
        self.after = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the shapes."""
        scores: Tensor = self.head(self.after(self.trunk(x).amax(1)))
        return scores


class Mover(nn.Module):
    """Convolutions over a board, and a layer that says where to go."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.after = nn.Sequential(nn.Linear(width * size * size, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the four moves."""
        scores: Tensor = self.head(self.after(self.trunk(x).flatten(1)))
        return scores


class Tally(nn.Module):
    """An encoder without a mask, and the mean over its places."""

    def __init__(self, symbols: int, width: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the symbols."""
        scores: Tensor = self.head(self.blocks(self.embed(x) + self.place).mean(1))
        return scores


class Fourier(nn.Module):
    """Sines and cosines of a place at fixed random pitches, and layers on them."""

    def __init__(self, waves: int, width: int) -> None:
        super().__init__()
        self.register_buffer("pitches", 2.5 * torch.randn(2, waves))
        self.trunk = nn.Sequential(nn.Linear(2 * waves, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The height at a place."""
        angles = x @ self.get_buffer("pitches")
        height: Tensor = self.head(self.trunk(torch.cat([angles.sin(), angles.cos()], 1)))
        return height


class Cells(nn.Module):
    """Convolutions on a board without edges, which say what each cell will be."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of being alive."""
        scores: Tensor = self.head(self.trunk(x))
        return scores


class Cached(nn.Module):
    """A linear layer that turns its weights round once, and keeps the result."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.turned: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """A linear map."""
        if self.turned is None:
            self.turned = self.weight.detach().t().contiguous()
        made: Tensor = x @ self.turned + self.bias
        return made


class Rounded(nn.Module):
    """Rounds weights, once it is on, and lets the gradient through."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def forward(self, weight: Tensor) -> Tensor:
        """The weight, perhaps on a grid."""
        if not self.on:
            return weight
        size = weight.detach().abs().amax() / 8
        return weight + ((weight / size).round() * size - weight).detach()
