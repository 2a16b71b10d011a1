"""The models of the sealed arenas: decoder, patches, mixer, U-Net, graph, dilated convolutions and others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import perceptron


class Gated(nn.Module):
    """A block of a modern decoder: causal attention and a gated unit, RMSNorm before each."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_gate = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.up, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x and what the block adds."""
        size, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(size, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(size, length, width))
        inner = self.norm_gate(x)
        gated: Tensor = self.down(functional.silu(self.gate(inner)) * self.up(inner))
        return x + gated


class Decoder(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self, tokens: int, width: int, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.ModuleList(Gated(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        nn.init.normal_(self.embed.weight, std=0.05)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next token at each place."""
        inner = self.embed(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            inner = block(inner)
        scores: Tensor = self.head(self.norm(inner))
        return scores


class Patches(nn.Module):
    """A small vision transformer: patches of four by four, a class token, pre-norm blocks."""

    def __init__(self, classes: int, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        inner = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.place
        scores: Tensor = self.head(self.norm(self.blocks(inner)[:, 0]))
        return scores


class Mix(nn.Module):
    """A block that mixes across places, then across channels; it may be left out by chance."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm_places, self.norm_width = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places = perceptron([places, 2 * places, places], nn.GELU)
        self.channels = perceptron([width, 2 * width, width], nn.GELU)
        self.dropped = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """x and what the block adds."""
        if self.training and float(torch.rand(())) < self.dropped:
            return x
        x = x + self.places(self.norm_places(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = self.channels(self.norm_width(x))
        return x + mixed


class Mixer(nn.Module):
    """An MLP-mixer on patches of four by four."""

    def __init__(self, classes: int, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, 4, stride=4)
        self.blocks = nn.Sequential(*(Mix(16, width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        inner = self.blocks(self.patch_embed(x).flatten(2).transpose(1, 2))
        scores: Tensor = self.head(self.norm(inner).mean(1))
        return scores


class UNet(nn.Module):
    """Down, through, up again, with what was seen on the way down put beside it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def block(given: int, made: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(given, made, 3, padding=1), nn.GroupNorm(4, made), nn.SiLU())

        self.first, self.second = block(1, width), block(width, 2 * width)
        self.through = block(2 * width, 2 * width)
        self.up, self.last = block(4 * width, width), block(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A score for each pixel."""
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        through = self.through(functional.max_pool2d(second, 2))
        up = self.up(torch.cat([functional.interpolate(through, scale_factor=2), second], dim=1))
        scores: Tensor = self.head(self.last(torch.cat([functional.interpolate(up, scale_factor=2), first], dim=1)))
        return scores


class Table(nn.Module):
    """Categories through embeddings, numbers through BatchNorm, both through a net with BatchNorm."""

    def __init__(self, levels: int, categories: int, numbers: int, classes: int) -> None:
        super().__init__()
        self.categories = categories
        self.embeds = nn.ModuleList(nn.Embedding(levels, 6) for _ in range(categories))
        self.scale = nn.BatchNorm1d(numbers)
        self.inner = nn.Sequential(
            nn.Linear(6 * categories + numbers, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
        )
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes; the first columns are categories."""
        chosen = [embed(x[:, column].long()) for column, embed in enumerate(self.embeds)]
        scores: Tensor = self.head(self.inner(torch.cat([*chosen, self.scale(x[:, self.categories :])], dim=1)))
        return scores


class Ratings(nn.Module):
    """Who likes what: two embeddings, their product, a bias each."""

    def __init__(self, users: int, items: int, width: int = 8) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        """The rating of each pair."""
        user, item = x.unbind(1)
        match = (self.users(user) * self.items(item)).sum(1)
        rated: Tensor = match + self.user_bias(user).squeeze(1) + self.item_bias(item).squeeze(1)
        return rated


class Graph(nn.Module):
    """Three rounds of messages along the edges, then the mean over the nodes. Adjacency comes after features."""

    def __init__(self, given: int, width: int, classes: int) -> None:
        super().__init__()
        self.given = given
        self.embed = nn.Linear(given, width)
        self.rounds = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.head = perceptron([width, width, classes])

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes of each graph."""
        nodes, edges = x[..., : self.given], x[..., self.given :]
        edges = edges / edges.sum(-1, keepdim=True).clamp_min(1)
        inner = self.embed(nodes)
        for messages in self.rounds:
            inner = inner + functional.relu(messages(torch.cat([inner, edges @ inner], dim=-1)))
        scores: Tensor = self.head(inner.mean(1))
        return scores


class Forecast(nn.Module):
    """Dilated convolutions over the past, a head on the present."""

    def __init__(self, width: int = 16, ahead: int = 4) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 3, dilation=2**depth, padding=2**depth) for depth in range(4)
        )
        self.head = nn.Linear(width, ahead)

    def forward(self, x: Tensor) -> Tensor:
        """The next values."""
        inner = self.enter(x)
        for layer in self.layers:
            inner = inner + functional.relu(layer(inner))
        ahead: Tensor = self.head(inner[..., -1])
        return ahead


class Translator(nn.Module):
    """A recurrent encoder, a recurrent decoder that looks back at it. Zero is padding."""

    def __init__(self, tokens: int, width: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.embed = nn.Embedding(tokens, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(2 * width, tokens)

    def encode(self, source: Tensor) -> Tensor:
        """What is known of each place of the source."""
        states: Tensor = self.encoder(self.embed(source))[0]
        return states

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each token of the answer; x is the source, then the answer moved on by one."""
        source, given = x[:, : self.length], x[:, self.length :]
        memory = self.encode(source)
        states = self.decoder(self.embed(given), memory[:, -1].unsqueeze(0).contiguous())[0]
        weights = self.query(states) @ memory.transpose(1, 2) / memory.shape[-1] ** 0.5
        weights = weights.masked_fill((source == 0).unsqueeze(1), float("-inf")).softmax(-1)
        scores: Tensor = self.head(torch.cat([states, weights @ memory], dim=-1))
        return scores


class Mixture(nn.Module):
    """A density of y given x: a few normal ones, their shares, places and log-widths."""

    def __init__(self, given: int, width: int = 48, components: int = 4) -> None:
        super().__init__()
        self.inner = nn.Sequential(perceptron([given, width, width], nn.Tanh), nn.Tanh())
        self.head = nn.Linear(width, 3 * components)

    def forward(self, x: Tensor) -> Tensor:
        """Shares, places and log-widths, one after another."""
        made: Tensor = self.head(self.inner(x))
        return made


class TwoHeads(nn.Module):
    """One trunk; one head says the class, the other a number. The number is the last column."""

    def __init__(self, given: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.trunk = nn.Sequential(perceptron([given, width, width], nn.ELU), nn.ELU())
        self.says, self.measures = nn.Linear(width, classes), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes, and a number."""
        inner = self.trunk(x)
        return torch.cat([self.says(inner), self.measures(inner)], dim=1)


class Fold(nn.Module):
    """An encoder of anchor, positive and negative."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.encoder = perceptron([given, width, width, 8])

    def forward(self, x: Tensor) -> Tensor:
        """The codes of all three."""
        codes: Tensor = self.encoder(x)
        return codes
