"""Nets as people write them for their own work: tables, small pictures, texts, series, ratings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class TableNet(nn.Module):
    """Columns of codes through embeddings, columns of numbers as they are, then layers with BatchNorm and dropout."""

    def __init__(self, levels: int, codes: int, numbers: int, made: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.codes = codes
        self.embeds = nn.ModuleList(nn.Embedding(levels, 6) for _ in range(codes))
        given = 6 * codes + numbers
        self.body = nn.Sequential(
            nn.Linear(given, 96),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(96, 48),
            nn.BatchNorm1d(48),
            nn.ReLU(),
        )
        self.head = nn.Linear(48, made)

    def forward(self, x: Tensor) -> Tensor:
        """Scores, or a single number."""
        codes = x[:, : self.codes].long()
        parts = [embed(codes[:, index]) for index, embed in enumerate(self.embeds)]
        scores: Tensor = self.head(self.body(torch.cat([*parts, x[:, self.codes :]], dim=1)))
        return scores


class LeNet(nn.Module):
    """Two convolutions with pooling and two linear layers, without any normalisation."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.fc1 = nn.Linear(16 * 4, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.fc2(functional.relu(self.fc1(self.features(x).flatten(1))))
        return scores


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm, and the way around them."""

    def __init__(self, given: int, made: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made)
        self.conv2, self.bn2 = nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or given != made:
            self.shortcut = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x: Tensor) -> Tensor:
        """Half the size, where it strides."""
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inner + self.shortcut(x))


class TinyResNet(nn.Module):
    """A stem, three blocks and an average: a ResNet for small colour pictures."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.layers = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 16, 2), BasicBlock(16, 24, 2))
        self.fc = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.fc(self.layers(self.stem(x)).mean((2, 3)))
        return scores


class Attention(nn.Module):
    """Attention of several heads, written out; causal, or in both directions."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """As long and as wide as what came in."""
        count, length, width = x.shape
        parts = self.qkv(x).view(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5
        if self.causal:
            ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(ahead, torch.finfo(scores.dtype).min)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(count, length, width)
        out: Tensor = self.out(mixed)
        return out


class Block(nn.Module):
    """Attention and a feed-forward net, normalised before them or after."""

    def __init__(self, width: int, heads: int, *, causal: bool, post: bool = False) -> None:
        super().__init__()
        self.post = post
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """x and what the block adds to it."""
        if self.post:
            x = self.norm1(x + self.attention(x))
            after: Tensor = self.norm2(x + self.mlp(x))
            return after
        x = x + self.attention(self.norm1(x))
        before: Tensor = x + self.mlp(self.norm2(x))
        return before


class TinyGPT(nn.Module):
    """A small GPT over characters, its head tied to its embedding or not; without a mask it tags each place."""

    def __init__(
        self, tokens: int, made: int, width: int = 48, depth: int = 2, *, causal: bool = True, post: bool = False
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 4, causal=causal, post=post) for _ in range(depth))
        self.ln_f: nn.Module = nn.Identity() if post else nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, made, bias=False)
        if not post:
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=0.08)

    def forward(self, x: Tensor) -> Tensor:
        """Scores at each place."""
        hidden = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        scores: Tensor = self.lm_head(self.ln_f(hidden))
        return scores


class CharLSTM(nn.Module):
    """Two layers of LSTM with dropout that predict the next character."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.1, batch_first=True)
        self.decoder = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        scores: Tensor = self.decoder(self.lstm(self.encoder(x))[0])
        return scores


class ReviewNet(nn.Module):
    """Words through an embedding and a GRU, the mean of its states, and one score."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One score for each text."""
        score: Tensor = self.fc(self.dropout(self.gru(self.embedding(x))[0].mean(1)))
        return score


class Forecaster(nn.Module):
    """A recurrent net over a window of a series, and the values that follow."""

    def __init__(self, width: int, ahead: int, cell: Callable[..., nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.rnn = cell(1, width, batch_first=True)
        self.fc = nn.Linear(width, ahead)

    def forward(self, x: Tensor) -> Tensor:
        """The next values."""
        values: Tensor = self.fc(self.rnn(x)[0][:, -1])
        return values


class Factors(nn.Module):
    """Matrix factorisation: a vector and a bias for each user and each film."""

    def __init__(self, users: int, films: int, rank: int) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(users, rank), nn.Embedding(films, rank)
        self.user_bias, self.film_bias = nn.Embedding(users, 1), nn.Embedding(films, 1)
        self.mean = nn.Parameter(torch.zeros(1))
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_bias, self.film_bias):
            nn.init.zeros_(table.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The rating of each pair."""
        user, film = x[:, 0], x[:, 1]
        product = (self.users(user) * self.films(film)).sum(1, keepdim=True)
        rating: Tensor = product + self.user_bias(user) + self.film_bias(film) + self.mean
        return rating


class TopicNet(nn.Module):
    """A bag of words: the mean of their vectors, and a linear layer."""

    def __init__(self, words: int, width: int, classes: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, sparse=sparse)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the topics."""
        scores: Tensor = self.fc(self.embedding(x))
        return scores


class UNet(nn.Module):
    """Down once, up once, with the fine picture handed across."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def double(given: int, made: int) -> nn.Sequential:
            first = [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU()]
            return nn.Sequential(*first, nn.Conv2d(made, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU())

        self.down, self.bottom = double(1, width), double(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.merge = double(2 * width, width)
        self.outc = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A score for each pixel."""
        fine = self.down(x)
        coarse = self.up(self.bottom(functional.max_pool2d(fine, 2)))
        scores: Tensor = self.outc(self.merge(torch.cat([fine, coarse], dim=1)))
        return scores


class TinyViT(nn.Module):
    """Patches, a class token and two blocks."""

    def __init__(self, classes: int, width: int = 32, patch: int = 4, size: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, 4, causal=False) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        parts = self.patches(x).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.token.expand(len(x), -1, -1), parts], dim=1) + self.position
        scores: Tensor = self.head(self.norm(self.blocks(hidden))[:, 0])
        return scores


class SensorNet(nn.Module):
    """Convolutions along time over the channels of a sensor."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(channels, 16, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 32, 5, padding=2),
            nn.ReLU(),
        )
        self.fc = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the activities."""
        scores: Tensor = self.fc(self.conv(x).mean(2))
        return scores
