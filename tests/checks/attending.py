"""Transformers as people write them, and ways in which they go wrong: for the checks of attention and positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.checks.sound import Case, text
from torch import Tensor, nn
from torch.nn import functional


class ByHand(nn.Module):
    """Self-attention written out; the keywords are mistakes, or kinds of positions."""

    def __init__(self, width: int = 16, heads: int = 2, **how: Any) -> None:
        super().__init__()
        self.heads, self.how = heads, how
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        if how.get("loud"):
            nn.init.normal_(self.q.weight, std=4.0), nn.init.normal_(self.k.weight, std=4.0)
        if how.get("dead_head"):
            with torch.no_grad():
                self.q.weight[: width // heads] = 0
                self.q.bias[: width // heads] = 0
        if how.get("silent_head"):
            with torch.no_grad():
                self.v.weight[: width // heads] = 0
                self.v.bias[: width // heads] = 0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.how.get("rotary"):
            q, k = rotated(q), rotated(k)
        length = x.shape[1]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        places = torch.arange(length)
        if self.how.get("alibi"):
            scores = scores - 0.5 * (places[:, None] - places[None]).abs()
        mask = self.how.get("mask", "causal")
        hidden = {
            "causal": places[None] > places[:, None],
            "off by one": places[None] > places[:, None] + 1,
            "the past": places[None] < places[:, None],
            "all": torch.ones(length, length, dtype=torch.bool),
            "none": torch.zeros(length, length, dtype=torch.bool),
        }[mask]
        if self.how.get("late_mask"):
            weights = scores.softmax(-1).masked_fill(hidden, 0.0)
        else:
            weights = scores.masked_fill(hidden, -math.inf).softmax(self.how.get("dim", -1))
            if self.how.get("dim", -1) != -1:
                weights = weights.nan_to_num(0.0)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] / 10 ** (torch.arange(half, dtype=x.dtype) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class RMSNorm(nn.Module):
    """Written by hand, as in Llama."""

    def __init__(self, width: int, power: float = 0.5) -> None:
        super().__init__()
        self.weight, self.power = nn.Parameter(torch.ones(width)), power

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6) ** self.power


class Decoder(nn.Module):
    """A small language model; `positions` is how it knows the order."""

    def __init__(self, positions: str = "learned", layers: int = 2, width: int = 16, **how: Any) -> None:
        super().__init__()
        self.positions, self.block_size = positions, how.pop("context", 32)
        rows = how.pop("rows", self.block_size)
        norm = how.pop("norm", nn.LayerNorm)
        self.token = nn.Embedding(29, width)
        if positions in ("learned", "unused", "constant"):
            self.position = nn.Embedding(rows, width)
        if positions == "constant":
            nn.init.ones_(self.position.weight).requires_grad_(False)
        if positions in ("sinusoids", "flat sinusoids", "forgotten sinusoids"):
            self.register_buffer("pe", sinusoids(rows, width, flat=positions == "flat sinusoids"))
        how |= {"rotary": positions == "rotary", "alibi": positions == "alibi"}
        self.layers = nn.ModuleList(ByHand(width, **how) for _ in range(layers))
        self.norms = nn.ModuleList(norm(width) for _ in range(layers))
        self.head = nn.Linear(width, 29)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        if self.positions in ("learned", "constant"):
            x = x + self.position(torch.arange(tokens.shape[1]))
        if self.positions in ("sinusoids", "flat sinusoids"):
            x = x + self.pe[:, : tokens.shape[1]]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


def sinusoids(rows: int, width: int, *, flat: bool = False) -> Tensor:
    places = torch.zeros(rows) if flat else torch.arange(rows).float()
    angles = places[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[None]


def positionwise(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def decoder(positions: str = "learned", **how: Any) -> Case:
    return Case(Decoder(positions, **how), positionwise, text())


class Encoder(nn.Module):
    """Classifies texts; mean of all that is not padding."""

    def __init__(self, *, positions: bool = True, pools_padding: bool = False, masks: bool = True) -> None:
        super().__init__()
        self.token = nn.Embedding(29, 16)
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, 16)) if positions else None
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)
        self.pools_padding, self.masks = pools_padding, masks

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.token(input_ids)
        if self.position is not None:
            x = x + self.position[:, : x.shape[1]]
        hidden = attention_mask == 0
        x = self.encoder(x, src_key_padding_mask=hidden if self.masks else None)
        shown = torch.ones_like(x[..., :1]) if self.pools_padding else (~hidden).float()[..., None]
        return self.head((x * shown).sum(1) / shown.sum(1))


def encoder(**how: bool) -> Case:
    tokens, _ = text()
    shown = torch.ones_like(tokens)
    shown[::2, 12:] = 0
    batch = {"input_ids": tokens, "attention_mask": shown, "labels": torch.arange(8) % 3}
    return Case(Encoder(**how), nn.CrossEntropyLoss(), batch)


class ViT(nn.Module):
    """Patches, a class token, positions that begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 16))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        return self.head(self.layer(x)[:, 0])


class Seq2Seq(nn.Module):
    """Reads a source both ways, writes a target."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(29, 16), nn.Embedding(32, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
        self.head = nn.Linear(16, 29)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1]))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.transformer(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True))


def vit(silent: int = 0) -> Case:
    """With so many of its 16 values at zero, 8 to a head."""
    model = ViT()
    attention = model.layer.self_attn
    with torch.no_grad():
        attention.in_proj_weight[32 : 32 + silent] = 0
        attention.in_proj_bias[32 : 32 + silent] = 0
    return Case(model, nn.CrossEntropyLoss(), (torch.randn(8, 3, 8, 8), torch.arange(8) % 4))


def seq2seq() -> Case:
    target = text(seed=1)
    return Case(Seq2Seq(), positionwise, (text()[0], *target))


class Pooled(nn.Module):
    """Additive attention over the states of a recurrent layer: its weights are no square."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.gru = nn.Embedding(29, 16), nn.GRU(16, 16, batch_first=True)
        self.score, self.head = nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.gru(self.token(tokens))[0]
        return self.head((states * self.score(states).softmax(dim=1)).sum(1))


def pooled() -> Case:
    return Case(Pooled(), nn.CrossEntropyLoss(), (text()[0], torch.arange(8) % 3))


SOUND = {
    "decoder by hand": decoder,
    "rotary": lambda: decoder("rotary"),
    "alibi": lambda: decoder("alibi"),
    "sinusoids": lambda: decoder("sinusoids"),
    "one layer": lambda: decoder(layers=1),
    "rms norm by hand": lambda: decoder("rotary", norm=RMSNorm),
    "rms norm of torch": lambda: decoder("rotary", norm=nn.RMSNorm),
    "longer table": lambda: decoder(rows=64),
    "encoder with padding": encoder,
    "vision transformer": vit,
    "sequence to sequence": seq2seq,
    "attention pooling": pooled,
}
