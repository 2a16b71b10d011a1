"""Dynamics as people report them: leaps, flipped bits, signs, rates that go the wrong way; and what looks like them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from torchdoctor.clinic.kinds.kind import STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward

AFTERWARDS = (
    *UNSTABLE,
    "dead-units",
    "saturated-activations",
    "collapsed-output",
    "not-learning",
    "loss-plateau",
    "validation-anomaly",
    "gradient-vanishing",
)
"""What a net may look like after one step that was none of its own."""


def recurrent_gradient_leap(loop: Loop) -> None:
    """One gradient comes out twenty times too large, in a net whose norms swing from batch to batch anyway."""
    loop.constant()
    loop.use("plain-sgd", 0.5)

    def leap() -> None:
        loop.backward = once

    def once(loss: Tensor) -> None:
        backward(20 * loss)
        loop.backward = backward

    loop.events[200] = leap


def bit_flipped_in_a_weight(loop: Loop) -> None:
    """A bit in the exponent of one weight flips: it is a million times larger from then on."""
    loop.constant()

    def flip() -> None:
        with torch.no_grad():
            weight = max(loop.model.parameters(), key=lambda tensor: tensor.dim() * tensor.numel())
            weight.view(-1)[loop.dice.randrange(weight.numel())] *= 2.0**20

    loop.events[150] = flip


def likelihood_minimised(loop: Loop) -> None:
    """The mean log-probability of the labels goes into `backward()` without its minus sign."""
    loop.shows_loss_fn = False

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.log_softmax(loop.model(x), 1)[torch.arange(len(y)), y].mean()

    loop.forward = forward


def plateau_upside_down(loop: Loop) -> None:
    """`ReduceLROnPlateau(mode="max")` is fed with a loss: the better it gets, the lower the rate."""
    loop.constant()

    def schedule(optimizer: Optimizer) -> Any:
        return ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=1)

    def advance(scheduler: Any, step: int) -> None:
        if step % 20 == 19:
            scheduler.step(sum(loop.losses[-20:]) / 20)

    loop.schedule, loop.advance = schedule, advance


def adam_moments_shrunk(loop: Loop) -> None:
    """Adam's second moments come back from a checkpoint in another unit, and far too small."""
    loop.constant()
    loop.use("adam")

    def shrink() -> None:
        if loop.optimizer is not None:
            for state in loop.optimizer.state.values():
                state["exp_avg_sq"].mul_(1e-6)

    loop.events[200] = shrink


def exponential_growth(loop: Loop) -> None:
    """`ExponentialLR` with a gamma above one, a slip for its inverse: the rate doubles every fifty steps."""
    loop.constant()
    loop.use("sgd")
    loop.schedule = lambda optimizer: ExponentialLR(optimizer, loop.dice.choice([1.015, 1.02]))


def trunk_unfrozen_later(loop: Loop) -> None:
    """The head is trained alone; half-way the trunk is released, as planned, and the gradient norm rises at once."""
    loop.constant()
    loop.use("adam")
    trunk = list(loop.model.parameters())[:-2]
    for tensor in trunk:
        tensor.requires_grad_(False)

    def release() -> None:
        for tensor in trunk:
            tensor.requires_grad_(True)

    loop.events[loop.steps // 2] = release


def summed_clipped(loop: Loop) -> None:
    """The loss is a sum over the batch, gradients are cut to 1, and the rate is one for steps of that length."""
    loop.use("plain-sgd", lr=0.05)
    loop.schedule, loop.clip = None, 1.0
    loop.loss_fn = lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="sum")
    loop.shows_loss_fn = False


FAULTS = (
    Kind(
        "recurrent-gradient-leap",
        recurrent_gradient_leap,
        on=("rnn", "lstm", "gru-text"),
        right=("gradient-explosion", "loss-spike"),
        secondary=AFTERWARDS,
        onset=200,
        acute=True,
    ),
    Kind(
        "bit-flipped-in-a-weight",
        bit_flipped_in_a_weight,
        on=("batchnorm", "mlp", "transformer"),
        right=("hardware-fault", *UNSTABLE),
        cause=("hardware-fault",),
        secondary=AFTERWARDS,
        onset=150,
    ),
    Kind(
        "likelihood-minimised",
        likelihood_minimised,
        on=("mlp", "cnn"),
        right=("loss-misuse", "suspiciously-low-loss", "suspicious-loss"),
        cause=("loss-misuse",),
        secondary=AFTERWARDS,
    ),
    Kind(
        "plateau-upside-down",
        plateau_upside_down,
        on=("mlp", "cnn", "regression"),
        right=("schedule-error", "schedule-anomaly", "learning-rate-vanished"),
        cause=("schedule-error",),
        secondary=(*STALLED, "frozen-weights"),
        onset=100,
    ),
    Kind(
        "adam-moments-shrunk",
        adam_moments_shrunk,
        on=("mlp", "vae"),
        right=("resume-error", "optimizer-misconfigured", *UNSTABLE),
        cause=("resume-error", "optimizer-misconfigured", "lr-too-high", "hardware-fault"),
        secondary=AFTERWARDS,
        onset=200,
        acute=True,
    ),
    Kind(
        "exponential-growth",
        exponential_growth,
        on=("mlp", "cnn"),
        right=("schedule-error", "lr-too-high", "schedule-anomaly", *UNSTABLE),
        cause=("schedule-error", "lr-too-high"),
        secondary=(*AFTERWARDS, *STALLED),
        onset=150,
    ),
)
HEALTHY = (
    Kind("trunk-unfrozen-later", trunk_unfrozen_later, on=("mlp", "cnn", "resnet")),
    Kind("summed-clipped", summed_clipped, on=("mlp", "cnn")),
)
