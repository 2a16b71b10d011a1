"""What goes wrong with the loss in ordinary projects, and with the data that it is measured on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.kinds.everyday_data import WRONG_SPLIT, fault, since
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

MISUSED = ("loss-misuse", "suspicious-loss")

# ── the loss ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def softmax_twice(loop: Loop) -> None:
    """The model ends with a softmax, and the loss applies another one."""
    loop.model = nn.Sequential(loop.model, nn.Softmax(dim=-1))


def sigmoid_twice(loop: Loop) -> None:
    """The model ends with a sigmoid, and the loss is `BCEWithLogitsLoss`."""
    loop.model = nn.Sequential(loop.model, nn.Sigmoid())


def column_against_row(loop: Loop) -> None:
    """Predictions are a column and targets a row: their difference is a matrix of all pairs."""
    loop.loss_fn = lambda outputs, y: (outputs - y.squeeze(1)).square().mean()


def likelihood_of_scores(loop: Loop) -> None:
    """The scores go into `NLLLoss` as they are, without a log-softmax."""
    loop.loss_fn = nn.NLLLoss()
    loop.constant()


def summed_over_pixels(loop: Loop) -> None:
    """The error is summed over pixels and batch, with the learning rate that suited the mean."""
    loop.loss_fn = nn.MSELoss(reduction="sum")
    loop.use("sgd")
    loop.constant()


def viewed_not_transposed(loop: Loop) -> None:
    """Scores of shape (batch, place, class) are viewed as (batch, class, place) for the loss, not transposed."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        scores = loop.model(x)
        return loop.loss_fn(scores.view(len(x), scores.shape[2], scores.shape[1]), y)

    loop.forward = forward


def logarithm_by_hand(loop: Loop) -> None:
    """Binary cross-entropy is written by hand; at step 170 a row comes of which the net is quite sure."""

    def by_hand(outputs: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(outputs)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    def sure(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[0] *= 40
        return x, y

    since(loop, 170, sure)
    loop.loss_fn = by_hand


def root_of_nothing(loop: Loop) -> None:
    """Distances are roots of sums of squares; at step 130 a pair comes in which both pictures are the same file."""

    def distances(codes: Tensor, y: Tensor) -> Tensor:
        anchor, positive, negative = codes.unbind(1)
        near, far = ((anchor - other).square().sum(1).sqrt() for other in (positive, negative))
        return (near - far + 1).clamp(min=0).mean()

    def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[:, 1] = x[:, 0]
        return x, y

    since(loop, 130, twice)
    loop.loss_fn = distances


def error_maximised(loop: Loop) -> None:
    """What is minimised is the negative error, as taken from a search that maximises its score."""
    loop.loss_fn = lambda outputs, y: -functional.mse_loss(outputs, y)
    loop.constant()


def divergence_outweighs(loop: Loop) -> None:
    """The error is averaged over the pixels, and the divergence of the code summed: the code says nothing."""

    def bound(made: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        logits, mean, log_variance = made
        error = functional.binary_cross_entropy_with_logits(logits, x)
        return error - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()

    loop.loss_fn = bound
    loop.use("adam")


# ── splits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def answer_in_table(loop: Loop) -> None:
    """A column of the training table was filled in after the fact and says the answer; in validation it is empty."""
    loop.arena.x[:, 3] = 2 * loop.arena.y.flatten() - 1
    loop.validated[0][:, 3] = 0.0


def validation_unscaled(loop: Loop) -> None:
    """The scaler is applied to training only."""
    loop.validated = (40 * loop.validated[0] + 100, loop.validated[1])


def other_vocabulary(loop: Loop) -> None:
    """Validation was encoded with a vocabulary of its own."""
    words = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(119)])
    loop.validated = (words[loop.validated[0]], loop.validated[1])


FAULTS: tuple[Kind, ...] = (
    fault(
        "softmax-twice",
        softmax_twice,
        "pocket-digits word-tagger",
        (*MISUSED, *STALLED, "gradient-vanishing", "saturated-activations"),
        ("loss-misuse",),
        SIGNAL,
    ),
    fault(
        "sigmoid-twice",
        sigmoid_twice,
        "topic-tags",
        (*MISUSED, *STALLED, "gradient-vanishing", "saturated-activations"),
        ("loss-misuse",),
        SIGNAL,
    ),
    fault(
        "column-against-row",
        column_against_row,
        "house-prices",
        (*MISUSED, *STALLED, "collapsed-output", "target-anomaly"),
        ("loss-misuse",),
        SIGNAL,
    ),
    fault(
        "likelihood-of-scores",
        likelihood_of_scores,
        "pocket-digits",
        (*MISUSED, *UNSTABLE, "suspiciously-low-loss"),
        ("loss-misuse",),
        (*SIGNAL, *GENERALIZATION, "unexpected-initial-loss"),
    ),
    fault(
        "summed-over-pixels",
        summed_over_pixels,
        "denoise",
        (*MISUSED, *UNSTABLE, *STALLED, "lr-too-high"),
        ("loss-misuse", "lr-too-high"),
        (*SIGNAL, "clip-missing"),
    ),
    fault(
        "viewed-not-transposed",
        viewed_not_transposed,
        "word-tagger",
        (*MISUSED, *STALLED, "collapsed-output", "label-noise-or-misalignment"),
        ("loss-misuse", "label-noise-or-misalignment"),
        SIGNAL,
    ),
    fault(
        "logarithm-by-hand",
        logarithm_by_hand,
        "topic-tags",
        ("nan-or-inf", "numeric-precision", "loss-misuse", "bad-batch", "input-anomaly"),
        ("numeric-precision", "loss-misuse", "bad-batch"),
        UNSTABLE,
        onset=170,
        acute=True,
    ),
    fault(
        "root-of-nothing",
        root_of_nothing,
        "view-triplets",
        ("nan-or-inf", "numeric-precision", "bad-batch"),
        ("numeric-precision", "bad-batch"),
        ("loss-misuse",),
        onset=130,
        acute=True,
    ),
    fault(
        "error-maximised",
        error_maximised,
        "house-prices",
        (*MISUSED, *UNSTABLE, "suspiciously-low-loss"),
        ("loss-misuse",),
        (*SIGNAL, *GENERALIZATION, "lr-too-high"),
    ),
    fault(
        "divergence-outweighs",
        divergence_outweighs,
        "digit-vae",
        (*MISUSED, *STALLED, "representation-collapse", "collapsed-output", "over-regularized"),
        ("representation-collapse", "loss-misuse", "over-regularized"),
        SIGNAL,
    ),
    fault(
        "answer-in-table",
        answer_in_table,
        "churn",
        ("information-leak", "suspiciously-low-loss", "target-anomaly", *WRONG_SPLIT),
        ("information-leak", "train-val-mismatch"),
        ("input-anomaly",),
    ),
    fault("validation-unscaled", validation_unscaled, "pocket-digits", WRONG_SPLIT, WRONG_SPLIT[:1]),
    fault("other-vocabulary", other_vocabulary, "reviews", WRONG_SPLIT, WRONG_SPLIT[:1]),
)
