"""The nets and losses of `apart_arenas_b`: pictures, texts, series, graphs, sets, tables and densities."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import perceptron


class UNet(nn.Module):
    """Down once, up once, and what was seen before is put beside it: scores of each pixel."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU())
        self.low = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(2, 2 * width), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes at each pixel."""
        fine = self.down(x)
        scores: Tensor = self.out(torch.cat([fine, self.up(self.low(functional.max_pool2d(fine, 2)))], 1))
        return scores


class PatchTransformer(nn.Module):
    """A picture in patches, a class token before them, and encoder layers."""

    def __init__(self, width: int, classes: int, *, patch: int = 3, size: int = 12) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        patches = self.patch(x).flatten(2).transpose(1, 2)
        inner = self.blocks(torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.place)
        scores: Tensor = self.head(self.drop(self.norm(inner[:, 0])))
        return scores


class Gated(nn.Module):
    """A decoder block: RMSNorm, causal attention, RMSNorm, SwiGLU."""

    def __init__(self, width: int, *, normalized: bool = True) -> None:
        super().__init__()
        self.before = nn.RMSNorm(width) if normalized else nn.Identity()
        self.between = nn.RMSNorm(width) if normalized else nn.Identity()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.causal = True

    def forward(self, x: Tensor) -> Tensor:
        """What was given and what the block adds."""
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, value = self.gate(self.between(x)).chunk(2, -1)
        more: Tensor = self.down(functional.silu(gate) * value)
        return x + more


class TiedDecoder(nn.Module):
    """A decoder whose head is its embedding."""

    def __init__(self, tokens: int, width: int, layers: int = 2, *, normalized: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        nn.init.normal_(self.embed.weight, std=0.05)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.ModuleList(Gated(width, normalized=normalized) for _ in range(layers))
        self.norm = nn.RMSNorm(width) if normalized else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        inner = self.embed(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            inner = block(inner)
        scores: Tensor = self.norm(inner) @ self.embed.weight.T
        return scores


class Reader(nn.Module):
    """An encoder that sees the whole text: scores of the character at each place."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens + 1, width)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the character at each place."""
        scores: Tensor = self.head(self.blocks(self.embed(x) + self.place[: x.shape[1]]))
        return scores


class Translator(nn.Module):
    """An encoder and a decoder that looks back at it; the input is the source and then the shifted target."""

    def __init__(self, tokens: int, width: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.embed = nn.Embedding(tokens + 1, width)
        self.place = nn.Parameter(0.3 * torch.randn(length, width))
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)
        self.head = nn.Linear(2 * width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the target's symbol at each place."""
        source = self.encoder(self.embed(x[:, : self.length]) + self.place)[0]
        state = self.decoder(self.embed(x[:, self.length :]) + self.place)[0]
        seen = self.attention(state, source, source, need_weights=False)[0]
        scores: Tensor = self.head(torch.cat([state, seen], -1))
        return scores


class Ratings(nn.Module):
    """Users and things as vectors; their product and two biases are the rating."""

    def __init__(self, users: int, things: int, width: int) -> None:
        super().__init__()
        self.user, self.thing = nn.Embedding(users, width), nn.Embedding(things, width)
        self.user_bias, self.thing_bias = nn.Embedding(users, 1), nn.Embedding(things, 1)
        for table in (self.user, self.thing, self.user_bias, self.thing_bias):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """The rating of each pair."""
        user, thing = x.unbind(1)
        bias = (self.user_bias(user) + self.thing_bias(thing)).squeeze(1)
        rating: Tensor = (self.user(user) * self.thing(thing)).sum(1) + bias
        return rating


class Table(nn.Module):
    """Numbers and categories of a table: embeddings beside the numbers, BatchNorm after each layer."""

    def __init__(self, numbers: int, sizes: list[int], width: int) -> None:
        super().__init__()
        self.numbers = numbers
        self.embed = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        given = numbers + 4 * len(sizes)
        self.inner = nn.Sequential(
            nn.Linear(given, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.BatchNorm1d(width)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A score."""
        words = [embed(x[:, self.numbers + place].long()) for place, embed in enumerate(self.embed)]
        score: Tensor = self.head(functional.relu(self.inner(torch.cat([x[:, : self.numbers], *words], 1))))
        return score


class Forecaster(nn.Module):
    """A GRU over a series, and a head that gives the next values from its last state."""

    def __init__(self, width: int, ahead: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, width, batch_first=True)
        self.head = nn.Linear(width, ahead)

    def forward(self, x: Tensor) -> Tensor:
        """The next values."""
        values: Tensor = self.head(self.rnn(x)[0][:, -1])
        return values


class Dilated(nn.Module):
    """Causal convolutions with growing gaps: the next value at each place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(1 if step == 1 else width, width, 2, dilation=step) for step in (1, 2, 4, 8)
        )
        self.head = nn.Conv1d(width, 1, 1)
        self.shift = 0
        """How far each layer looks ahead; none is right."""

    def forward(self, x: Tensor) -> Tensor:
        """The value that follows each place."""
        for layer in self.layers:
            assert isinstance(layer, nn.Conv1d)
            reach = layer.dilation[0]
            ahead = min(self.shift, reach)
            x = functional.relu(layer(functional.pad(x, (reach - ahead, ahead))))
        values: Tensor = self.head(x)
        return values


class Graphs(nn.Module):
    """Messages between neighbours, some layers of them, and the class of each node.

    The input holds the features of the nodes and, beside them, the rows of the adjacency matrix.
    """

    def __init__(self, features: int, width: int, classes: int, layers: int = 2) -> None:
        super().__init__()
        self.features = features
        sizes = [features, *[width] * layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.head = nn.Linear(width, classes)
        self.averages = True

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes of each node."""
        x, links = x[..., : self.features], x[..., self.features :]
        if self.averages:
            links = links / links.sum(-1, keepdim=True)
        for layer in self.layers:
            x = functional.relu(layer(links @ x))
        scores: Tensor = self.head(x)
        return scores


class Sets(nn.Module):
    """Each member by itself, their mean, and a net on that."""

    def __init__(self, given: int, width: int, classes: int) -> None:
        super().__init__()
        self.each = perceptron([given, width, width])
        self.all = perceptron([width, width, classes])

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.all(self.each(x).mean(1))
        return scores


class TwoHeads(nn.Module):
    """One trunk, a class and a number: the scores and then the number."""

    def __init__(self, given: int, width: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(perceptron([given, width, width]), nn.ReLU())
        self.classes, self.number = nn.Linear(width, classes), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores, and the number behind them."""
        inner = self.trunk(x)
        return torch.cat([self.classes(inner), self.number(inner)], 1)


class BothTasks(nn.Module):
    """Cross-entropy of the class and squared error of the number, added."""

    def forward(self, made: Tensor, y: Tensor) -> Tensor:
        """The sum of both."""
        return functional.cross_entropy(made[:, :-1], y[:, 0].long()) + functional.mse_loss(made[:, -1], y[:, 1])


class Triplet(nn.Module):
    """Anchor, one of its own kind and one of another: the other is to be farther, by a margin."""

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, codes: Tensor, y: Tensor) -> Tensor:
        """The mean of what is missing to the margin."""
        anchor, same, other = codes.unbind(1)
        return functional.triplet_margin_loss(anchor, same, other, margin=self.margin)


class Pinball(nn.Module):
    """The loss of quantiles."""

    LEVELS = (0.1, 0.5, 0.9)

    def forward(self, made: Tensor, y: Tensor) -> Tensor:
        """The mean over batch and quantiles."""
        missing, levels = y - made, torch.tensor(self.LEVELS)
        return torch.maximum(levels * missing, (levels - 1) * missing).mean()


class MixtureDensity(nn.Module):
    """Minus the log-density of a mixture of normals: weights, means and log-widths are the outputs."""

    def forward(self, made: Tensor, y: Tensor) -> Tensor:
        """The mean over the batch."""
        weight, mean, width = made.chunk(3, 1)
        width = width.clamp(-5, 5)
        log = -0.5 * ((y - mean) / width.exp()).pow(2) - width - 0.5 * math.log(2 * math.pi)
        return -(weight.log_softmax(1) + log).logsumexp(1).mean()


class Censored(nn.Module):
    """Minus the log-likelihood of times of failure at a rate that the input decides; some are not seen to fail."""

    def forward(self, made: Tensor, y: Tensor) -> Tensor:
        """The mean over the batch; the second column says who failed."""
        log_rate = made.squeeze(1)
        return (log_rate.exp() * y[:, 0] - y[:, 1] * log_rate).mean()
