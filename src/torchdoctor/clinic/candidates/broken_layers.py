"""Broken layers: attention and positions, normalization and modes."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from torchdoctor.clinic.candidates.breaking import LEARNING, Through, classifier, language_model, wrong
from torchdoctor.clinic.candidates.candidate import Visit
from torchdoctor.clinic.candidates.parts import (
    CLASSES,
    FEATURES,
    GPT,
    VOCABULARY,
    Attention,
    mlp,
    next_token_loss,
    tokens,
)

# ── attention and positions ──────────────────────────────────────────────────────────────────────────────────────────


@wrong("attention-behaviour", "causal-leakage")
def no_mask() -> Visit:
    """A language model whose attention has no mask."""

    class Open(Attention):
        def mask(self, length: int, device: torch.device) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool, device=device)

    return language_model(GPT(Open))


@wrong("attention-behaviour", "causal-leakage")
def mask_off_by_one() -> Visit:
    """The mask lets each position see the next one: its answer."""

    class Ahead(Attention):
        def mask(self, length: int, device: torch.device) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool, device=device).tril(1)

    return language_model(GPT(Ahead))


@wrong("attention-behaviour", "causal-leakage", secondary=("numerical-stability",))
def mask_upside_down() -> Visit:
    """The mask is transposed: positions see the future only."""

    class Future(Attention):
        def mask(self, length: int, device: torch.device) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool, device=device).triu()

    return language_model(GPT(Future))


@wrong("attention-behaviour", "causal-leakage", secondary=("numerical-stability",))
def softmax_over_queries() -> Visit:
    """The weights of a key sum to one over the queries, not those of a query over the keys."""

    class Columns(Attention):
        def weigh(self, scores: Tensor) -> Tensor:
            return scores.softmax(-2)

    return language_model(GPT(Columns))


@wrong("attention-behaviour")
def dead_heads() -> Visit:
    """Two of four heads have no values: they add nothing."""
    net = GPT()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith(("qkv.weight", "qkv.bias")):
                p[2 * 32 : 2 * 32 + 16] = 0
    return language_model(net)


@wrong("causal-leakage", "attention-behaviour")
def looks_ahead_by_convolution() -> Visit:
    """A convolution with padding on both sides in a language model: it sees the next token."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.mix = nn.Embedding(VOCABULARY, 32), nn.Conv1d(32, 32, 3, padding=1)
            self.head = nn.Linear(32, VOCABULARY)

        def forward(self, idx: Tensor) -> Tensor:
            scores: Tensor = self.head(nn.functional.relu(self.mix(self.token(idx).transpose(1, 2))).transpose(1, 2))
            return scores

    return language_model(Net())


@wrong("position-embeddings")
def without_positions() -> Visit:
    """The positions are computed and never added; attention sees a bag of tokens."""

    class Net(GPT):
        def embedded(self, idx: Tensor) -> Tensor:
            words: Tensor = self.token(idx) + 0 * self.position(torch.arange(idx.shape[1], device=idx.device))
            return words

    class Both(Attention):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__(width, heads, causal=False)

    idx, _ = tokens()
    net = Net(Both)
    hidden = torch.rand(idx.shape) < 0.3
    wanted = torch.where(hidden, idx, torch.full_like(idx, -100))
    return Visit(net, next_token_loss, (torch.where(hidden, 0, idx), wanted), torch.optim.Adam(net.parameters(), 1e-3))


@wrong("position-embeddings", secondary=("parameter-initialization",))
def positions_alike() -> Visit:
    """All positions have the same embedding, and it is frozen."""
    net = GPT()
    with torch.no_grad():
        net.position.weight[:] = net.position.weight[0].clone()
    net.position.requires_grad_(False)
    return Visit(
        net, next_token_loss, tokens(), torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-3)
    )


# ── normalization and modes ──────────────────────────────────────────────────────────────────────────────────────────


@wrong("normalization-layers")
def epsilon_of_one() -> Visit:
    """Normalization with an epsilon of 10: it hardly normalizes."""
    return classifier(
        nn.Sequential(nn.Linear(FEATURES, 32), nn.LayerNorm(32, eps=10.0), nn.ReLU(), nn.Linear(32, CLASSES))
    )


@wrong("normalization-layers", "gradient-flow", "parameter-initialization", secondary=LEARNING)
def scale_of_zero() -> Visit:
    """A LayerNorm in the trunk whose scale starts at zero: nothing passes."""
    norm = nn.LayerNorm(32)
    nn.init.zeros_(norm.weight)
    return classifier(nn.Sequential(nn.Linear(FEATURES, 32), norm, nn.ReLU(), nn.Linear(32, CLASSES)))


@wrong("train-eval-difference", "normalization-layers")
def statistics_of_another() -> Visit:
    """BatchNorm's running statistics come from data a thousand times larger."""
    norm = nn.BatchNorm1d(32, momentum=0.001)
    norm.load_state_dict({"running_var": torch.full((32,), 1e6), "running_mean": torch.full((32,), 1e3)}, strict=False)
    return classifier(nn.Sequential(nn.Linear(FEATURES, 32), norm, nn.ReLU(), nn.Linear(32, CLASSES)))


@wrong("train-eval-difference", "determinism")
def dropout_in_evaluation() -> Visit:
    """Functional dropout that does not ask for the mode: evaluation is random."""
    drop = Through(lambda x: nn.functional.dropout(x, 0.3))
    return classifier(nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), drop, nn.Linear(32, CLASSES)))


@wrong("determinism")
def entropy_of_the_system() -> Visit:
    """Noise from the operating system: no seed holds it."""

    def noisy(x: Tensor) -> Tensor:
        return x + 0.5 * torch.tensor(list(os.urandom(x.shape[1])), dtype=x.dtype) / 255

    return classifier(nn.Sequential(Through(noisy), *mlp(FEATURES, 32, CLASSES)))
