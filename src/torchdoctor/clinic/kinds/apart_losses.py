"""Losses that are not what their author thinks: shapes, signs, masks, weights, parts that are cut off."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

MISUSED = ("loss-misuse", "suspicious-loss")
COLLAPSE = ("collapsed-output", "representation-collapse")


def viewed_without_permuting(loop: Loop) -> None:
    """Scores of pixels are viewed as rows of classes without moving the class axis last."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return loop.loss_fn(loop.model(x).reshape(-1, 3), y.reshape(-1))

    loop.forward = forward


def sigmoid_before_cross_entropy(loop: Loop) -> None:
    """The net ends with a sigmoid, and cross-entropy takes its outputs for scores."""
    loop.model = nn.Sequential(loop.model, nn.Sigmoid())


def mask_inverted(loop: Loop) -> None:
    """Sentences are padded to one length and the loss is to leave the padding out, but counts nothing else."""
    pad, (fewest, length) = 0, (3, loop.arena.y.shape[1])

    def padded(y: Tensor) -> Tensor:
        ends = torch.randint(fewest, length, (len(y), 1), generator=torch.Generator().manual_seed(loop.seed))
        return torch.where(torch.arange(length) < ends, y.clamp(min=1), pad)

    loop.arena.y = padded(loop.arena.y)
    loop.validated = (loop.validated[0], padded(loop.validated[1]))

    def forward(x: Tensor, y: Tensor) -> Tensor:
        each = functional.cross_entropy(loop.model(x).transpose(1, 2), y, reduction="none")
        mask = (y == pad).float()
        return (each * mask).sum() / mask.sum()

    loop.forward = forward


def sparsity_above_all(loop: Loop) -> None:
    """A penalty on the code that was to make it sparse weighs a hundred times what was meant."""
    encoder, _, decoder = loop.model.children()

    def forward(x: Tensor, y: Tensor) -> Tensor:
        code = functional.relu(encoder(x))
        return loop.loss_fn(decoder(code), y) + 1.0 * code.abs().mean()

    loop.forward = forward


def squared_after_the_mean(loop: Loop) -> None:
    """The error is averaged over the batch and then squared."""

    class Error(nn.Module):
        """An error whose parts cancel."""

        def forward(self, made: Tensor, y: Tensor) -> Tensor:
            """The squared mean, where the mean square was meant."""
            return (made - y).mean().pow(2)

    loop.loss_fn = Error()


def positive_and_negative_swapped(loop: Loop) -> None:
    """The triplets hold the other before the one of its own kind."""
    loop.replace_batches(lambda x, y: (x[:, [0, 2, 1]], y))
    x, y = loop.validated
    loop.validated = (x[:, [0, 2, 1]], y)


def pinball_upside_down(loop: Loop) -> None:
    """The loss of quantiles takes the smaller of its two branches."""
    loop.constant()

    class Smaller(nn.Module):
        """Never above zero, and without a floor."""

        def forward(self, made: Tensor, y: Tensor) -> Tensor:
            """The mean over batch and quantiles."""
            missing, levels = y - made, torch.tensor([0.1, 0.5, 0.9])
            return torch.minimum(levels * missing, (levels - 1) * missing).mean()

    loop.loss_fn = Smaller()


def second_loss_as_a_number(loop: Loop) -> None:
    """The loss of the second head is added as a plain number."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        made = loop.model(x)
        number = functional.mse_loss(made[:, -1], y[:, 1])
        return functional.cross_entropy(made[:, :-1], y[:, 0].long()) + number.item()

    loop.forward = forward


def one_task_drowns_the_other(loop: Loop) -> None:
    """The number of the second task is in its own unit, some thousands, and its error is simply added."""
    loop.constant()

    def in_units(y: Tensor) -> Tensor:
        return torch.stack([y[:, 0], 800 * y[:, 1] + 3000], 1)

    loop.arena.y = in_units(loop.arena.y)
    loop.validated = (loop.validated[0], in_units(loop.validated[1]))


def weights_upside_down(loop: Loop) -> None:
    """Rare labels are to weigh more, and the weight given is their share, not its inverse."""
    share = loop.arena.y.mean(0)
    loop.loss_fn = nn.BCEWithLogitsLoss(pos_weight=share.pow(2))


def teacher_never_loaded(loop: Loop) -> None:
    """A student learns from a teacher whose checkpoint did not fit and was not loaded; it is validated on labels."""
    teacher = copy.deepcopy(loop.model).requires_grad_(False)
    for module in teacher.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=2 / module.in_features**0.5)
    truth = loop.loss_fn

    def forward(x: Tensor, y: Tensor) -> Tensor:
        scores = loop.model(x)
        if not loop.model.training:
            return truth(scores, y)
        return functional.kl_div(scores.log_softmax(1), teacher(x).softmax(1), reduction="batchmean")

    loop.forward = forward
    loop.shows_loss_fn = False


FAULTS = (
    Kind(
        "viewed-without-permuting",
        viewed_without_permuting,
        on=("cells",),
        right=(*MISUSED, "label-noise-or-misalignment", *STALLED[:4], "collapsed-output"),
        cause=("loss-misuse", "label-noise-or-misalignment"),
        secondary=(*STALLED, *GENERALIZATION),
    ),
    Kind(
        "sigmoid-before-cross-entropy",
        sigmoid_before_cross_entropy,
        on=("shapes-vit",),
        right=(*MISUSED, "saturated-activations", "saturating-nonlinearity", *STALLED[:4]),
        cause=("loss-misuse", "saturating-nonlinearity"),
        secondary=(*STALLED, "gradient-vanishing", "weight-growth"),
    ),
    Kind(
        "mask-inverted",
        mask_inverted,
        on=("backwards", "tied-text"),
        right=(*MISUSED, *COLLAPSE, "suspiciously-low-loss", "target-anomaly"),
        cause=("loss-misuse",),
        secondary=("information-leak", "gradient-vanishing", "no-gradient", "converged"),
    ),
    Kind(
        "sparsity-above-all",
        sparsity_above_all,
        on=("denoiser",),
        right=("over-regularized", "dead-units", *COLLAPSE, "not-learning", "loss-plateau", "underfitting"),
        cause=("over-regularized",),
        secondary=(*STALLED, "gradient-vanishing", "no-gradient"),
    ),
    Kind(
        "squared-after-the-mean",
        squared_after_the_mean,
        on=("tides", "denoiser"),
        right=(*MISUSED, *COLLAPSE, "suspiciously-low-loss", "not-learning"),
        cause=("loss-misuse",),
        secondary=(
            *STALLED,
            "validation-anomaly",
            "loss-oscillation",
            "gradient-instability",
            "information-leak",
            "batch-size-unsuited",
        ),
    ),
    Kind(
        "positive-and-negative-swapped",
        positive_and_negative_swapped,
        on=("metric",),
        right=(*MISUSED, *COLLAPSE, "label-noise-or-misalignment", "not-learning", "loss-plateau", "underfitting"),
        cause=("representation-collapse", "loss-misuse", "label-noise-or-misalignment"),
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION, "memorization"),
    ),
    Kind(
        "pinball-upside-down",
        pinball_upside_down,
        on=("bands",),
        right=(*MISUSED, "loss-divergence", "suspiciously-low-loss"),
        cause=("loss-misuse",),
        secondary=(*UNSTABLE, "collapsed-output", "dead-units"),
    ),
    Kind(
        "second-loss-as-a-number",
        second_loss_as_a_number,
        on=("class-and-number",),
        right=(*UNMOVED, "detached-graph"),
        cause=("detached-graph",),
        secondary=(*STALLED, "suspicious-loss"),
    ),
    Kind(
        "one-task-drowns-the-other",
        one_task_drowns_the_other,
        on=("class-and-number",),
        right=("target-anomaly", "unnormalized-targets"),
        cause=("unnormalized-targets",),
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION, "unexpected-initial-loss", "dead-units", "collapsed-output"),
    ),
    Kind(
        "weights-upside-down",
        weights_upside_down,
        on=("keywords",),
        right=("class-imbalance", *COLLAPSE, *MISUSED),
        cause=("class-imbalance", "loss-misuse"),
        secondary=("suspiciously-low-loss", "loss-plateau", "underfitting"),
    ),
    Kind(
        "teacher-never-loaded",
        teacher_never_loaded,
        on=("members", "shapes-vit"),
        right=("validation-anomaly", "train-val-mismatch", "overfitting", "label-noise-or-misalignment"),
        cause=("train-val-mismatch", "label-noise-or-misalignment"),
        secondary=("suspiciously-low-loss",),
    ),
)
