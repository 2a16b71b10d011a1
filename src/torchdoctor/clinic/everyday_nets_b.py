"""Nets and losses of ordinary projects: tables, pictures, texts, signals, ratings, and players."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import perceptron


class MixedTable(nn.Module):
    """A table of numbers and of categories; the last columns are categories, each with an embedding."""

    def __init__(self, numbers: int, categories: int, values: int, width: int) -> None:
        super().__init__()
        self.numbers = numbers
        self.embeds = nn.ModuleList(nn.Embedding(values, 4) for _ in range(categories))
        self.net = perceptron([numbers + 4 * categories, width, width, 1])

    def forward(self, x: Tensor) -> Tensor:
        """One logit for each row."""
        columns = x[:, self.numbers :].long().unbind(1)
        codes = [embed(column) for embed, column in zip(self.embeds, columns, strict=True)]
        logit: Tensor = self.net(torch.cat([x[:, : self.numbers], *codes], 1))
        return logit


class SmallLeNet(nn.Module):
    """Two convolutions with pooling, and two linear layers."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 5, padding=2)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.act = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(2 * width * 16, 64)
        self.drop: nn.Module = nn.Identity()
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        x = self.pool(self.act(self.conv1(x)))
        x = self.pool(self.act(self.conv2(x)))
        scores: Tensor = self.fc2(self.drop(self.act(self.fc1(x.flatten(1)))))
        return scores


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm around a shortcut."""

    def __init__(self, given: int, made: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(made)
        self.conv2 = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(made)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or given != made:
            self.short = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x: Tensor) -> Tensor:
        """What the block adds, and what it was given."""
        inner = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(inner + self.short(x))


class SmallResNet(nn.Module):
    """Three residual blocks on small colour pictures."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.layers = nn.Sequential(
            BasicBlock(width, width), BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width)
        )
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.fc(self.layers(self.stem(x)).mean((2, 3)))
        return scores


class SmallUNet(nn.Module):
    """Down twice and up twice, with the pictures of the way down put beside those of the way up."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()

        def block(given: int, made: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(given, made, 3, padding=1), nn.GroupNorm(2, made), nn.ReLU())

        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.bottom = block(2 * width, 2 * width)
        self.up2, self.up1 = block(4 * width, width), block(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes at each pixel."""
        one = self.down1(x)
        two = self.down2(functional.max_pool2d(one, 2))
        low = self.bottom(functional.max_pool2d(two, 2))
        up = self.up2(torch.cat([functional.interpolate(low, scale_factor=2), two], 1))
        scores: Tensor = self.head(self.up1(torch.cat([functional.interpolate(up, scale_factor=2), one], 1)))
        return scores


class Attention(nn.Module):
    """Self-attention of a few heads, written by hand."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads
        self.causal = causal
        self.scale = (width // heads) ** -0.5

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """What each place takes from those that it may see; ``hidden`` places are seen by none."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        logits = query @ key.transpose(-1, -2) * self.scale
        if self.causal:
            ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(ahead, float("-inf"))
        if hidden is not None:
            logits = logits.masked_fill(hidden[:, None, None, :], float("-inf"))
        mixed = (logits.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        result: Tensor = self.out(mixed)
        return result


class AttentionBlock(nn.Module):
    """Attention and a small net, each after a norm and each added to what came in."""

    def __init__(self, width: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4, causal=causal)
        self.mlp = perceptron([width, 3 * width, width], nn.GELU)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """x and what both parts add."""
        x = x + self.drop(self.attention(self.ln1(x), hidden))
        more: Tensor = self.drop(self.mlp(self.ln2(x)))
        return x + more


class SmallGPT(nn.Module):
    """A decoder of characters."""

    def __init__(self, tokens: int, width: int, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.tok = nn.Embedding(tokens, width)
        self.pos = nn.Embedding(64, width)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.02)
        self.blocks = nn.ModuleList(AttentionBlock(width, causal=True, dropout=dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        inner = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        for block in self.blocks:
            inner = block(inner)
        scores: Tensor = self.head(self.ln(inner))
        return scores


class TextEncoder(nn.Module):
    """An encoder of padded texts, averaged over the words that there are."""

    def __init__(self, tokens: int, width: int, classes: int) -> None:
        super().__init__()
        self.tok = nn.Embedding(tokens, width, padding_idx=0)
        self.pos = nn.Parameter(0.02 * torch.randn(48, width))
        self.blocks = nn.ModuleList(AttentionBlock(width, causal=False, dropout=0.1) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        hidden = x == 0
        inner = self.tok(x) + self.pos[: x.shape[1]]
        for block in self.blocks:
            inner = block(inner, hidden)
        there = (~hidden).unsqueeze(2).float()
        scores: Tensor = self.head((inner * there).sum(1) / there.sum(1).clamp(min=1))
        return scores


class TextReader(nn.Module):
    """An LSTM that reads a padded text, and a head on the maximum of its states."""

    def __init__(self, tokens: int, width: int, classes: int) -> None:
        super().__init__()
        self.tok = nn.Embedding(tokens, width, padding_idx=0)
        self.drop = nn.Dropout(0.1)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        states = self.rnn(self.drop(self.tok(x)))[0].masked_fill((x == 0).unsqueeze(2), -1.0)
        scores: Tensor = self.head(states.amax(1))
        return scores


class Tagger(nn.Module):
    """A GRU that reads both ways, and a tag for each word."""

    def __init__(self, tokens: int, width: int, tags: int) -> None:
        super().__init__()
        self.tok = nn.Embedding(tokens, width, padding_idx=0)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the tags at each word."""
        scores: Tensor = self.head(self.rnn(self.tok(x))[0])
        return scores


class LastState(nn.Module):
    """A recurrent net and a linear head on its last state."""

    def __init__(self, rnn: nn.RNNBase, made: int) -> None:
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(rnn.hidden_size, made)

    def forward(self, x: Tensor) -> Tensor:
        """What the last state says."""
        made: Tensor = self.head(self.rnn(x)[0][:, -1])
        return made


class Factors(nn.Module):
    """A matrix of ratings as a product of two thin ones, with biases."""

    def __init__(self, users: int, items: int, width: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.users, self.items = (nn.Embedding(count, width, sparse=sparse) for count in (users, items))
        self.user_bias, self.item_bias = (nn.Embedding(count, 1, sparse=sparse) for count in (users, items))
        for table, std in ((self.users, 0.1), (self.items, 0.1), (self.user_bias, 0.01), (self.item_bias, 0.01)):
            nn.init.normal_(table.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        """A rating for each pair."""
        user, item = x.unbind(1)
        product = (self.users(user) * self.items(item)).sum(1)
        ratings: Tensor = product + self.user_bias(user).squeeze(1) + self.item_bias(item).squeeze(1)
        return ratings


class PatchNet(nn.Module):
    """A small vision transformer."""

    def __init__(self, width: int, classes: int, layers: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(AttentionBlock(width, causal=False, dropout=0.0) for _ in range(layers)))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        inner = self.blocks(self.patch(x).flatten(2).transpose(1, 2) + self.place)
        scores: Tensor = self.head(self.ln(inner).mean(1))
        return scores


class PixelVAE(nn.Module):
    """A variational autoencoder of pixels between 0 and 1; gives logits, mean and log-variance."""

    def __init__(self, pixels: int, width: int, code: int) -> None:
        super().__init__()
        self.encoder = perceptron([pixels, width, 2 * code])
        self.decoder = perceptron([code, width, pixels])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the pixels, mean and log-variance of the code."""
        mean, log_variance = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


class PixelBound(nn.Module):
    """Binary cross-entropy of the pixels and the divergence of the code, both summed, averaged over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def forward(self, made: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        """The negative bound."""
        logits, mean, log_variance = made
        error = functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
        return error + self.beta * divergence


class PairEncoder(nn.Module):
    """A small convolutional encoder of several pictures of the same thing, side by side."""

    def __init__(self, width: int, code: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, 5, 2, 2)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.head = perceptron([2 * width * 16, 64, code])

    def forward(self, x: Tensor) -> Tensor:
        """The codes, in the order of the pictures."""
        flat = torch.relu(self.conv2(torch.relu(self.conv(x.flatten(0, 1)))))
        codes: Tensor = self.head(flat.flatten(1)).unflatten(0, x.shape[:2])
        return codes


class NTXent(nn.Module):
    """Each picture is to find the other one of its own among the batch."""

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, codes: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy over the batch, both ways."""
        first, second = functional.normalize(codes, dim=-1).unbind(1)
        logits, own = first @ second.T / self.temperature, torch.arange(len(codes))
        return 0.5 * (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own))


class TripletLoss(nn.Module):
    """Anchor, positive and negative: the distances' difference is to exceed a margin."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, codes: Tensor, y: Tensor) -> Tensor:
        """The mean of what is missing."""
        anchor, positive, negative = codes.unbind(1)
        return functional.triplet_margin_loss(anchor, positive, negative, margin=self.margin)


class Players(nn.Module):
    """A generator and its critic."""

    def __init__(self, noise: int, width: int, made: int) -> None:
        super().__init__()
        self.noise = noise
        self.generator = perceptron([noise, width, width, made])
        self.critic = perceptron([made, width, width, 1], nn.LeakyReLU)

    def forward(self, x: Tensor) -> Tensor:
        """The critic's verdict."""
        verdict: Tensor = self.critic(x)
        return verdict
