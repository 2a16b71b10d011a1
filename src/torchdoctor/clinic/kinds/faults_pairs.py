"""Two things wrong at once: one must not hide the other."""

from __future__ import annotations

from torchdoctor.clinic.kinds.faults_data import same_batch_again
from torchdoctor.clinic.kinds.faults_loop import (
    eval_from_the_start,
    frozen_by_mistake,
    head_only_in_optimizer,
    missing_zero_grad,
)
from torchdoctor.clinic.kinds.faults_loss import softmax_in_forward
from torchdoctor.clinic.kinds.faults_numbers import AT, RUIN, nan_in_a_batch
from torchdoctor.clinic.kinds.faults_steps import clip_too_tight, lr_jump
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop


def eval_and_no_zero_grad(loop: Loop) -> None:
    """The model is in eval mode, and gradients are never cleared."""
    eval_from_the_start(loop)
    missing_zero_grad(loop)


def frozen_and_nan(loop: Loop) -> None:
    """A layer was frozen by mistake, and later a batch holds NaN."""
    frozen_by_mistake(loop)
    nan_in_a_batch(loop)


def softmax_and_head_only(loop: Loop) -> None:
    """A softmax before cross-entropy, and an optimizer that holds the last layer only."""
    softmax_in_forward(loop)
    head_only_in_optimizer(loop)


def same_batch_and_tight_clip(loop: Loop) -> None:
    """The same batch at every step, and steps that clipping cuts to nothing."""
    same_batch_again(loop)
    clip_too_tight(loop)


def frozen_and_lr_jump(loop: Loop) -> None:
    """A layer was frozen by mistake, and later the learning rate is set a hundred times too high."""
    frozen_by_mistake(loop)
    lr_jump(loop)


HIDDEN = (*STALLED, *UNSTABLE, *SIGNAL, *GENERALIZATION)

FAULTS = (
    Kind(
        "eval-and-no-zero-grad",
        eval_and_no_zero_grad,
        on=("batchnorm", "dropout-mlp"),
        right=("wrong-mode", "eval-mode-in-training"),
        also=("gradients-not-cleared", "missing-zero-grad"),
        cause=("eval-mode-in-training", "missing-zero-grad"),
        secondary=HIDDEN,
    ),
    Kind(
        "frozen-layer-and-nan",
        frozen_and_nan,
        on=("mlp", "cnn"),
        right=("nan-or-inf", "nan-in-data", "input-anomaly"),
        also=("frozen-by-mistake", *UNMOVED),
        cause=("nan-in-data", "bad-batch", "frozen-by-mistake"),
        secondary=(*RUIN, *HIDDEN),
        onset=AT,
    ),
    Kind(
        "softmax-with-head-only",
        softmax_and_head_only,
        on=("mlp", "cnn"),
        right=("suspicious-loss", "loss-misuse"),
        also=("parameters-not-in-optimizer", "frozen-weights"),
        cause=("loss-misuse", "parameters-not-in-optimizer"),
        secondary=(*HIDDEN, *UNMOVED),
    ),
    Kind(
        "same-batch-and-tight-clip",
        same_batch_and_tight_clip,
        on=("mlp", "cnn"),
        right=("batch-anomaly", "repeated-batch"),
        also=("clipping-anomaly", "clip-too-tight", "slow-learning", "not-learning", "update-ratio-abnormal"),
        cause=("repeated-batch", "clip-too-tight"),
        secondary=HIDDEN,
    ),
    Kind(
        "frozen-layer-and-lr-jump",
        frozen_and_lr_jump,
        on=("mlp", "cnn"),
        right=("lr-too-high", "schedule-error", *UNSTABLE),
        also=("frozen-by-mistake", *UNMOVED),
        cause=("lr-too-high", "schedule-error", "frozen-by-mistake"),
        secondary=(*RUIN, *HIDDEN, "schedule-anomaly"),
        onset=AT,
    ),
)
