"""Faults of the steps: rates, warm-ups, schedules, clipping, momentum, decay, the choice of the optimizer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, warmup

TOO_LARGE = (*UNSTABLE, "lr-too-high")
TOO_SMALL = (*STALLED, "lr-too-low")


def scaled_for_a_cluster(loop: Loop) -> None:
    """The rate is multiplied by the number of workers of a cluster, on one machine."""
    loop.constant()
    loop.use("adam", 100.0)
    loop.schedule = warmup(10)


def warmup_without_end(loop: Loop) -> None:
    """The rate is raised in proportion to the step, and nothing ends the warm-up."""
    loop.constant()
    loop.use("adam")
    count = iter(range(10**9))

    def apply(optimizer: Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = loop.arena.adam * (next(count) + 1) / 10
        optimizer.step()

    loop.apply = apply


def warmup_of_another_run(loop: Loop) -> None:
    """The warm-up of a run a hundred times as long: this one ends before its rate is a hundredth of what was asked."""
    loop.constant()
    loop.schedule = warmup(40_000)


def plateau_of_each_batch(loop: Loop) -> None:
    """A schedule that waits for a plateau is asked after each batch, with the loss of that batch."""
    loop.constant()
    loop.schedule = lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.2, patience=3)

    def advance(scheduler: Any, step: int) -> None:
        scheduler.step(loop.losses[-1])

    loop.advance = advance


def clipped_before_unscaled(loop: Loop) -> None:
    """Gradients are clipped while they still bear the scaler's factor of 65,536, which is taken out afterwards."""
    loop.constant()
    loop.use("sgd")
    scaler = torch.amp.GradScaler("cpu", init_scale=65_536.0)
    loop.backward = lambda loss: backward(scaler.scale(loss))

    def apply(optimizer: Optimizer) -> None:
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    loop.apply = apply


def dampened(loop: Loop) -> None:
    """SGD's dampening is taken for another name of momentum: each gradient counts for a hundredth."""
    loop.constant()
    loop.use("sgd", dampening=0.99)


def penalty_of_the_wrong_sign(loop: Loop) -> None:
    """The penalty on large weights is subtracted from the loss."""
    loop.constant()
    loop.use("adam")
    inner = loop.forward

    def forward(x: Tensor, y: Tensor) -> Tensor:
        loss = inner(x, y)
        if torch.is_grad_enabled():
            for tensor in loop.model.parameters():
                loss = loss - 0.01 * tensor.pow(2).sum()
        return loss

    loop.forward = forward


def decay_without_the_rate(loop: Loop) -> None:
    """Weight decay is written by hand after the step, and is not multiplied by the rate."""

    @torch.no_grad()
    def apply(optimizer: Optimizer) -> None:
        optimizer.step()
        for tensor in loop.model.parameters():
            tensor.mul_(1 - 0.05)

    loop.apply = apply


def adadelta_at_adams_rate(loop: Loop) -> None:
    """Adadelta takes Adam's place, and its rate: a thousandth of what it needs."""
    loop.constant()
    loop.make_optimizer = partial(torch.optim.Adadelta, lr=1e-3)


def rmsprop_with_momentum(loop: Loop) -> None:
    """RMSprop at Adam's rate with a momentum of 0.99: steps a hundred times as long."""
    loop.constant()
    loop.make_optimizer = partial(torch.optim.RMSprop, lr=loop.arena.adam, momentum=0.99)


def decay_above_one(loop: Loop) -> None:
    """The rate is multiplied by ten where it should be divided by ten."""
    loop.constant()
    loop.use("adam")
    loop.schedule = lambda optimizer: StepLR(optimizer, step_size=100, gamma=10)


FAULTS = (
    Kind(
        "scaled-for-a-cluster",
        scaled_for_a_cluster,
        on=("patches", "diffusion"),
        right=TOO_LARGE,
        cause=("lr-too-high",),
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION),
    ),
    Kind(
        "warmup-without-end",
        warmup_without_end,
        on=("decoder", "tags"),
        right=(*TOO_LARGE, "schedule-error", "schedule-anomaly"),
        cause=("lr-too-high", "schedule-error"),
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION),
        onset=60,
    ),
    Kind(
        "warmup-of-another-run",
        warmup_of_another_run,
        on=("patches", "forecast"),
        right=(*TOO_SMALL, "schedule-error", "schedule-anomaly"),
        cause=("lr-too-low", "schedule-error"),
        secondary=("stopped-too-early",),
    ),
    Kind(
        "plateau-of-each-batch",
        plateau_of_each_batch,
        on=("graph", "diffusion"),
        right=("schedule-error", "schedule-anomaly", "learning-rate-vanished"),
        cause=("schedule-error",),
        secondary=(*TOO_SMALL, "stopped-too-early"),
        onset=40,
    ),
    Kind(
        "clipped-before-unscaled",
        clipped_before_unscaled,
        on=("unet", "tags"),
        right=("clipping-anomaly", "clip-too-tight", *TOO_SMALL, "gradient-vanishing", "numeric-precision"),
        cause=("clip-too-tight", "numeric-precision"),
        secondary=("frozen-weights", "skipped-steps"),
    ),
    Kind(
        "dampened",
        dampened,
        on=("forecast", "translate"),
        right=("optimizer-advice", "optimizer-misconfigured", *TOO_SMALL),
        cause=("optimizer-misconfigured", "lr-too-low"),
        secondary=("stopped-too-early",),
    ),
    Kind(
        "penalty-of-the-wrong-sign",
        penalty_of_the_wrong_sign,
        on=("tags", "quantiles"),
        right=(*UNSTABLE, "loss-misuse", "suspicious-loss", "suspiciously-low-loss"),
        cause=("loss-misuse",),
        secondary=(*GENERALIZATION, *SIGNAL, "lr-too-high", "train-val-mismatch"),
    ),
    Kind(
        "decay-without-the-rate",
        decay_without_the_rate,
        on=("decoder", "graph"),
        right=("state-overwritten", "over-regularized", "optimizer-misconfigured", *STALLED, "collapsed-output"),
        cause=("over-regularized", "optimizer-misconfigured"),
        secondary=(*SIGNAL, "insufficient-capacity"),
    ),
    Kind(
        "adadelta-at-adams-rate",
        adadelta_at_adams_rate,
        on=("graph", "counts"),
        right=(*TOO_SMALL, "optimizer-misconfigured", "optimizer-advice"),
        cause=("lr-too-low", "optimizer-misconfigured"),
        secondary=("stopped-too-early",),
    ),
    Kind(
        "rmsprop-with-momentum",
        rmsprop_with_momentum,
        on=("quantiles", "two-heads"),
        right=(*TOO_LARGE, "optimizer-misconfigured", "optimizer-advice"),
        cause=("lr-too-high", "optimizer-misconfigured"),
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION),
    ),
    Kind(
        "decay-above-one",
        decay_above_one,
        on=("two-heads", "triplet"),
        right=(*TOO_LARGE, "schedule-error", "schedule-anomaly"),
        cause=("lr-too-high", "schedule-error"),
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION),
        onset=100,
    ),
)
