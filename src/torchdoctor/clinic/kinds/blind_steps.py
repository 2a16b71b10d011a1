"""Sealed: optimizers, rates, schedules and clipping that make too long, too short or wrong steps."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from torchdoctor.clinic.kinds.kind import STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, cosine, warmup


def lambda_returns_the_rate(loop: Loop) -> None:
    """The function of `LambdaLR` returns the rate itself, which is multiplied by the rate again."""
    loop.use("adamw")
    rate = loop.arena.adam
    loop.schedule = lambda optimizer: LambdaLR(optimizer, lambda step: rate * min((step + 1) / 20, 1.0))


def rate_below_zero(loop: Loop) -> None:
    """A line from one to zero over 200 steps is not held at zero: the rate goes on below it."""
    loop.use("adam")
    loop.clip = None
    loop.schedule = lambda optimizer: LambdaLR(optimizer, lambda step: 1 - step / 200)


def optimizer_rebuilt(loop: Loop) -> None:
    """After the schedule has set its first, tiny rate the optimizer is made anew; only the old one's rate rises."""
    loop.use("adamw")
    rise = warmup(5000)

    def schedule(optimizer: Optimizer) -> LRScheduler:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        old = torch.optim.AdamW(parameters, lr=loop.arena.adam)
        scheduler = rise(old)
        old.step()
        for group in optimizer.param_groups:
            group["lr"] = old.param_groups[0]["lr"]
        return scheduler

    loop.schedule = schedule


def schedule_resumed_in_samples(loop: Loop) -> None:
    """At step 120 the run is resumed, and the schedule is set to the number of samples seen, not of steps."""
    loop.use("adamw")
    length = loop.steps + 300
    held: list[LRScheduler] = []

    def schedule(optimizer: Optimizer) -> LRScheduler:
        held.append(cosine(length, 10, floor=1e-4)(optimizer))
        return held[0]

    def resume() -> None:
        held[0].load_state_dict({**held[0].state_dict(), "last_epoch": 120 * loop.arena.batch_size})

    loop.schedule = schedule
    loop.events[120] = resume


def sgd_at_adams_rate(loop: Loop) -> None:
    """AdamW is replaced by plain SGD, and its rate stays."""
    loop.use("plain-sgd", lr=loop.arena.adam)
    loop.constant()


def rprop_on_small_batches(loop: Loop) -> None:
    """Rprop, which is made for whole data sets, on small batches: signs disagree, and steps shrink to nothing."""
    rate = loop.arena.adam / 3
    loop.make_optimizer = lambda parameters: torch.optim.Rprop(parameters, lr=rate)
    loop.constant()
    loop.arena.batch_size = 8


def maximize_left_on(loop: Loop) -> None:
    """The optimizer comes from a script that climbed a reward, with `maximize=True`."""
    loop.use("adam", 0.5, maximize=True)


def group_rate_typo(loop: Loop) -> None:
    """The group of all but the head has a rate of 1e-8, typed for 1e-3."""
    loop.use("adam")
    loop.schedule = None

    def groups() -> list[dict[str, object]]:
        head = {id(p) for p in loop.model.get_submodule("head").parameters()}
        trunk = [p for p in loop.model.parameters() if id(p) not in head]
        return [{"params": trunk, "lr": 1e-8}, {"params": loop.model.get_submodule("head").parameters()}]

    loop.parameters = groups


def decay_ramped(loop: Loop) -> None:
    """Weight decay is to rise from 0.04 to 0.4 along half a cosine, and rises to 200."""
    loop.use("adamw", weight_decay=0.04)
    loop.constant()
    step = 0

    def apply(optimizer: Optimizer) -> None:
        nonlocal step
        share = 0.5 * (1 - math.cos(math.pi * min(step / loop.steps, 1)))
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.04 + share * 200
        optimizer.step()
        step += 1

    loop.apply = apply


def perturbation_not_taken_back(loop: Loop) -> None:
    """SAM looks a little uphill for its gradient, and never takes the weights back down."""

    def uphill(loss: Tensor) -> None:
        backward(loss)
        with torch.no_grad():
            given = [p for p in loop.model.parameters() if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in given if p.grad is not None]).norm()
            for parameter in given:
                assert parameter.grad is not None
                parameter.add_(parameter.grad * (0.1 / (norm + 1e-12)))

    loop.backward = uphill


def privacy_noise_too_loud(loop: Loop) -> None:
    """The noise that is to hide single samples is added to the mean gradient with the size meant for the sum."""
    loop.use("sgd", 0.5)
    loop.constant()

    def apply(optimizer: Optimizer) -> None:
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad += 0.15 * torch.randn_like(parameter.grad)
        optimizer.step()

    loop.apply = apply


def clip_before_backward(loop: Loop) -> None:
    """Gradients are clipped before the backward pass, when there are none; one sample in two hundred is extreme."""
    loop.use("sgd", 1.0)
    loop.constant()
    loop.zero_first = True
    loop.loss_fn = nn.MSELoss()
    generator = torch.Generator("cpu").manual_seed(loop.seed)
    extreme = torch.rand(len(loop.arena.y), 1, generator=generator, device="cpu") < 0.005
    loop.arena.y = torch.where(extreme.to(loop.arena.y.device), loop.arena.y * 60, loop.arena.y)
    inner = loop.forward

    def forward(x: Tensor, y: Tensor) -> Tensor:
        if loop.model.training:
            nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        return inner(x, y)

    loop.forward = forward


def clip_scales_up(loop: Loop) -> None:
    """Clipping by hand multiplies by limit over norm whatever the norm is: small gradients are made long."""
    loop.use("sgd", 1.0)
    loop.constant()

    def apply(optimizer: Optimizer) -> None:
        given = [p.grad for p in loop.model.parameters() if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in given]).norm()
        for gradient in given:
            gradient.mul_(10.0 / (norm + 1e-6))
        optimizer.step()

    loop.apply = apply


def loss_scale_left_in(loop: Loop) -> None:
    """The loss is multiplied by 1024 for half precision, and nobody divides the gradients again."""
    loop.use("sgd")
    loop.constant()
    loop.backward = lambda loss: backward(loss * 1024)


def eps_of_zero(loop: Loop) -> None:
    """Adam with an eps of zero, and rows of a table that the first batch does not touch: zero by zero."""
    loop.use("adam", eps=0.0)


TOO_LOW = (*STALLED, "lr-too-low", "schedule-error", "schedule-anomaly")

KINDS = (
    Kind(
        "lambda-returns-the-rate",
        lambda_returns_the_rate,
        on=("tallies", "heights"),
        right=TOO_LOW,
        cause=("schedule-error", "lr-too-low"),
    ),
    Kind(
        "rate-below-zero",
        rate_below_zero,
        on=("chirps", "pendulum"),
        right=(*UNSTABLE, "schedule-error", "schedule-anomaly", "optimizer-misconfigured"),
        cause=("schedule-error",),
        secondary=("lr-too-high", "overfitting", "validation-anomaly", "collapsed-output", "learning-rate-vanished"),
        onset=200,
    ),
    Kind(
        "optimizer-rebuilt",
        optimizer_rebuilt,
        on=("solids",),
        right=TOO_LOW,
        cause=("schedule-error", "lr-too-low"),
        secondary=("parameters-not-in-optimizer", "stale-parameters", "optimizer-misconfigured"),
    ),
    Kind(
        "schedule-resumed-in-samples",
        schedule_resumed_in_samples,
        on=("moves",),
        right=(*TOO_LOW, "resume-error"),
        cause=("schedule-error", "resume-error", "lr-too-low"),
        onset=120,
    ),
    Kind(
        "sgd-at-adams-rate",
        sgd_at_adams_rate,
        on=("vitals",),
        right=(*STALLED, "lr-too-low", "optimizer-misconfigured"),
        cause=("lr-too-low", "optimizer-misconfigured"),
        secondary=("collapsed-output", "stopped-too-early", "optimizer-advice", "gradient-vanishing"),
    ),
    Kind(
        "rprop-on-small-batches",
        rprop_on_small_batches,
        on=("clicks",),
        right=(*STALLED, "optimizer-misconfigured", "batch-size-unsuited", "lr-too-low", "frozen-weights"),
        cause=("optimizer-misconfigured", "batch-size-unsuited", "lr-too-low"),
        secondary=("batch-size-advice", "optimizer-advice", "collapsed-output", "gradient-instability"),
    ),
    Kind(
        "maximize-left-on",
        maximize_left_on,
        on=("repaint", "textures"),
        right=(*UNSTABLE, "optimizer-misconfigured", "optimizer-advice", "not-learning"),
        cause=("optimizer-misconfigured", "loss-misuse"),
        secondary=("lr-too-high", "dead-units", "saturated-activations", "validation-anomaly", "collapsed-output"),
    ),
    Kind(
        "group-rate-typo",
        group_rate_typo,
        on=("game-of-life",),
        right=(*STALLED, "frozen-weights", "optimizer-misconfigured", "lr-too-low"),
        cause=("optimizer-misconfigured", "lr-too-low"),
        secondary=("optimizer-advice", "schedule-error"),
    ),
    Kind(
        "decay-ramped",
        decay_ramped,
        on=("strokes",),
        right=("over-regularized", "optimizer-misconfigured", *UNSTABLE, *STALLED, "collapsed-output"),
        cause=("over-regularized", "optimizer-misconfigured"),
        secondary=("gradient-vanishing", "dead-units", "optimizer-advice", "validation-anomaly"),
        onset=50,
    ),
    Kind(
        "perturbation-not-taken-back",
        perturbation_not_taken_back,
        on=("flats",),
        right=(*UNSTABLE, *STALLED, "state-overwritten"),
        secondary=("lr-too-high", "collapsed-output", "dead-units", "saturated-activations", "optimizer-misconfigured"),
    ),
    Kind(
        "privacy-noise-too-loud",
        privacy_noise_too_loud,
        on=("moves",),
        right=(*UNSTABLE, *STALLED, "collapsed-output"),
        secondary=("lr-too-high", "dead-units", "saturated-activations", "optimizer-misconfigured", "clip-missing"),
    ),
    Kind(
        "clip-before-backward",
        clip_before_backward,
        on=("flats",),
        right=("clip-missing", "clipping-anomaly", *UNSTABLE),
        cause=("clip-missing",),
        secondary=(
            "lr-too-high",
            "bad-batch",
            "target-anomaly",
            "unnormalized-targets",
            "validation-anomaly",
            *STALLED,
        ),
    ),
    Kind(
        "clip-scales-up",
        clip_scales_up,
        on=("pendulum", "chirps"),
        right=(*UNSTABLE, *STALLED, "clipping-anomaly", "lr-too-high"),
        cause=("lr-too-high", "optimizer-misconfigured"),
        secondary=("dead-units", "saturated-activations", "collapsed-output", "validation-anomaly"),
    ),
    Kind(
        "loss-scale-left-in",
        loss_scale_left_in,
        on=("game-of-life",),
        right=(*UNSTABLE, "lr-too-high", "numeric-precision", "loss-misuse"),
        cause=("lr-too-high", "numeric-precision", "loss-misuse"),
        secondary=("dead-units", "clip-missing", "collapsed-output", "saturated-activations", *STALLED),
    ),
    Kind(
        "eps-of-zero",
        eps_of_zero,
        on=("chapters",),
        right=("nan-or-inf", "optimizer-misconfigured", "optimizer-advice", "numeric-precision"),
        cause=("optimizer-misconfigured", "numeric-precision"),
    ),
)
FAULTS: tuple[Kind, ...] = tuple(replace(kind) for kind in KINDS)
