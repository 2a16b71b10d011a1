"""The nets and losses of `sealed_arenas_b`: of tables, series, pictures, text, sets, graphs and games."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import perceptron

# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Deliveries(nn.Module):
    """A net for a table of six measures and two categories: depot and vehicle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depots, self.vehicles = nn.Embedding(12, 6), nn.Embedding(5, 3)
        self.first = nn.Linear(15, width)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The time that a delivery takes, standardised."""
        codes = x[:, 6:].nan_to_num().long()
        given = torch.cat([x[:, :6], self.depots(codes[:, 0]), self.vehicles(codes[:, 1])], dim=1)
        times: Tensor = self.head(self.inner(self.norm(self.first(given))))
        return times


class Gated(nn.Module):
    """A layer whose units are let through by gates of their own."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(given, made), nn.Linear(given, made)

    def forward(self, x: Tensor) -> Tensor:
        """What the gates let through."""
        passed: Tensor = self.value(x) * torch.sigmoid(self.gate(x))
        return passed


def alarm_net(given: int, width: int, dropout: float = 0.1) -> nn.Sequential:
    """Two gated layers with dropout, and one score."""
    return nn.Sequential(
        Gated(given, width), nn.Dropout(dropout), Gated(width, width), nn.Dropout(dropout), nn.Linear(width, 1)
    )


# ── signals and series ───────────────────────────────────────────────────────────────────────────────────────────────


class Oscillator(nn.Module):
    """A recurrent net that says where things will be next."""

    def __init__(self, rnn: nn.RNNBase, width: int) -> None:
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The three places one moment on, for each moment."""
        places: Tensor = self.head(self.rnn(x)[0])
        return places


class Pair(nn.Module):
    """An encoder of tunes, of which there are two renderings each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten())
        self.projector = perceptron([12 * 16, width, 16])

    def forward(self, x: Tensor) -> Tensor:
        """The codes of both renderings, side by side."""
        codes: Tensor = self.projector(self.encoder(x.flatten(0, 1).unsqueeze(1)))
        return codes.view(len(x), 2, -1)


class Agreement(nn.Module):
    """Each code is to find the other rendering of its tune among those of the batch, from either side."""

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, codes: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy over the batch; ``y`` says which rendering belongs to which."""
        first, second = functional.normalize(codes, dim=-1).unbind(1)
        alike = first @ second.T / self.temperature
        right = torch.arange(len(codes), device=codes.device)
        return (functional.cross_entropy(alike, right) + functional.cross_entropy(alike.T, right)) / 2


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Step(nn.Module):
    """Two convolutions with BatchNorm, added to what they were given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """x and what was seen in it."""
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(inner)))


class Sketcher(nn.Module):
    """A variational autoencoder of pictures: scores of the pixels, with mean and log-variance of the code."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(196, width), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(width, code), nn.Linear(width, code)
        self.decoder = perceptron([code, width, 196])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the pixels, mean and log-variance; without noise when it is evaluated."""
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


class PixelBound(nn.Module):
    """Cross-entropy of the pixels and the distance of the code, both summed over a picture."""

    def forward(self, made: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        """The mean over the batch."""
        scores, mean, log_variance = made
        distance = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return functional.binary_cross_entropy_with_logits(scores, x, reduction="none").sum(1).mean() + distance


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Lines(nn.Module):
    """Two layers of LSTM that predict the next character."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, 32)
        self.rnn = nn.LSTM(32, width, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        scores: Tensor = self.head(self.norm(self.rnn(self.embed(x))[0]))
        return scores


class Block(nn.Module):
    """Attention over all places and two dense layers, each normalised before it is added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.queries, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = perceptron([width, 2 * width, width], nn.GELU)
        self.skips = True

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """What each place makes of the others; ``mask`` is true where one may look."""
        queries, keys, values = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.queries(self.norms[0](x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        x = self.out(seen.transpose(1, 2).flatten(2)) + (x if self.skips else 0)
        more: Tensor = self.dense(self.norms[1](x)) + (x if self.skips else 0)
        return more


class Proof(nn.Module):
    """Reads a line at once and says of each character whether it is a misprint."""

    def __init__(self, tokens: int, width: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.near = nn.Conv1d(width, width, 5, padding=2)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)
        nn.init.constant_(self.head.bias, -1.4)  # one in five is a misprint

    def forward(self, x: Tensor) -> Tensor:
        """A score for each character."""
        inner = functional.gelu(self.near(self.embed(x).transpose(1, 2))).transpose(1, 2)
        for block in self.blocks:
            inner = block(inner)
        scores: Tensor = self.head(self.norm(inner)).squeeze(-1)
        return scores


class Bag(nn.Module):
    """The mean of the vectors of what occurs, and a small net on it."""

    def __init__(self, buckets: int, classes: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(buckets, 32)
        self.inner = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, 48), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the parts."""
        scores: Tensor = self.head(self.inner(self.table(x)))
        return scores


# ── sets, graphs and games ───────────────────────────────────────────────────────────────────────────────────────────


class Hands(nn.Module):
    """Cards of a hand look at each other; what they found is averaged over the cards that are there."""

    def __init__(self, width: int, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.ranks, self.suits = nn.Embedding(9, width), nn.Embedding(5, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)
        self.hides_cards = False
        """Whether the mask is read the wrong way round."""

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the kinds of hand; a card of zero is none."""
        there = (x > 0) != self.hides_cards
        suits = torch.where(x > 0, (x - 1) % 4 + 1, 0)
        inner = self.ranks((x + 3) // 4) + self.suits(suits)
        for block in self.blocks:
            inner = block(inner, there[:, None, None, :])
        mean = (inner * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True)
        scores: Tensor = self.head(self.dropout(self.norm(mean)))
        return scores


class Molecule(nn.Module):
    """Rounds of messages between the atoms of a molecule, and their mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.own, self.heard = (nn.ModuleList(nn.Linear(width, width) for _ in range(3)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = perceptron([width, width, 1], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        """A property of each molecule; the first four columns are the kinds of its atoms, the others its bonds."""
        kinds, bonds = x[..., :4], x[..., 4:]
        there = kinds.sum(-1, keepdim=True)
        atoms = self.embed(kinds)
        for own, heard, norm in zip(self.own, self.heard, self.norms, strict=True):
            messages = bonds @ atoms / bonds.sum(-1, keepdim=True).clamp(min=1)
            atoms = atoms + functional.silu(norm(own(atoms) + heard(messages))) * there
        found: Tensor = self.head((atoms * there).sum(1) / there.sum(1))
        return found


class Duel(nn.Module):
    """A forger of points in the plane, and a critic of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.forger = perceptron([4, width, width, 2])
        self.critic = perceptron([2, width, width, 1], nn.LeakyReLU)

    def forward(self, x: Tensor) -> Tensor:
        """What the critic makes of points."""
        scores: Tensor = self.critic(x)
        return scores


class Rooms(nn.Module):
    """What each of four ways out of a room is worth, or how often it should be taken."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        self.inner = perceptron([side * side, 48, 48])
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Four numbers for each room."""
        ways: Tensor = self.head(functional.relu(self.inner(functional.one_hot(x, self.side**2).float())))
        return ways
