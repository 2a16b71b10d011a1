"""Models that cannot learn: how they were initialised, what they are built of, how much they are held back."""

from __future__ import annotations

import torch
from torch import nn

from torchdoctor.clinic.arenas import Convolutions, EvidenceBound, Transformer, Variational, perceptron
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.dim() > 1]


@torch.no_grad()
def initialised_zero(loop: Loop) -> None:
    """All weights and biases begin at zero."""
    for parameter in loop.model.parameters():
        parameter.zero_()


@torch.no_grad()
def initialised_equal(loop: Loop) -> None:
    """All weights begin at the same number: every unit of a layer stays the twin of the others."""
    value = loop.dice.choice([0.01, 0.05])
    for parameter in loop.model.parameters():
        parameter.fill_(value if parameter.dim() > 1 else 0.0)


@torch.no_grad()
def initialised_too_large(loop: Loop) -> None:
    """Weights begin some ten times too large: the first loss is far above chance."""
    for parameter in _matrices(loop.model):
        parameter.mul_(loop.dice.choice([10, 15]))


@torch.no_grad()
def initialised_too_small(loop: Loop) -> None:
    """Weights begin a thousand times too small: nothing comes through."""
    loop.use("sgd")
    for parameter in loop.model.parameters():
        parameter.mul_(1e-3)


@torch.no_grad()
def attention_saturated(loop: Loop) -> None:
    """Query and key weights begin thirty times too large: attention looks at one place only, and cannot learn where."""
    assert isinstance(loop.model, Transformer)
    for name, parameter in loop.model.named_parameters():
        if name.endswith("in_proj_weight"):
            parameter[: 2 * parameter.shape[1]].mul_(30)


def deep_sigmoid(loop: Loop) -> None:
    """A deep net of sigmoids without normalisation: the gradient fades before it reaches the first layers."""


def deep_tanh_plain(loop: Loop) -> None:
    """Twenty tanh layers without normalisation or skips, initialised small."""
    given, classes = loop.arena.x.shape[1], loop.arena.classes
    loop.model = perceptron([given, *[48] * 20, classes], nn.Tanh)
    with torch.no_grad():
        for parameter in _matrices(loop.model):
            parameter.mul_(0.7)
    loop.use("sgd", 0.2)
    loop.constant()


def deep_relu_plain(loop: Loop) -> None:
    """Thirty ReLU layers with torch's default weights: the signal shrinks with every layer."""
    given, classes = loop.arena.x.shape[1], loop.arena.classes
    loop.model = perceptron([given, *[48] * 30, classes])
    loop.use("sgd", 0.2)
    loop.constant()


def tanh_saturated(loop: Loop) -> None:
    """Inputs and weights of a tanh net are so large that its units are pinned at plus and minus one."""
    given, classes = loop.arena.x.shape[1], loop.arena.classes
    loop.model = perceptron([given, 64, 64, 64, classes], nn.Tanh)
    with torch.no_grad():
        for parameter in _matrices(loop.model)[:-1]:
            parameter.mul_(40)
    loop.use("sgd", 0.3)
    loop.constant()


def units_dead_from_the_start(loop: Loop) -> None:
    """Biases of the hidden layers begin far below zero: most ReLUs never answer."""
    with torch.no_grad():
        hidden = [m for m in loop.model.modules() if isinstance(m, nn.Linear | nn.Conv2d)][:-1]
        for module in hidden:
            assert module.bias is not None
            module.bias.fill_(-4.0)


def units_killed(loop: Loop) -> None:
    """One huge step early on throws the ReLUs into the negative, where they stay."""
    loop.use("sgd")
    loop.constant()

    @torch.no_grad()
    def throw() -> None:
        for module in [m for m in loop.model.modules() if isinstance(m, nn.Linear | nn.Conv2d)][:-1]:
            assert module.bias is not None
            module.bias -= 20

    loop.events[60] = throw


def model_too_small(loop: Loop) -> None:
    """Two hidden units for a task that needs many."""
    given, last = loop.arena.x.shape[1], [m for m in loop.model.modules() if isinstance(m, nn.Linear)][-1]
    loop.model = perceptron([given, 2, last.out_features], nn.Tanh)
    loop.use("adam", 3.0)
    loop.constant()
    loop.steps = 600


def linear_for_nonlinear(loop: Loop) -> None:
    """The activations were forgotten: ten layers that are one linear map."""
    given, last = loop.arena.x.shape[1], [m for m in loop.model.modules() if isinstance(m, nn.Linear)][-1]
    hidden = torch.tanh(loop.arena.x[:, :4] * 3).prod(1, keepdim=True)
    held_out = torch.tanh(loop.validated[0][:, :4] * 3).prod(1, keepdim=True)
    loop.arena.y = hidden / hidden.std()
    loop.validated = (loop.validated[0], held_out / hidden.std())
    loop.model = perceptron([given, 64, 64, last.out_features], nn.Identity)
    loop.constant()


def dropout_too_high(loop: Loop) -> None:
    """Dropout of 0.95 in every layer."""
    given, classes = loop.arena.x.shape[1], loop.arena.classes
    loop.model = perceptron([given, 128, 128, classes], dropout=0.95)
    loop.validate_every = 25


def label_smoothing_too_high(loop: Loop) -> None:
    """Label smoothing of 0.95: the targets say next to nothing."""
    loop.loss_fn = nn.CrossEntropyLoss(label_smoothing=0.95)


def batchnorm_of_two(loop: Loop) -> None:
    """A dense layer with BatchNorm over batches of two samples: its statistics are noise."""
    assert isinstance(loop.model, Convolutions)
    loop.arena.batch_size = 2
    given, classes = loop.model.head.in_features, loop.model.head.out_features
    loop.model = nn.Sequential(
        loop.model.trunk,
        nn.Flatten(),
        nn.Linear(given, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
    loop.use("sgd", 0.5)
    loop.constant()
    loop.validate_every = 25


def batchnorm_never_averages(loop: Loop) -> None:
    """BatchNorm with momentum 1e-4: validation uses statistics that have hardly begun to move."""
    for module in loop.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1e-4
    loop.arena.x = loop.arena.x * 4 + 6
    loop.validated = (loop.validated[0] * 4 + 6, loop.validated[1])
    loop.validate_every = 25


def posterior_collapsed(loop: Loop) -> None:
    """The distance term of a variational autoencoder weighs a thousand times too much: the code says nothing."""
    assert isinstance(loop.model, Variational)
    loop.loss_fn = EvidenceBound(beta=1000.0)


@torch.no_grad()
def at_a_saddle(loop: Loop) -> None:
    """A deep linear net begins near the saddle at zero, and SGD cannot leave it."""
    given = loop.arena.x.shape[1]
    last = [m for m in loop.model.modules() if isinstance(m, nn.Linear)][-1]
    loop.model = perceptron([given, 32, 32, 32, last.out_features], nn.Identity)
    for parameter in loop.model.parameters():
        parameter.mul_(0.02)
    loop.use("plain-sgd", 0.2)
    loop.constant()


INIT = ("bad-initialization",)
FADES = (*SIGNAL, "not-learning", "loss-plateau", "slow-learning", "underfitting", "update-ratio-abnormal")

FAULTS = (
    Kind(
        "initialised-zero",
        initialised_zero,
        on=("mlp", "regression"),
        right=(
            "identical-units",
            *INIT,
            "no-gradient",
            "not-learning",
            "collapsed-output",
            "frozen-weights",
            "dead-units",
        ),
        cause=INIT,
        secondary=FADES,
    ),
    Kind(
        "initialised-equal",
        initialised_equal,
        on=("mlp", "cnn"),
        right=(*INIT, "identical-units"),
        cause=INIT,
        secondary=(*FADES, *UNSTABLE),
    ),
    Kind(
        "initialised-too-large",
        initialised_too_large,
        on=("mlp", "cnn"),
        right=(*INIT, "unexpected-initial-loss", "activation-explosion", "saturated-activations"),
        cause=INIT,
        secondary=(*UNSTABLE, *SIGNAL, *GENERALIZATION, *STALLED),
    ),
    Kind(
        "initialised-too-small",
        initialised_too_small,
        on=("mlp", "cnn"),
        right=(*INIT, "gradient-vanishing", "not-learning", "collapsed-output"),
        cause=INIT,
        secondary=FADES,
    ),
    Kind(
        "attention-saturated",
        attention_saturated,
        on=("transformer",),
        right=(*INIT, "saturated-activations", "activation-explosion"),
        cause=INIT,
        secondary=(*UNSTABLE, *FADES),
    ),
    Kind(
        "deep-sigmoid",
        deep_sigmoid,
        on=("deep-sigmoid",),
        right=("gradient-vanishing", "saturating-nonlinearity", "missing-normalization", "missing-skip-connections"),
        cause=("saturating-nonlinearity", "missing-normalization", "missing-skip-connections"),
        secondary=FADES,
    ),
    Kind(
        "deep-tanh-plain",
        deep_tanh_plain,
        on=("mlp",),
        right=(
            "gradient-vanishing",
            "saturating-nonlinearity",
            "missing-normalization",
            "missing-skip-connections",
            "bad-initialization",
        ),
        cause=(
            "saturating-nonlinearity",
            "missing-normalization",
            "missing-skip-connections",
            "bad-initialization",
        ),
        secondary=FADES,
    ),
    Kind(
        "deep-relu-plain",
        deep_relu_plain,
        on=("mlp",),
        right=("gradient-vanishing", "missing-normalization", "missing-skip-connections", "bad-initialization"),
        cause=("missing-normalization", "missing-skip-connections", "bad-initialization"),
        secondary=FADES,
    ),
    Kind(
        "tanh-saturated",
        tanh_saturated,
        on=("mlp",),
        right=("saturated-activations", "bad-initialization", "saturating-nonlinearity"),
        cause=("bad-initialization", "saturating-nonlinearity"),
        secondary=(*FADES, *UNSTABLE),
    ),
    Kind(
        "units-dead-from-the-start",
        units_dead_from_the_start,
        on=("mlp", "cnn"),
        right=("dead-units", *INIT),
        cause=INIT,
        secondary=(*FADES, "frozen-weights"),
    ),
    Kind(
        "units-killed",
        units_killed,
        on=("mlp", "cnn"),
        right=("dead-units", "collapsed-output", "no-gradient", "loss-spike", "loss-divergence", "gradient-vanishing"),
        secondary=("weight-growth", *FADES, *UNSTABLE, "frozen-weights", "state-overwritten"),
        onset=60,
    ),
    Kind(
        "model-too-small",
        model_too_small,
        on=("mlp", "regression"),
        right=("insufficient-capacity", "underfitting", "loss-plateau"),
        cause=("insufficient-capacity",),
        secondary=("slow-learning", "saturated-activations"),
        onset=200,
    ),
    Kind(
        "activations-forgotten",
        linear_for_nonlinear,
        on=("regression",),
        right=("insufficient-capacity", "underfitting", "loss-plateau", "not-learning"),
        cause=("insufficient-capacity", "label-noise-or-misalignment"),
        secondary=("slow-learning", "collapsed-output", "unexpected-initial-loss"),
    ),
    Kind(
        "dropout-too-high",
        dropout_too_high,
        on=("mlp", "dropout-mlp"),
        right=("over-regularized", "underfitting", "validation-anomaly"),
        cause=("over-regularized",),
        secondary=(*STALLED, "collapsed-output", "dead-units"),
    ),
    Kind(
        "label-smoothing-too-high",
        label_smoothing_too_high,
        on=("mlp", "cnn"),
        right=("over-regularized", "underfitting", "loss-misuse", "not-learning", "slow-learning", "collapsed-output"),
        cause=("over-regularized", "loss-misuse"),
        secondary=(*STALLED, "collapsed-output", "suspicious-loss"),  # of labels that say nothing: it is what is wrong
    ),
    Kind(
        "batchnorm-of-two",
        batchnorm_of_two,
        on=("batchnorm",),
        right=(
            "small-normalization-batch",
            "batchnorm-misuse",
        ),
        cause=("batchnorm-misuse", "batch-size-unsuited"),
        secondary=(*UNSTABLE, *GENERALIZATION, *STALLED),
    ),
    Kind(
        "batchnorm-never-averages",
        batchnorm_never_averages,
        on=("batchnorm",),
        right=("batchnorm-misuse", "validation-anomaly", "train-val-mismatch"),
        cause=("batchnorm-misuse", "train-val-mismatch"),
        secondary=("input-anomaly", "overfitting", "unnormalized-inputs"),
    ),
    Kind(
        "posterior-collapsed",
        posterior_collapsed,
        on=("vae",),
        right=("over-regularized", "collapsed-output", "representation-collapse", "underfitting", "loss-plateau"),
        cause=("over-regularized", "representation-collapse"),
        secondary=(*STALLED, *UNSTABLE),
    ),
    Kind(
        "at-a-saddle",
        at_a_saddle,
        on=("regression", "mlp"),
        right=("saddle-point", "not-learning", "gradient-vanishing", *INIT, "collapsed-output"),
        cause=("saddle-point", *INIT),
        secondary=FADES,
    ),
)
