"""Faults of the loop that people reported, and what looks like them: averages, schedules, optimizers, BatchNorm."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

REPLACED = ("state-overwritten", "resume-error", "loss-spike", "loss-divergence", "loss-oscillation")
"""What it looks like when somebody exchanges the weights."""


def _average(loop: Loop, rate: float) -> nn.Module:
    """A running average of the weights, taken after every step."""
    average = copy.deepcopy(loop.model)

    @torch.no_grad()
    def apply(optimizer: Optimizer) -> None:
        optimizer.step()
        for mean, tensor in zip(average.parameters(), loop.model.parameters(), strict=True):
            mean.lerp_(tensor, rate)

    loop.apply = apply
    return average


def _lend(model: nn.Module, other: nn.Module) -> dict[str, Any]:
    kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(other.state_dict())
    return kept


def average_not_restored(loop: Loop) -> None:
    """Averaged weights are put in for each validation, and stay."""
    average, inner = _average(loop, 0.001), loop.validate
    loop.validate_every = 100

    def validate() -> float:
        _lend(loop.model, average)
        return inner()

    loop.validate = validate


def average_restored(loop: Loop) -> None:
    """Averaged weights are put in for each validation, and taken out again."""
    average, inner = _average(loop, 0.05), loop.validate

    def validate() -> float:
        kept = _lend(loop.model, average)
        loss = inner()
        loop.model.load_state_dict(kept)
        return loss

    loop.validate = validate


def first_checkpoint_loaded(loop: Loop) -> None:
    """After a while the weights of the first step are loaded, in place of the best ones."""
    loop.constant()
    first = copy.deepcopy(loop.model.state_dict())
    loop.events[150] = lambda: _nothing(loop.model.load_state_dict(first))


def one_cycle_per_epoch(loop: Loop) -> None:
    """A one-cycle that counts batches is stepped once an epoch."""
    loop.use("adamw")
    epoch = 25
    loop.schedule = lambda optimizer: OneCycleLR(
        optimizer, max_lr=optimizer.param_groups[0]["lr"], total_steps=loop.steps // epoch * epoch
    )
    loop.advance = lambda scheduler, step: scheduler.step() if (step + 1) % epoch == 0 else None


def plateau_mode_max(loop: Loop) -> None:
    """A schedule that waits for a plateau takes a loss that falls for a score that does."""
    loop.use("sgd")
    loop.clip = None
    loop.validate_every = 25
    loop.schedule = lambda optimizer: ReduceLROnPlateau(optimizer, mode="max", patience=1)

    def advance(scheduler: Any, step: int) -> None:
        if step % 25 == 0 and loop.validations:
            scheduler.step(loop.validations[-1][1])

    loop.advance = advance


def betas_in_the_wrong_order(loop: Loop) -> None:
    """Adam's two betas are given the other way round."""
    loop.constant()
    loop.use("adam", betas=(0.999, 0.9))


def batchnorm_remembers_one_batch(loop: Loop) -> None:
    """BatchNorm's momentum is written as another framework counts it: small batches, and the last one decides."""
    for module in loop.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = loop.dice.choice([0.99, 0.999])
    loop.arena.batch_size = 8
    loop.batches = loop.arena.batches()


def unfrozen_but_not_in_optimizer(loop: Loop) -> None:
    """The first layers are unfrozen after a while, and the optimizer was built of the others."""
    loop.constant()
    trunk = list(loop.model.parameters())[:-2]
    for tensor in trunk:
        tensor.requires_grad_(False)
    loop.parameters = lambda: [tensor for tensor in loop.model.parameters() if tensor.requires_grad]

    def thaw() -> None:
        for tensor in trunk:
            tensor.requires_grad_(True)

    loop.events[100] = thaw


def _nothing(_: Any) -> None:
    pass


FAULTS = (
    Kind(
        "ema-weights-not-restored",
        average_not_restored,
        on=("mlp", "transformer"),
        right=REPLACED,
        cause=("resume-error",),
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION),
        onset=100,
    ),
    Kind(
        "wrong-checkpoint-loaded",
        first_checkpoint_loaded,
        on=("cnn", "gru-text"),
        right=REPLACED,
        cause=("resume-error",),
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION),
        onset=150,
    ),
    Kind(
        "one-cycle-per-epoch",
        one_cycle_per_epoch,
        on=("mlp", "resnet"),
        right=("schedule-anomaly", "schedule-error"),
        cause=("schedule-error",),
        secondary=STALLED,
    ),
    Kind(
        "plateau-mode-max",
        plateau_mode_max,
        on=("mlp", "cnn"),
        right=("schedule-anomaly", "schedule-error", "learning-rate-vanished"),
        cause=("schedule-error",),
        secondary=STALLED,
        onset=75,
    ),
    Kind(
        "betas-in-the-wrong-order",
        betas_in_the_wrong_order,
        on=("transformer", "autoencoder"),
        right=("optimizer-advice", "optimizer-misconfigured"),
        cause=("optimizer-misconfigured",),
        secondary=(*UNSTABLE, *STALLED, *SIGNAL, *GENERALIZATION),
    ),
    Kind(
        "batchnorm-remembers-one-batch",
        batchnorm_remembers_one_batch,
        on=("batchnorm",),
        right=("small-normalization-batch", "batchnorm-misuse"),
        cause=("batchnorm-misuse",),
        secondary=(*GENERALIZATION, "dead-units"),
    ),
    Kind(
        "unfrozen-but-not-in-optimizer",
        unfrozen_but_not_in_optimizer,
        on=("mlp", "cnn"),
        right=(*UNMOVED, "parameters-not-in-optimizer"),
        cause=("parameters-not-in-optimizer",),
        secondary=(*STALLED, "gradients-not-cleared"),
        onset=100,
    ),
)
HEALTHY = (Kind("averaged-weights-put-back", average_restored, on=("mlp", "batchnorm", "transformer")),)
