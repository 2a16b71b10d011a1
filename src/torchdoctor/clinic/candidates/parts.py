"""What candidates are made of: data with something to learn in it, and models as people write them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

CLASSES, FEATURES, VOCABULARY, CONTEXT = 5, 16, 40, 32


def rows(count: int = 32, features: int = FEATURES, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Rows of features, and classes that follow from them; every class occurs."""
    x = torch.randn(count, features)
    scores = x @ torch.randn(features, classes)
    y = scores.argmax(1)
    y[:classes] = torch.arange(classes)
    return x, y


def targets(count: int = 32, features: int = FEATURES, wide: int = 1) -> tuple[Tensor, Tensor]:
    """Rows of features, and numbers that follow from them."""
    x = torch.randn(count, features)
    return x, torch.tanh(x @ torch.randn(features, wide)) + 0.1 * torch.randn(count, wide)


def pictures(count: int = 16, classes: int = CLASSES, size: int = 16, channels: int = 3) -> tuple[Tensor, Tensor]:
    """Pictures with a bright stripe whose place is their class."""
    y = torch.arange(count) % classes
    x = 0.3 * torch.randn(count, channels, size, size)
    for index, label in enumerate(y.tolist()):
        x[index, :, 3 * label : 3 * label + 2] += 1.5
    return x, y


def sequences(count: int = 16, length: int = 20, features: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Series of numbers, and classes by the frequency in them."""
    y = torch.arange(count) % classes
    time = torch.arange(length)[None, :, None] * (1 + y)[:, None, None] * 0.3
    return torch.sin(time + torch.randn(count, 1, features)) + 0.1 * torch.randn(count, length, features), y


def tokens(count: int = 8, length: int = CONTEXT) -> tuple[Tensor, Tensor]:
    """Tokens that follow a rule with some noise, and the tokens that come next."""
    text = torch.empty(count, length + 1, dtype=torch.long)
    text[:, 0] = torch.randint(VOCABULARY, (count,))
    for place in range(length):
        follows = (text[:, place] * 7 + 3) % VOCABULARY
        text[:, place + 1] = torch.where(torch.rand(count) < 0.2, torch.randint(VOCABULARY, (count,)), follows)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A plain stack of layers."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class Attention(nn.Module):
    """Multi-head attention as nanoGPT has it, by hand; subclasses break it."""

    def __init__(self, width: int, heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def mask(self, length: int, device: torch.device) -> Tensor:
        """Where a position may look: itself and what came before."""
        return torch.ones(length, length, dtype=torch.bool, device=device).tril()

    def weigh(self, scores: Tensor) -> Tensor:
        """Scores to weights."""
        return scores.softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions."""
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        if self.causal:
            scores = scores.masked_fill(~self.mask(length, x.device), float("-inf"))
        mixed: Tensor = self.out((self.weigh(scores) @ v).transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), attention
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then think."""
        x = x + self.attention(self.norm_1(x))
        mixed: Tensor = x + self.feed(self.norm_2(x))
        return mixed


class GPT(nn.Module):
    """A small causal language model; `attention` makes its attention layers."""

    def __init__(self, attention: type[Attention] = Attention, *, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.block_size = CONTEXT
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, attention(width, 4)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._start)

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def embedded(self, idx: Tensor) -> Tensor:
        """Tokens and where they are."""
        both: Tensor = self.token(idx) + self.position(torch.arange(idx.shape[1], device=idx.device))
        return both

    def forward(self, idx: Tensor) -> Tensor:
        """Scores of the next token at every position."""
        scores: Tensor = self.head(self.norm(self.blocks(self.embedded(idx))))
        return scores


def next_token_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy over all positions."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
