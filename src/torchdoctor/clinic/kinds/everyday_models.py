"""What goes wrong with the model in ordinary projects: its first weights, its layers, its size, its restraints."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdoctor.clinic.arenas import perceptron
from torchdoctor.clinic.everyday_nets_b import Attention, LastState
from torchdoctor.clinic.kinds.everyday_data import fault, since
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind, Onset
from torchdoctor.clinic.kinds.loop import Loop

LAYERS = (nn.Linear, nn.Conv2d, nn.Conv1d)


def layers(model: nn.Module) -> list[nn.Module]:
    """All linear layers and convolutions."""
    return [layer for layer in model.modules() if isinstance(layer, LAYERS)]


# ── first weights ────────────────────────────────────────────────────────────────────────────────────────────────────


def all_zeros(loop: Loop) -> None:
    """Weights and biases begin at zero, in every layer."""
    for layer in layers(loop.model):
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)


def all_alike(loop: Loop) -> None:
    """All weights of a layer begin with the same value."""
    for layer in layers(loop.model):
        for parameter in layer.parameters():
            nn.init.constant_(parameter, 0.05)


def standard_normal(loop: Loop) -> None:
    """`torch.randn` is taken for the first weights of every layer, without a scale."""
    for layer in layers(loop.model):
        nn.init.normal_(layer.weight)  # type: ignore[arg-type]


# ── layers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def sigmoid_tower(loop: Loop) -> None:
    """Nine hidden layers, each with a sigmoid."""
    x, classes = loop.arena.x, loop.arena.classes
    loop.model = perceptron([x.shape[1], *[48] * 9, classes], nn.Sigmoid)


def plain_tower(loop: Loop) -> None:
    """Thirty layers one on top of the other, without shortcuts and without norms."""
    x, classes = loop.arena.x, loop.arena.classes
    loop.model = perceptron([x.shape[1], *[32] * 30, classes], nn.ReLU)


class Bare(nn.Module):
    """A shortcut around two layers with He's weights, and no norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = perceptron([width, 2 * width, width])
        for layer in layers(self.inner):
            nn.init.kaiming_normal_(layer.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """x and what the layers add."""
        more: Tensor = self.inner(x)
        return x + more


def norms_left_out(loop: Loop) -> None:
    """Twelve residual blocks with He's weights, and the norms left out to save time."""
    x, classes = loop.arena.x, loop.arena.classes
    loop.model = nn.Sequential(nn.Linear(x.shape[1], 48), *(Bare(48) for _ in range(12)), nn.Linear(48, classes))
    loop.constant()


def relu_at_the_end(loop: Loop) -> None:
    """The last layer has a ReLU as all others have, although targets are negative as often as not."""
    loop.model = nn.Sequential(loop.model, nn.ReLU())


def old_recurrence(loop: Loop) -> None:
    """A plain recurrent net reads long sequences of which the beginning says the answer."""
    x = loop.arena.x
    loop.model = LastState(nn.RNN(x.shape[2], 24, batch_first=True), loop.arena.classes)

    def prolong(x: Tensor) -> Tensor:
        return torch.cat([x, 0.3 * torch.randn(len(x), 46, x.shape[2])], 1)

    loop.arena.x = prolong(x)
    loop.validated = (prolong(loop.validated[0]), loop.validated[1])
    loop.use("adam", 0.4)


def pairs_in_batchnorm(loop: Loop) -> None:
    """Memory was short, so the batch is two pictures, and BatchNorm stayed."""
    loop.arena.batch_size = 2
    loop.use("sgd", 0.5)
    loop.constant()


def slow_statistics(loop: Loop) -> None:
    """BatchNorm has a momentum of 0.001, by somebody who thought of 0.999 in another library."""
    for layer in loop.model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.001


def mask_forgotten(loop: Loop) -> None:
    """The mask was switched off to try something, and every character sees the next one."""
    for layer in loop.model.modules():
        if isinstance(layer, Attention):
            layer.causal = False
    loop.use("adam")
    loop.constant()
    loop.steps = 600


def next_is_this(loop: Loop) -> None:
    """Targets were not moved on by one: the net is to say the character that it is given."""
    loop.replace_batches(lambda x, y: (x, x.clone()))
    loop.validated = (loop.validated[0], loop.validated[0].clone())


def empty_text(loop: Loop) -> None:
    """From step 150 on there are texts without a word: attention has nothing to look at."""

    def empty(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[3] = 0
        return x, y

    since(loop, 150, empty)


# ── size and restraint ───────────────────────────────────────────────────────────────────────────────────────────────


def two_units(loop: Loop) -> None:
    """The one hidden layer has two units."""
    x, y = loop.arena.x, loop.arena.y
    made = loop.arena.classes or y.shape[1]
    loop.model = nn.Sequential(nn.Flatten(), perceptron([x[0].numel(), 2, made], nn.Tanh))


def kept_is_dropped(loop: Loop) -> None:
    """The probability to keep a unit was given where the probability to drop it belongs."""
    assert isinstance(loop.model, nn.Sequential)
    kept = [[layer, nn.Dropout(0.9)] if isinstance(layer, nn.ReLU) else [layer] for layer in loop.model]
    loop.model = nn.Sequential(nn.Dropout(0.8), *(layer for some in kept for layer in some))


def decay_without_bounds(loop: Loop) -> None:
    """A weight decay of 0.3, with an optimizer that adds it to the gradient."""
    loop.use("sgd", weight_decay=0.3)
    loop.constant()


def hundred_examples(loop: Loop) -> None:
    """There are a hundred examples, and the net goes over them until it knows them by heart."""
    loop.arena.x, loop.arena.y = loop.arena.x[:100], loop.arena.y[:100]
    loop.arena.batch_size = 20
    loop.use("adam")
    loop.constant()


def wide_for_few_rows(loop: Loop) -> None:
    """A wide net without any restraint on a table of 150 rows."""
    loop.arena.x, loop.arena.y = loop.arena.x[:150], loop.arena.y[:150]
    loop.model = perceptron([loop.arena.x.shape[1], 512, 512, loop.arena.y.shape[1]])
    loop.arena.batch_size = 30
    loop.use("adam", 0.5)
    loop.constant()


LEAK = ("information-leak", "suspiciously-low-loss", "target-anomaly", "uneven-position-loss")
MEMORY = ("overfitting", "memorization", "under-regularized")
RESTRAINED = ("over-regularized", *STALLED)
BEST: Onset = "best-validation"

FAULTS: tuple[Kind, ...] = (
    fault(
        "all-zeros",
        all_zeros,
        "pocket-digits",
        ("bad-initialization", "identical-units", *SIGNAL, *STALLED, "frozen-weights"),
        ("bad-initialization",),
    ),
    fault(
        "all-alike",
        all_alike,
        "topic-tags",
        ("bad-initialization", "identical-units", "collapsed-output", *STALLED),
        ("bad-initialization",),
        SIGNAL,
    ),
    fault(
        "standard-normal",
        standard_normal,
        "pocket-digits motion",
        ("bad-initialization", "unexpected-initial-loss", "saturated-activations", *UNSTABLE, *STALLED),
        ("bad-initialization",),
        (*SIGNAL, "missing-normalization", "lr-too-high"),
    ),
    fault(
        "sigmoid-tower",
        sigmoid_tower,
        "species",
        (*SIGNAL, *STALLED, "saturating-nonlinearity"),
        ("saturating-nonlinearity", "missing-normalization", "missing-skip-connections"),
        ("bad-initialization",),
    ),
    fault(
        "plain-tower",
        plain_tower,
        "species",
        (*SIGNAL, *STALLED, "missing-skip-connections", "missing-normalization"),
        ("missing-skip-connections", "missing-normalization", "bad-initialization"),
    ),
    fault(
        "norms-left-out",
        norms_left_out,
        "species",
        ("missing-normalization", "unexpected-initial-loss", "bad-initialization", *UNSTABLE),
        ("missing-normalization", "bad-initialization"),
        (*SIGNAL, *STALLED, "lr-too-high"),
    ),
    fault(
        "relu-at-the-end",
        relu_at_the_end,
        "house-prices",
        ("dead-units", "no-gradient", "collapsed-output", "saturating-nonlinearity", "target-anomaly", *STALLED),
        ("saturating-nonlinearity", "loss-misuse"),
        (*SIGNAL, *GENERALIZATION),
    ),
    fault(
        "old-recurrence",
        old_recurrence,
        "recall",
        ("gradient-vanishing", "saturating-nonlinearity", "collapsed-output", *STALLED),
        ("saturating-nonlinearity", "missing-skip-connections", "missing-normalization"),
        (*SIGNAL, "label-noise-or-misalignment"),
    ),
    fault(
        "pairs-in-batchnorm",
        pairs_in_batchnorm,
        "photos",
        ("batchnorm-misuse", "small-normalization-batch", "batch-size-unsuited", *GENERALIZATION, *UNSTABLE, *STALLED),
        ("batchnorm-misuse", "batch-size-unsuited"),
        ("batch-size-advice",),
    ),
    fault(
        "slow-statistics",
        slow_statistics,
        "tissue",
        ("batchnorm-misuse", "train-val-mismatch", *GENERALIZATION),
        ("batchnorm-misuse", "train-val-mismatch"),
    ),
    fault("mask-forgotten", mask_forgotten, "novel", LEAK, ("information-leak",)),
    fault("next-is-this", next_is_this, "novel", LEAK, ("information-leak", "label-noise-or-misalignment")),
    fault(
        "empty-text",
        empty_text,
        "comments",
        ("nan-or-inf", "numeric-precision", "bad-batch", "input-anomaly", "nan-in-data"),
        ("numeric-precision", "bad-batch"),
        onset=150,
        acute=True,
    ),
    fault(
        "two-units",
        two_units,
        "pocket-digits",
        ("insufficient-capacity", *STALLED),
        ("insufficient-capacity",),
        SIGNAL,
    ),
    fault(
        "kept-is-dropped",
        kept_is_dropped,
        "topic-tags",
        (*RESTRAINED, *GENERALIZATION),
        ("over-regularized",),
        (*SIGNAL, "gradient-instability"),
    ),
    fault(
        "decay-without-bounds",
        decay_without_bounds,
        "pocket-digits",
        (*RESTRAINED, *SIGNAL, "optimizer-advice", "optimizer-misconfigured"),
        ("over-regularized", "optimizer-misconfigured"),
    ),
    fault(
        "hundred-examples", hundred_examples, "reviews species", MEMORY, MEMORY[1:], ("suspiciously-low-loss",), BEST
    ),
    fault("wide-for-few-rows", wide_for_few_rows, "topic-tags churn", MEMORY, MEMORY[1:], (), BEST),
)
