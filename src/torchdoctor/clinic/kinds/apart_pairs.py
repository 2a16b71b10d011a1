"""Faults that come in twos: neither hides the other from somebody who looks."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdoctor.clinic.kinds.apart_loop import normalization_never_in_training, tables_not_stepped
from torchdoctor.clinic.kinds.apart_numbers import blank_picture
from torchdoctor.clinic.kinds.apart_parameters import all_but_biases_frozen, encoder_without_gradients
from torchdoctor.clinic.kinds.apart_steps import plateau_of_each_batch, warmup_without_end
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

SEEN = (*UNSTABLE, *STALLED, *SIGNAL, *GENERALIZATION)


def silent_encoder_and_endless_warmup(loop: Loop) -> None:
    """The encoder runs under `no_grad`, and the rate is raised at every step."""
    encoder_without_gradients(loop)
    warmup_without_end(loop)


def frozen_weights_and_a_blank_picture(loop: Loop) -> None:
    """Everything but biases is frozen, and one picture is divided by its spread of zero."""
    all_but_biases_frozen(loop)
    blank_picture(loop)


def eval_normalization_and_hasty_plateau(loop: Loop) -> None:
    """BatchNorm is held in eval mode, and the rate is cut at each batch that is no better than the best."""
    normalization_never_in_training(loop)
    plateau_of_each_batch(loop)


def unstepped_tables_and_missing_ratings(loop: Loop) -> None:
    """The optimizer of the embeddings is never stepped, and ratings that nobody gave stand as -999."""
    tables_not_stepped(loop)

    def lose(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.where(torch.rand(len(y)) < 1 / 400, -999.0, y)

    loop.replace_batches(lose)


FAULTS = (
    Kind(
        "silent-encoder-and-endless-warmup",
        silent_encoder_and_endless_warmup,
        on=("translate",),
        right=(*UNMOVED, "detached-graph"),
        also=(*UNSTABLE, "lr-too-high", "schedule-error", "schedule-anomaly"),
        cause=("detached-graph", "lr-too-high", "schedule-error"),
        secondary=(*SEEN, "multiple-pathologies"),
    ),
    Kind(
        "frozen-weights-and-a-blank-picture",
        frozen_weights_and_a_blank_picture,
        on=("patches",),
        right=(*UNMOVED, "frozen-by-mistake"),
        also=("nan-or-inf", "nan-in-data", "numeric-precision", "input-anomaly", "bad-batch"),
        cause=("frozen-by-mistake", "nan-in-data", "numeric-precision", "bad-batch"),
        secondary=(*SEEN, "multiple-pathologies", "insufficient-capacity"),
    ),
    Kind(
        "eval-normalization-and-hasty-plateau",
        eval_normalization_and_hasty_plateau,
        on=("table",),
        right=("wrong-mode", "eval-mode-in-training", "batchnorm-misuse", "input-anomaly", "unnormalized-inputs"),
        also=("schedule-error", "schedule-anomaly", "learning-rate-vanished"),
        cause=("eval-mode-in-training", "batchnorm-misuse", "unnormalized-inputs", "schedule-error"),
        secondary=(*SEEN, "multiple-pathologies", "unexpected-initial-loss", "lr-too-low"),
    ),
    Kind(
        "unstepped-tables-and-missing-ratings",
        unstepped_tables_and_missing_ratings,
        on=("ratings",),
        right=(*UNMOVED, "frozen-by-mistake", "parameters-not-in-optimizer"),
        also=("target-anomaly", "bad-batch", "unnormalized-targets", "loss-spike", "gradient-explosion"),
        secondary=(*SEEN, "multiple-pathologies", "clip-missing", "train-val-mismatch", "insufficient-capacity"),
    ),
)
