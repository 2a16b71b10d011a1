"""Steps that are too long, too short, or come at the wrong time: learning rate, schedule, optimizer, clipping."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, MultiStepLR, StepLR

from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, cosine, warmup

BROKEN = (*UNSTABLE, "dead-units", "saturated-activations", "collapsed-output", "not-learning", "loss-plateau")
"""What a net may look like after steps that were too long."""


def lr_too_high_sgd(loop: Loop) -> None:
    """SGD with a learning rate some tens of times too high."""
    loop.use("sgd", loop.dice.choice([30, 60, 100]))
    loop.constant()


def lr_too_high_adam(loop: Loop) -> None:
    """Adam with a learning rate of 0.3 or more."""
    loop.use("adam", lr=loop.dice.choice([0.3, 0.5, 1.0]))
    loop.constant()


def lr_too_high_after_warmup(loop: Loop) -> None:
    """The rate rises slowly to a peak that the model cannot take."""
    loop.use("adamw", lr=loop.dice.choice([0.3, 0.6]))
    loop.constant()
    loop.schedule = warmup(150)


def lr_jump(loop: Loop) -> None:
    """Half-way the learning rate is set 100 times too high, and left there."""
    loop.constant()
    loop.use("adam")

    def leap() -> None:
        assert loop.optimizer is not None
        for group in loop.optimizer.param_groups:
            group["lr"] *= 100

    loop.events[150] = leap


def lr_too_low_adam(loop: Loop) -> None:
    """Adam with a learning rate of a millionth or less."""
    loop.use("adam", lr=loop.dice.choice([1e-7, 3e-7, 1e-6]))
    loop.constant()


def lr_too_low_sgd(loop: Loop) -> None:
    """SGD with a learning rate a thousand times too low."""
    loop.use("sgd", loop.dice.choice([1e-4, 3e-4]))
    loop.constant()


def step_decay_per_batch(loop: Loop) -> None:
    """`StepLR(30, 0.1)` was meant to count epochs, and is stepped at each batch: the rate is gone in no time."""
    loop.constant()
    loop.schedule = lambda optimizer: StepLR(optimizer, loop.dice.choice([10, 20, 30]), gamma=0.1)


def milestones_per_batch(loop: Loop) -> None:
    """Milestones of epochs (20, 40, 60), reached in as many batches."""
    loop.constant()
    loop.schedule = lambda optimizer: MultiStepLR(optimizer, [20, 40, 60], gamma=0.1)


def exponential_per_batch(loop: Loop) -> None:
    """An exponential decay of 0.9 an epoch, applied at each batch."""
    loop.constant()
    loop.schedule = lambda optimizer: ExponentialLR(optimizer, loop.dice.choice([0.9, 0.93]))


def cosine_over_epochs(loop: Loop) -> None:
    """`CosineAnnealingLR(T_max=10)` with T_max in epochs is stepped at each batch: the rate swings up and down."""
    loop.use("sgd", 3.0)
    loop.constant()
    loop.schedule = lambda optimizer: CosineAnnealingLR(optimizer, 10)


def cosine_too_short(loop: Loop) -> None:
    """The cosine ends at zero after a quarter of the run: its length was counted in something else."""
    loop.constant()
    loop.schedule = cosine(loop.steps // 5, 5)


def schedule_never_stepped(loop: Loop) -> None:
    """A warm-up that begins at a ten-thousandth of the rate, with a scheduler that is never stepped."""
    loop.constant()
    loop.use("adam")
    loop.schedule = lambda optimizer: LinearLR(optimizer, start_factor=1e-4, total_iters=50)
    loop.advance = lambda scheduler, step: None


def warmup_missing(loop: Loop) -> None:
    """A post-norm transformer begins at Adam's full rate, without the warm-up that it needs."""
    loop.use("adam", lr=loop.dice.choice([1e-2, 2e-2]))
    loop.constant()


def clip_too_tight(loop: Loop) -> None:
    """SGD, clipped to a norm so small that every step is cut to nothing."""
    loop.use("sgd")
    loop.schedule = None
    loop.clip = loop.dice.choice([1e-4, 3e-4])


def clip_value_too_tight(loop: Loop) -> None:
    """SGD, with every gradient cut to a millionth."""
    loop.use("sgd")
    loop.constant()
    loop.after_micro = lambda: nn.utils.clip_grad_value_(loop.model.parameters(), 1e-6)


def clip_missing(loop: Loop) -> None:
    """Targets with a heavy tail, squared error, SGD and no clipping: rare huge gradients do damage."""
    heavy_tailed(loop)
    loop.use("sgd")
    loop.constant()


def heavy_tailed(loop: Loop) -> None:
    """Two samples in a thousand have targets some eighty times as large as the others."""
    rare = torch.rand(len(loop.arena.y)) < 2e-3
    loop.arena.y = loop.arena.y.clone()
    loop.arena.y[rare] *= 80


def weight_decay_too_high(loop: Loop) -> None:
    """AdamW with a weight decay of 50 and more: the weights are pulled to zero faster than they learn."""
    loop.use("adamw", weight_decay=loop.dice.choice([50.0, 100.0]))
    loop.constant()


def l2_too_high(loop: Loop) -> None:
    """SGD with an L2 penalty of 1: nothing but zero is worth its price."""
    loop.use("sgd", weight_decay=loop.dice.choice([0.5, 1.0]))
    loop.constant()


def adam_eps_too_large(loop: Loop) -> None:
    """Adam with eps 10, as an option meant for something else: a very slow SGD."""
    loop.use("adam", eps=loop.dice.choice([10.0, 30.0]))
    loop.constant()


def adam_beta1_too_high(loop: Loop) -> None:
    """Adam with beta1 0.999: the momentum remembers the whole run, and swings."""
    loop.use("adam", 20.0, betas=(0.999, 0.999))
    loop.constant()


def adam_beta2_too_low(loop: Loop) -> None:
    """Adam with beta2 0.1 and a rate that only a calm second moment could stand."""
    loop.use("adam", 5.0, betas=(0.9, 0.1))
    loop.constant()


def momentum_too_high(loop: Loop) -> None:
    """SGD with momentum 0.999: steps add up a thousand times over."""
    loop.use("sgd", momentum=0.999)
    loop.constant()


def adam_with_l2(loop: Loop) -> None:
    """`Adam(weight_decay=0.1)` where AdamW was meant: the penalty is divided away by the second moment."""
    loop.use("adam", weight_decay=loop.dice.choice([0.05, 0.1]))


def batch_of_one(loop: Loop) -> None:
    """Batches of one sample, with the learning rate of batches of 64."""
    loop.arena.batch_size = 1
    loop.use("sgd", 4.0)
    loop.constant()


def stopped_too_early(loop: Loop) -> None:
    """The run ends while its loss is falling as fast as ever."""
    loop.use("adam", 0.1)
    loop.constant()
    loop.steps = 150
    loop.validate_every = 25


TOO_HIGH = ("lr-too-high",)

FAULTS = (
    Kind(
        "lr-too-high-sgd",
        lr_too_high_sgd,
        on=("mlp", "cnn", "regression"),
        right=("lr-too-high", *UNSTABLE),
        cause=TOO_HIGH,
        secondary=(*BROKEN, *STALLED, "validation-anomaly", "gradient-vanishing", "frozen-weights", "no-gradient"),
    ),
    Kind(
        "lr-too-high-adam",
        lr_too_high_adam,
        on=("mlp", "transformer", "lstm"),
        right=("lr-too-high", *UNSTABLE),
        cause=TOO_HIGH,
        secondary=(*BROKEN, *STALLED, "validation-anomaly", "gradient-vanishing", "frozen-weights", "no-gradient"),
    ),
    Kind(
        "lr-too-high-after-warmup",
        lr_too_high_after_warmup,
        on=("mlp", "transformer"),
        right=("lr-too-high", *UNSTABLE),
        cause=TOO_HIGH,
        secondary=(*BROKEN, *STALLED, "validation-anomaly", "gradient-vanishing", "frozen-weights", "no-gradient"),
        onset=20,
    ),
    Kind(
        "lr-jump",
        lr_jump,
        on=("mlp", "cnn", "transformer"),
        right=("lr-too-high", "schedule-error", *UNSTABLE),
        cause=("lr-too-high", "schedule-error"),
        secondary=(
            "schedule-anomaly",
            *BROKEN,
            *STALLED,
            "validation-anomaly",
            "gradient-vanishing",
            "frozen-weights",
            "no-gradient",
        ),
        onset=150,
        acute=True,
    ),
    Kind(
        "lr-too-low-adam",
        lr_too_low_adam,
        on=("mlp", "transformer", "cnn"),
        right=("lr-too-low", "slow-learning", "not-learning", "update-ratio-abnormal"),
        cause=("lr-too-low",),
        secondary=STALLED,
    ),
    Kind(
        "lr-too-low-sgd",
        lr_too_low_sgd,
        on=("mlp", "regression"),
        right=("lr-too-low", "slow-learning", "not-learning", "update-ratio-abnormal"),
        cause=("lr-too-low",),
        secondary=STALLED,
    ),
    Kind(
        "step-decay-per-batch",
        step_decay_per_batch,
        on=("mlp", "cnn", "regression"),
        right=("schedule-anomaly", "schedule-error", "learning-rate-vanished", "update-ratio-abnormal", "loss-plateau"),
        cause=("schedule-error",),
        secondary=(*STALLED, "frozen-weights"),
        onset=60,
    ),
    Kind(
        "milestones-per-batch",
        milestones_per_batch,
        on=("resnet", "transformer"),
        right=("schedule-anomaly", "schedule-error", "learning-rate-vanished", "update-ratio-abnormal", "loss-plateau"),
        cause=("schedule-error",),
        secondary=(*STALLED, "frozen-weights"),
        onset=60,
    ),
    Kind(
        "exponential-per-batch",
        exponential_per_batch,
        on=("mlp", "autoencoder"),
        right=("schedule-anomaly", "schedule-error", "learning-rate-vanished", "update-ratio-abnormal", "loss-plateau"),
        cause=("schedule-error",),
        secondary=(*STALLED, "frozen-weights"),
        onset=60,
    ),
    Kind(
        "cosine-over-epochs",
        cosine_over_epochs,
        on=("mlp", "cnn"),
        right=(
            "schedule-anomaly",
            "schedule-error",
        ),
        cause=("schedule-error",),
        secondary=(*UNSTABLE,),
        advice=True,
    ),
    Kind(
        "cosine-too-short",
        cosine_too_short,
        on=("mlp", "transformer", "cnn"),
        right=("schedule-anomaly", "schedule-error", "learning-rate-vanished", "update-ratio-abnormal", "loss-plateau"),
        cause=("schedule-error",),
        secondary=(*STALLED, "frozen-weights"),
        onset=80,
    ),
    Kind(
        "schedule-never-stepped",
        schedule_never_stepped,
        on=("mlp", "transformer"),
        right=(
            "schedule-anomaly",
            "schedule-error",
            "learning-rate-vanished",
            "lr-too-low",
            "slow-learning",
            "not-learning",
            "update-ratio-abnormal",
        ),
        cause=("schedule-error", "lr-too-low"),
        secondary=STALLED,
    ),
    Kind(
        "warmup-missing",
        warmup_missing,
        on=("post-norm",),
        right=("warmup-missing", "lr-too-high", *UNSTABLE, "not-learning", "loss-plateau"),
        cause=("warmup-missing", "lr-too-high"),
        secondary=(*BROKEN, *STALLED, "gradient-vanishing", "validation-anomaly", "frozen-weights"),
    ),
    Kind(
        "clip-too-tight",
        clip_too_tight,
        on=("mlp", "cnn", "gru-text"),
        right=("clipping-anomaly", "clip-too-tight", "slow-learning", "not-learning", "update-ratio-abnormal"),
        cause=("clip-too-tight",),
        secondary=STALLED,
    ),
    Kind(
        "clip-value-too-tight",
        clip_value_too_tight,
        on=("mlp", "regression"),
        right=(
            "clipping-anomaly",
            "clip-too-tight",
            "slow-learning",
            "not-learning",
            "update-ratio-abnormal",
            "lr-too-low",
        ),
        cause=("clip-too-tight", "lr-too-low"),
        secondary=(*STALLED, "gradient-vanishing"),
    ),
    Kind(
        "clip-missing",
        clip_missing,
        on=("regression", "autoencoder"),
        right=("clip-missing", *UNSTABLE),
        cause=("clip-missing", "bad-batch"),
        secondary=("target-anomaly", *STALLED, *GENERALIZATION, "dead-units", "gradient-vanishing", "collapsed-output"),
    ),
    Kind(
        "weight-decay-too-high",
        weight_decay_too_high,
        on=("mlp", "cnn"),
        right=(
            "optimizer-advice",
            "over-regularized",
            "optimizer-misconfigured",
            "collapsed-output",
            "not-learning",
            "underfitting",
        ),
        cause=("over-regularized", "optimizer-misconfigured"),
        secondary=(*STALLED, *UNSTABLE, "collapsed-output", "gradient-vanishing", "dead-units"),
    ),
    Kind(
        "l2-too-high",
        l2_too_high,
        on=("mlp", "cnn", "lstm"),
        right=(
            "optimizer-advice",
            "over-regularized",
            "optimizer-misconfigured",
            "collapsed-output",
            "not-learning",
            "underfitting",
        ),
        cause=("over-regularized", "optimizer-misconfigured"),
        secondary=(*STALLED, *UNSTABLE, "collapsed-output", "gradient-vanishing", "dead-units"),
    ),
    Kind(
        "adam-eps-too-large",
        adam_eps_too_large,
        on=("mlp", "transformer"),
        right=("optimizer-advice", "optimizer-misconfigured", "slow-learning", "not-learning", "update-ratio-abnormal"),
        cause=("optimizer-misconfigured",),
        secondary=STALLED,
    ),
    Kind(
        "adam-beta1-too-high",
        adam_beta1_too_high,
        on=("mlp", "cnn"),
        right=("optimizer-advice", "optimizer-misconfigured", *UNSTABLE),
        cause=("optimizer-misconfigured",),
        secondary=(*BROKEN, *STALLED, *GENERALIZATION, "gradient-vanishing"),
    ),
    Kind(
        "adam-beta2-too-low",
        adam_beta2_too_low,
        on=("mlp", "transformer"),
        right=("optimizer-advice", "optimizer-misconfigured", *UNSTABLE),
        cause=("optimizer-misconfigured",),
        secondary=(*BROKEN, *STALLED, *GENERALIZATION, "gradient-vanishing"),
    ),
    Kind(
        "momentum-too-high",
        momentum_too_high,
        on=("mlp", "regression"),
        right=("optimizer-advice", "optimizer-misconfigured", *UNSTABLE),
        cause=("optimizer-misconfigured",),
        secondary=(*BROKEN, *STALLED, *GENERALIZATION, "gradient-vanishing"),
    ),
    Kind(
        "adam-with-l2",
        adam_with_l2,
        on=("mlp", "transformer"),
        right=("optimizer-advice", "optimizer-misconfigured", "over-regularized"),
        cause=("optimizer-misconfigured", "over-regularized"),
        secondary=(*STALLED, "collapsed-output"),
        advice=True,
    ),
    Kind(
        "batch-of-one",
        batch_of_one,
        on=("mlp", "regression"),
        right=("batch-size-unsuited", "lr-too-high", *UNSTABLE),
        cause=("batch-size-unsuited", "lr-too-high"),
        secondary=(*BROKEN, *STALLED, *GENERALIZATION),
    ),
    Kind(
        "stopped-too-early",
        stopped_too_early,
        on=("mlp", "transformer"),
        right=("stopped-too-early", "slow-learning", "lr-too-low"),
        cause=("stopped-too-early", "lr-too-low"),
        secondary=STALLED,
        advice=True,
    ),
)
