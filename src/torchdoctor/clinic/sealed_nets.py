"""The nets of `sealed_arenas`: of texts, signals, pictures, tables, molecules and fields."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import perceptron

# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class GatedConvolutions(nn.Module):
    """Causal convolutions with gates that predict the next character."""

    def __init__(self, tokens: int, width: int, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, 2 * width, 3) for _ in range(layers))
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        hidden = self.embed(x).transpose(1, 2)
        for conv in self.convs:
            hidden = hidden + functional.glu(conv(functional.pad(hidden, (2, 0))), dim=1)
        scores: Tensor = self.head(hidden.transpose(1, 2))
        return scores


class GatedScan(nn.Module):
    """A recurrence without a matrix: each unit keeps a share of what it held, and the input says how much."""

    def __init__(self, tokens: int, width: int, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        hidden = self.embed(x)
        for norm, gate, out in zip(self.norms, self.gates, self.outs, strict=True):
            share, value = gate(norm(hidden)).chunk(2, dim=-1)
            share = share.sigmoid()
            state, states = torch.zeros_like(value[:, 0]), []
            for place in range(value.shape[1]):
                state = state + share[:, place] * (value[:, place] - state)
                states.append(state)
            hidden = hidden + out(functional.silu(torch.stack(states, dim=1)))
        scores: Tensor = self.head(hidden)
        return scores


class ParallelBlock(nn.Module):
    """Attention and a feed-forward net side by side, on the same normalised input."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.inner = perceptron([width, 3 * width, width], nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        """x and a little more."""
        normed = self.norm(x)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mix(normed).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        more: Tensor = self.out(seen.transpose(1, 2).flatten(2)) + self.inner(normed)
        return x + more


class ParallelDecoder(nn.Module):
    """A decoder of parallel blocks that predicts the next character."""

    def __init__(self, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.Sequential(*(ParallelBlock(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        scores: Tensor = self.head(self.norm(self.blocks(self.embed(x) + self.place[: x.shape[1]])))
        return scores


class BagOfPieces(nn.Module):
    """The mean of vectors of hashed pieces of three characters, and a small head."""

    def __init__(self, buckets: int, width: int, classes: int) -> None:
        super().__init__()
        self.buckets = buckets
        self.table = nn.EmbeddingBag(buckets, width, mode="mean")
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        pieces = (x[:, :-2] * 10007 + x[:, 1:-1] * 101 + x[:, 2:]) % self.buckets
        scores: Tensor = self.head(self.table(pieces))
        return scores


class Scanner(nn.Module):
    """Convolutions of several widths over the characters of a piece, and the strongest answer of each."""

    def __init__(self, tokens: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, 24)
        self.convs = nn.ModuleList(nn.Conv1d(24, width, size) for size in (3, 5))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        given = self.embed(x).transpose(1, 2)
        strongest = [functional.relu(conv(given)).amax(dim=2) for conv in self.convs]
        scores: Tensor = self.head(self.drop(torch.cat(strongest, dim=1)))
        return scores


FIRST = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october")


MONTHS = (*FIRST, "november", "december")


LETTERS = " ,-./0123456789" + "".join(sorted(set("".join(MONTHS))))


READ = 18
"""Characters of a date as it is written, padded."""


class Translator(nn.Module):
    """Reads a date as somebody wrote it, and writes its digits: two GRUs with attention between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.digits = nn.Embedding(11, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, 10)

    def attend(self, asked: Tensor, held: Tensor) -> Tensor:
        """How much each place of what was read counts for each digit."""
        scores: Tensor = self.query(asked) @ held.transpose(1, 2) / held.shape[-1] ** 0.5
        return scores.softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each digit, given those before it."""
        held = self.encoder(self.letters(x[:, :READ]))[0]
        asked = self.decoder(self.digits(x[:, READ:]))[0]
        scores: Tensor = self.head(torch.cat([asked, self.attend(asked, held) @ held], dim=-1))
        return scores


class Promoters(nn.Module):
    """Reads a piece of DNA: a convolution, two layers of attention with dropout, and a mean."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, width)
        self.conv = nn.Conv1d(width, width, 7, padding=3)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the motifs."""
        read = functional.gelu(self.conv(self.embed(x).transpose(1, 2))).transpose(1, 2)
        scores: Tensor = self.head(self.blocks(read).mean(dim=1))
        return scores


# ── signals and pictures ─────────────────────────────────────────────────────────────────────────────────────────────


class Beat(nn.Module):
    """A residual block of convolutions over time, with BatchNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2, bias=False),
            nn.BatchNorm1d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x and a little more."""
        return functional.relu(x + self.inner(x))


class Forecaster(nn.Module):
    """Two LSTM layers with dropout between them, and a head for the next values."""

    def __init__(self, given: int, width: int, ahead: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(given, width, num_layers=2, dropout=0.1, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, ahead)

    def forward(self, x: Tensor) -> Tensor:
        """The next values of the first channel."""
        ahead: Tensor = self.head(self.drop(self.rnn(x)[0][:, -1]))
        return ahead


class Separable(nn.Module):
    """A convolution within channels, one across them, GroupNorm, and a gate for each channel."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.within = nn.Conv2d(given, given, 3, padding=1, groups=given)
        self.across = nn.Conv2d(given, made, 1)
        self.norm = nn.GroupNorm(4, made)
        self.gate = perceptron([made, made // 4, made])

    def forward(self, x: Tensor) -> Tensor:
        """What is there, and how much of each channel counts."""
        made = functional.silu(self.norm(self.across(self.within(x))))
        share: Tensor = self.gate(made.mean(dim=(2, 3))).sigmoid()
        return made * share[..., None, None]


class Sharpener(nn.Module):
    """Makes a picture twice as large, beginning with each pixel four times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The larger picture."""
        seen = functional.leaky_relu(self.first(x), 0.1)
        seen = seen + functional.leaky_relu(self.middle(seen), 0.1)
        return functional.pixel_shuffle(self.last(seen), 2)


# ── tables, molecules, fields ────────────────────────────────────────────────────────────────────────────────────────


class Trips(nn.Module):
    """Two categories with vectors of their own beside five numbers."""

    def __init__(self, zones: int, width: int) -> None:
        super().__init__()
        self.zone, self.hour = nn.Embedding(zones, 8), nn.Embedding(24, 4)
        self.norm = nn.LayerNorm(17)
        self.inner = perceptron([17, width, width, 1], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        """The logarithm of the time that it takes, in units of its spread."""
        known = [self.zone(x[:, 0].long()), self.hour(x[:, 1].long()), x[:, 2:]]
        taken: Tensor = self.inner(self.norm(torch.cat(known, dim=1)))
        return taken


class Factors(nn.Module):
    """A factorisation machine of categories, with a net on the same vectors."""

    def __init__(self, fields: int, values: int, width: int) -> None:
        super().__init__()
        self.values = values
        self.alone = nn.Embedding(fields * values, 1)
        self.table = nn.Embedding(fields * values, width)
        nn.init.normal_(self.alone.weight, std=0.05)
        nn.init.normal_(self.table.weight, std=0.2)
        self.inner = perceptron([fields * width, 48, 1])

    def forward(self, x: Tensor) -> Tensor:
        """How likely it is, as a score."""
        rows = x + self.values * torch.arange(x.shape[1])
        vectors = self.table(rows)
        pairs = 0.5 * (vectors.sum(1).pow(2) - vectors.pow(2).sum(1)).sum(1, keepdim=True)
        score: Tensor = self.alone(rows).sum(1) + pairs + self.inner(vectors.flatten(1))
        return score


class Molecules(nn.Module):
    """Messages between atoms that depend on how far apart they are; a sum over atoms in the end."""

    def __init__(self, kinds: int, width: int, rounds: int = 3) -> None:
        super().__init__()
        self.kinds = kinds
        self.embed = nn.Linear(kinds, width)
        self.filters = nn.ModuleList(perceptron([12, width, width], nn.SiLU) for _ in range(rounds))
        self.updates = nn.ModuleList(perceptron([width, width, width], nn.SiLU) for _ in range(rounds))
        self.head = perceptron([width, width, 1], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        """One number for the molecule."""
        atoms, places = x[..., : self.kinds], x[..., self.kinds :]
        squared = (places.unsqueeze(1) - places.unsqueeze(2)).pow(2).sum(-1, keepdim=True)
        near = torch.exp(-(squared - torch.linspace(0, 6, 12)).pow(2))
        hidden = self.embed(atoms)
        for filtered, update in zip(self.filters, self.updates, strict=True):
            hidden = hidden + update((filtered(near) * hidden.unsqueeze(1)).mean(dim=2))
        made: Tensor = self.head(hidden).mean(dim=1)
        return made


class Spectral(nn.Module):
    """A layer that multiplies the lowest waves of its input, beside one that mixes channels."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.waves = nn.Parameter(torch.randn(width, width, modes, 2) / width)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as it was given."""
        low = torch.fft.rfft(x)[..., : self.modes]
        turned = torch.einsum("bim,iom->bom", low, torch.view_as_complex(self.waves))
        mixed: Tensor = self.mix(x)
        back: Tensor = torch.fft.irfft(turned, n=x.shape[-1])
        return back + mixed
