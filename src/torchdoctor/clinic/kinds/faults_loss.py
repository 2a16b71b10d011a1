"""Losses that are fed, reduced or written wrongly."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

TOO_GOOD = ("suspiciously-low-loss", "unexpected-initial-loss", "loss-divergence")


def softmax_before_cross_entropy(loop: Loop) -> None:
    """The model ends in a softmax, and cross-entropy applies another."""
    loop.model = nn.Sequential(loop.model, nn.Softmax(dim=-1))


def softmax_in_forward(loop: Loop) -> None:
    """`functional.softmax` in the loop, before a cross-entropy that expects scores."""
    loop.forward = lambda x, y: loop.loss_of(functional.softmax(loop.model(x), -1), y)


def sigmoid_before_bce(loop: Loop) -> None:
    """The model ends in a sigmoid, and the loss applies another."""
    loop.model = nn.Sequential(loop.model, nn.Sigmoid())


def nll_of_scores(loop: Loop) -> None:
    """`NLLLoss` is given scores instead of log-probabilities: the loss falls without end and means nothing."""
    loop.loss_fn = nn.NLLLoss()


def loss_broadcasts(loop: Loop) -> None:
    """Outputs of shape (n, 1) against targets of shape (n,): each output is compared with every target."""
    loop.arena.y = loop.arena.y.squeeze(1)
    loop.validated = (loop.validated[0], loop.validated[1].squeeze(1))
    loop.loss_fn = lambda outputs, y: ((outputs - y) ** 2).mean()
    loop.shows_loss_fn = loop.dice.random() < 0.5


def loss_summed(loop: Loop) -> None:
    """The loss is summed over the batch, with an SGD rate that was chosen for the mean."""
    summed: dict[type[nn.Module], nn.Module] = {
        nn.CrossEntropyLoss: nn.CrossEntropyLoss(reduction="sum"),
        nn.MSELoss: nn.MSELoss(reduction="sum"),
    }
    loop.loss_fn = summed[type(loop.arena.loss_fn)]
    loop.use("sgd", 2.0)
    loop.constant()


def loss_maximised(loop: Loop) -> None:
    """A minus sign too many: the loss is maximised."""
    inner = loop.forward
    loop.forward = lambda x, y: -inner(x, y)


def loss_divided_by_classes(loop: Loop) -> None:
    """With SGD, the loss is divided by the number of samples of the data set instead of the batch."""
    loop.use("sgd")
    loop.constant()
    inner = loop.forward
    loop.forward = lambda x, y: inner(x, y) / len(loop.arena.x)


def relu_on_the_output(loop: Loop) -> None:
    """The last layer is followed by a ReLU, although the targets are negative half of the time."""
    loop.model = nn.Sequential(loop.model, nn.ReLU())


def mean_squared_labels(loop: Loop) -> None:
    """Classes are regressed as numbers, and the output is a sigmoid that cannot reach them."""
    classes = loop.arena.classes
    loop.model = nn.Sequential(loop.model, nn.Linear(classes, 1), nn.Sigmoid())
    loop.loss_fn = nn.MSELoss()
    loop.arena.y = loop.arena.y.float().unsqueeze(1)
    loop.validated = (loop.validated[0], loop.validated[1].float().unsqueeze(1))


def padding_counted(loop: Loop) -> None:
    """Nine tenths of every text are padding, and the loss counts it."""

    def padded(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        keep = max(x.shape[1] // 10, 1)
        x, y = x.clone(), y.clone()
        x[:, keep:], y[:, keep:] = 0, 0
        return x, y

    loop.replace_batches(padded)
    loop.validated = padded(*loop.validated)


def targets_not_shifted(loop: Loop) -> None:
    """The target of a text is the text itself, not the next character: copying is all there is to learn."""
    loop.arena.y = loop.arena.x
    loop.validated = (loop.validated[0], loop.validated[0])


def log_of_zero(loop: Loop) -> None:
    """A hand-written cross-entropy, `-(y * p.log())`, whose probabilities come to be exactly zero."""

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(outputs)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    loop.loss_fn = loss
    loop.shows_loss_fn = False
    loop.use("adam", 30.0)
    loop.constant()
    loop.arena.x = loop.arena.x * 4


MISUSE = ("loss-misuse",)

FAULTS = (
    Kind(
        "softmax-before-cross-entropy",
        softmax_before_cross_entropy,
        on=("mlp", "cnn", "lstm"),
        right=(*MISUSE, "suspicious-loss"),
        cause=MISUSE,
        secondary=(*STALLED, "gradient-vanishing", "saturated-activations", "collapsed-output"),
    ),
    Kind(
        "softmax-in-forward",
        softmax_in_forward,
        on=("resnet", "transformer"),
        right=(*MISUSE, "suspicious-loss"),
        cause=MISUSE,
        secondary=(*STALLED, "gradient-vanishing", "saturated-activations", "collapsed-output"),
    ),
    Kind(
        "sigmoid-before-bce",
        sigmoid_before_bce,
        on=("binary",),
        right=(*MISUSE, "suspicious-loss"),
        cause=MISUSE,
        secondary=(*STALLED, "gradient-vanishing", "saturated-activations"),
    ),
    Kind(
        "nll-of-scores",
        nll_of_scores,
        on=("mlp", "cnn"),
        right=("suspicious-loss", *MISUSE, *TOO_GOOD),
        cause=MISUSE,
        secondary=(*UNSTABLE, "unexpected-initial-loss", *GENERALIZATION, "collapsed-output"),
    ),
    Kind(
        "loss-broadcasts",
        loss_broadcasts,
        on=("regression",),
        right=(*MISUSE, "suspicious-loss"),
        cause=MISUSE,
        secondary=(*STALLED, "collapsed-output"),
    ),
    Kind(
        "loss-summed",
        loss_summed,
        on=("mlp", "regression", "cnn"),
        right=("loss-misuse", "lr-too-high", *UNSTABLE),
        cause=("loss-misuse", "lr-too-high"),
        secondary=(*STALLED, "dead-units", "collapsed-output", "unexpected-initial-loss", "validation-anomaly"),
    ),
    Kind(
        "loss-maximised",
        loss_maximised,
        on=("mlp", "regression"),
        right=("suspicious-loss", *MISUSE, *TOO_GOOD, *UNSTABLE),
        cause=MISUSE,
        secondary=("collapsed-output", "dead-units", *GENERALIZATION),
    ),
    Kind(
        "loss-divided-by-data-set",
        loss_divided_by_classes,
        on=("mlp", "regression"),
        right=("loss-misuse", "lr-too-low", "slow-learning", "not-learning", "update-ratio-abnormal"),
        cause=("loss-misuse", "lr-too-low"),
        secondary=(*STALLED, "unexpected-initial-loss", "gradient-vanishing"),
    ),
    Kind(
        "relu-on-the-output",
        relu_on_the_output,
        on=("regression", "autoencoder"),
        right=(
            "target-anomaly",
            "dead-units",
            "collapsed-output",
            "loss-misuse",
            "underfitting",
            "saturating-nonlinearity",
        ),
        secondary=STALLED,
    ),
    Kind(
        "squared-error-of-class-numbers",
        mean_squared_labels,
        on=("mlp",),
        right=(
            "target-anomaly",
            "loss-misuse",
            "unnormalized-targets",
            "saturated-activations",
            "collapsed-output",
            "underfitting",
        ),
        cause=("loss-misuse", "unnormalized-targets"),
        secondary=(*STALLED, "gradient-vanishing", "unexpected-initial-loss"),
    ),
    Kind(
        "padding-counted",
        padding_counted,
        on=("gru-text", "transformer"),
        right=("target-anomaly", "class-imbalance", "suspiciously-low-loss", "collapsed-output", "loss-misuse"),
        cause=("class-imbalance", "loss-misuse"),
        secondary=("loss-plateau", "slow-learning"),
    ),
    Kind(
        "targets-not-shifted",
        targets_not_shifted,
        on=("gru-text", "transformer"),
        right=("target-anomaly", "information-leak", "suspiciously-low-loss", "loss-misuse"),
        cause=("information-leak", "loss-misuse"),
        secondary=("loss-plateau",),
    ),
    Kind(
        "log-of-zero",
        log_of_zero,
        on=("binary",),
        right=("nan-or-inf", "numeric-precision"),
        cause=("numeric-precision", "lr-too-high"),
        secondary=(*UNSTABLE, *STALLED, "frozen-weights", "collapsed-output", "dead-units"),
    ),
)
