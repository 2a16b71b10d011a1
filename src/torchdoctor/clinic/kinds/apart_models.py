"""Nets that cannot pass their signal on, or pass too much, or have nothing to say."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.apart_nets import Graphs, PatchTransformer, TiedDecoder
from torchdoctor.clinic.arenas import perceptron
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

STUCK = ("not-learning", "slow-learning", "loss-plateau", "underfitting", "collapsed-output")


def softmax_of_one_score(loop: Loop) -> None:
    """A net with one output ends with a softmax over it, which is one whatever the input."""
    loop.model = nn.Sequential(loop.model, nn.Softmax(dim=1))
    loop.loss_fn = nn.BCELoss()


def tied_to_unit_embeddings(loop: Loop) -> None:
    """The embedding keeps its usual start of unit size, and is the head as well."""
    loop.clip = None
    assert isinstance(loop.model, TiedDecoder)
    nn.init.normal_(loop.model.embed.weight)


def norms_forgotten(loop: Loop) -> None:
    """A decoder of six blocks is written without its norms."""
    loop.constant()
    loop.use("adam")
    width = 32
    loop.model = TiedDecoder(loop.arena.classes, width, 6, normalized=False)
    for module in loop.model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight, gain=1.25)
    nn.init.normal_(loop.model.embed.weight, std=0.3)
    loop.steps = 150


def neighbours_summed(loop: Loop) -> None:
    """The messages of the neighbours are added up, layer after layer, and never divided."""
    loop.constant()
    loop.model = Graphs(8, 32, loop.arena.classes, layers=6)
    for layer in loop.model.layers:
        assert isinstance(layer, nn.Linear)
        nn.init.kaiming_normal_(layer.weight)
    loop.model.averages = False


def smoothed_over(loop: Loop) -> None:
    """So many rounds of averaging over neighbours that all nodes of a graph become one."""
    loop.model = Graphs(8, 32, loop.arena.classes, layers=14)


def batch_first_forgotten(loop: Loop) -> None:
    """Attention takes the batch for the sequence: every sample looks at the others, and not at its own patches."""
    assert isinstance(loop.model, PatchTransformer)
    width = loop.model.head.in_features
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", norm_first=True)
    loop.model.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def one_unit_in_the_middle(loop: Loop) -> None:
    """The code of the autoencoder has one number where twenty-four were meant."""
    loop.model = nn.Sequential(perceptron([144, 96, 1]), nn.Tanh(), perceptron([1, 96, 144]))


class _AlwaysDropped(nn.Module):
    """Dropout called as a function, which is on unless it is told otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """What is left."""
        return functional.dropout(x, self.p)


def dropout_never_off(loop: Loop) -> None:
    """Dropout is called as a function, at a high rate, and stays on in the evaluation."""
    share = loop.dice.choice([0.8, 0.9])
    sizes = [loop.arena.x.shape[1], 64, 64, 8]
    layers: list[nn.Module] = []
    for given, made in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(given, made), *([nn.SiLU(), _AlwaysDropped(share)] if made == 64 else [])]
    loop.model = nn.Sequential(*layers)


def recurrent_weights_too_large(loop: Loop) -> None:
    """Every weight of the recurrent net starts from a normal twenty times as wide as usual."""
    loop.constant()
    for name, tensor in loop.model.named_parameters():
        if name.startswith("rnn"):
            nn.init.normal_(tensor, std=3.0)


def embeddings_all_alike(loop: Loop) -> None:
    """All users and things start from the same constant vector: its entries stay equal and count as one."""
    loop.use("adam")
    for tensor in loop.model.parameters():
        nn.init.constant_(tensor, 0.1)


def one_site_per_batch(loop: Loop) -> None:
    """Each batch comes from one hospital with scales of its own; BatchNorm hides it, and validation is a mixture."""
    arena = loop.arena
    generator = torch.Generator().manual_seed(loop.seed)
    offsets = 4 * torch.randn(5, 8, generator=generator)

    def moved(x: Tensor, sites: Tensor) -> Tensor:
        return torch.cat([x[:, :8] + offsets[sites], x[:, 8:]], 1)

    def read() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            site = torch.randint(5, (1,), generator=generator)
            chosen = torch.randint(len(arena.x), (arena.batch_size,), generator=generator)
            yield moved(arena.x[chosen], site.expand(arena.batch_size)), arena.y[chosen]

    loop.batches = read()
    x, y = loop.validated
    loop.validated = (moved(x, torch.randint(5, (len(x),), generator=generator)), y)


def history_gone_through_each_step(loop: Loop) -> None:
    """A running score is worked out at each step from every prediction made since the start."""
    kept: list[Tensor] = []
    inner = loop.after_micro

    def forward(x: Tensor, y: Tensor) -> Tensor:
        scores = loop.model(x)
        if loop.model.training:
            kept.append(scores.detach()[:, :2])
        return loop.loss_of(scores, y)

    def score() -> None:
        inner()
        torch.cat(kept).sort(0).values.cumsum(0).mean().item()

    loop.forward, loop.after_micro = forward, score


FAULTS = (
    Kind(
        "softmax-of-one-score",
        softmax_of_one_score,
        on=("customers",),
        right=(*UNMOVED, *STUCK, "loss-misuse", "suspicious-loss", "saturated-activations"),
        cause=("loss-misuse", "saturating-nonlinearity"),
        secondary=(*STALLED, *SIGNAL, "unexpected-initial-loss"),
    ),
    Kind(
        "tied-to-unit-embeddings",
        tied_to_unit_embeddings,
        on=("tied-text",),
        right=("unexpected-initial-loss", "bad-initialization"),
        cause=("bad-initialization",),
        secondary=(*STALLED, "activation-explosion"),
        acute=True,
    ),
    Kind(
        "norms-forgotten",
        norms_forgotten,
        on=("tied-text",),
        right=("missing-normalization", "bad-initialization", "unexpected-initial-loss", *UNSTABLE),
        cause=("missing-normalization", "bad-initialization"),
        secondary=(*STALLED, *SIGNAL, "multiple-pathologies"),
    ),
    Kind(
        "neighbours-summed",
        neighbours_summed,
        on=("communities",),
        right=("missing-normalization", "activation-explosion", "unexpected-initial-loss", "bad-initialization"),
        cause=("missing-normalization", "bad-initialization"),
        secondary=(*UNSTABLE, *STALLED, *SIGNAL, "clip-missing"),
    ),
    Kind(
        "smoothed-over",
        smoothed_over,
        on=("communities",),
        right=(*STUCK, "gradient-vanishing", "representation-collapse", "missing-skip-connections"),
        cause=("missing-skip-connections", "representation-collapse", "missing-normalization"),
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION),
    ),
    Kind(
        "batch-first-forgotten",
        batch_first_forgotten,
        on=("shapes-vit",),
        right=STUCK,
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION),
    ),
    Kind(
        "one-unit-in-the-middle",
        one_unit_in_the_middle,
        on=("denoiser",),
        right=("insufficient-capacity", "underfitting", "loss-plateau", "slow-learning"),
        cause=("insufficient-capacity",),
        secondary=(*STALLED, *SIGNAL),
    ),
    Kind(
        "dropout-never-off",
        dropout_never_off,
        on=("keywords",),
        right=("over-regularized", "underfitting", "loss-plateau", "slow-learning", "not-learning"),
        cause=("over-regularized",),
        secondary=(*STALLED, *GENERALIZATION, "collapsed-output"),
    ),
    Kind(
        "recurrent-weights-too-large",
        recurrent_weights_too_large,
        on=("tides",),
        right=("saturated-activations", "bad-initialization", "saturating-nonlinearity"),
        cause=("bad-initialization", "saturating-nonlinearity"),
        secondary=(*STALLED, *SIGNAL, *UNSTABLE, *GENERALIZATION),
    ),
    Kind(
        "embeddings-all-alike",
        embeddings_all_alike,
        on=("films",),
        right=("identical-units", "bad-initialization", "underfitting", "loss-plateau", "insufficient-capacity"),
        cause=("bad-initialization",),
        secondary=(*STALLED, *GENERALIZATION),
    ),
    Kind(
        "one-site-per-batch",
        one_site_per_batch,
        on=("customers",),
        right=("batchnorm-misuse", "validation-anomaly", "train-val-mismatch", "batch-anomaly", "data-order"),
        cause=("batchnorm-misuse", "train-val-mismatch", "data-order"),
        secondary=("overfitting", "unnormalized-inputs", "input-anomaly", "small-normalization-batch"),
    ),
    Kind(
        "history-gone-through-each-step",
        history_gone_through_each_step,
        on=("keywords", "members"),
        right=("step-time-regression", "memory-growth", "memory-leak"),
        secondary=("slow-data-loading",),
        onset=50,
    ),
)
