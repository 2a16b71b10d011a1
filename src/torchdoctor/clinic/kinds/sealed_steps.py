"""Sealed: rates, schedules, optimizers, limits and what else decides how far a step goes."""

from __future__ import annotations

import copy
import math
from collections import deque
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, LRScheduler, OneCycleLR
from torch.optim.swa_utils import SWALR

from torchdoctor.clinic.kinds.kind import SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward, cosine


def rate_where_the_finder_stopped(loop: Loop) -> None:
    """A range test raises the rate until the loss is four times the first, and that is the rate taken."""
    trial = copy.deepcopy(loop.model)
    optimizer = SGD(trial.parameters(), lr=loop.arena.sgd / 100, momentum=0.9)
    first = math.inf
    for _, (x, y) in zip(range(150), loop.arena.batches(), strict=False):
        loss = loop.loss_of(trial(x), y)
        first = min(first, 4 * loss.item())
        if not loss.item() < first:
            break
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 1.15
    loop.use("sgd", lr=optimizer.param_groups[0]["lr"])
    loop.constant()


def rate_and_decay_swapped(loop: Loop) -> None:
    """Two numbers of the configuration are swapped: the rate is 1e-4, and the weight decay is the rate."""
    loop.use("sgd", lr=1e-4, weight_decay=loop.arena.sgd)
    loop.constant()


def schedule_made_each_epoch(loop: Loop) -> None:
    """A cycle over sixty epochs is made inside the loop over epochs: each begins it anew, at the bottom."""
    loop.use("sgd")
    loop.clip = None
    current: list[LRScheduler] = []

    def cycle(optimizer: Optimizer) -> LRScheduler:
        total = 60 * loop.arena.epoch
        current[:] = [OneCycleLR(optimizer, max_lr=loop.arena.sgd, total_steps=total, div_factor=100.0)]
        return current[0]

    def advance(scheduler: LRScheduler, step: int) -> None:
        current[0].step()
        if (step + 1) % loop.arena.epoch == 0:
            cycle(scheduler.optimizer)

    loop.schedule, loop.advance = cycle, advance


def warmup_in_whole_numbers(loop: Loop) -> None:
    """The warm-up divides the step by its own length without a remainder: nothing, until 600 steps have gone by."""
    loop.schedule = lambda optimizer: LambdaLR(optimizer, lambda step: min(step // 600, 1))


def averaged_at_another_rate(loop: Loop) -> None:
    """At step 150 averaging begins, with the rate that stands in its documentation, which is one for SGD."""
    loop.use("adam")
    loop.clip = None
    loop.schedule = lambda optimizer: LambdaLR(optimizer, lambda step: 1.0)
    averaging: list[SWALR] = []

    def advance(scheduler: LRScheduler, step: int) -> None:
        if step < 150:
            scheduler.step()
            return
        if not averaging:
            averaging.append(SWALR(scheduler.optimizer, swa_lr=0.05, anneal_epochs=5))
        averaging[0].step()

    loop.advance = advance


def cycle_too_wide(loop: Loop) -> None:
    """The rate goes up and down between what suits the net and sixty times as much."""
    loop.use("sgd")
    loop.clip = None
    low = loop.arena.sgd
    loop.schedule = lambda optimizer: CyclicLR(optimizer, low, 60 * low, step_size_up=40, cycle_momentum=False)


def base_rate_of_another_run(loop: Loop) -> None:
    """At step 180 the schedule's state is loaded, and with it the base rate of a run with another optimizer."""
    loop.use("adam")
    loop.clip = None
    schedules: list[Any] = []

    def build(optimizer: Optimizer) -> LRScheduler:
        schedules.append(cosine(loop.steps, 20, floor=0.1)(optimizer))
        made: LRScheduler = schedules[-1]
        return made

    def load() -> None:
        state = schedules[0].state_dict()
        schedules[0].load_state_dict({**state, "base_lrs": [0.5]})

    loop.schedule, loop.events[179] = build, load


def quasi_newton_on_batches(loop: Loop) -> None:
    """LBFGS, which takes the difference of two gradients for curvature, is given another small batch each time."""
    loop.arena.batch_size = 16

    def run(watch: Watch) -> None:
        optimizer = torch.optim.LBFGS(loop.model.parameters(), lr=1.0, max_iter=4, history_size=20)
        loop.optimizer = optimizer
        loop.doctor = watch(loop.model, optimizer, loss_fn=loop.loss_fn)
        for step in range(200):
            x, y = next(loop.batches)

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = loop.forward(x, y)
                backward(loss)
                return loss

            loop.log(torch.as_tensor(optimizer.step(closure)))  # type: ignore[no-untyped-call]
            if (step + 1) % 50 == 0:
                loop.log_validation(step, loop.validate())

    loop.run = run


def trust_in_nothing(loop: Loop) -> None:
    """Each tensor moves by a share of its own length, and the head begins at zero: a share of that is nothing."""
    loop.use("plain-sgd", lr=0.02)
    loop.constant()
    head = [m for m in loop.model.modules() if isinstance(m, nn.Linear)][-1]
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)

    def apply(optimizer: Optimizer) -> None:
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(parameter.detach().norm() / (parameter.grad.norm() + 1e-9))
        optimizer.step()

    loop.apply = apply


def limit_fed_by_what_it_cut(loop: Loop) -> None:
    """Gradients are clipped to nine tenths of their mean length so far, which is that of the clipped ones."""
    loop.use("sgd")
    loop.constant()
    mean: list[float] = []

    def apply(optimizer: Optimizer) -> None:
        norm = float(nn.utils.clip_grad_norm_(loop.model.parameters(), 0.9 * mean[0] if mean else math.inf))
        kept = min(norm, 0.9 * mean[0]) if mean else norm
        mean[:] = [0.6 * mean[0] + 0.4 * kept if mean else norm]
        optimizer.step()

    loop.apply = apply


def clip_given_nothing(loop: Loop) -> None:
    """`clip_grad_norm_` is given the generator that the optimizer has used up; one target in two hundred is absurd."""
    loop.use("sgd")
    loop.constant()
    used_up = loop.model.parameters()
    loop.parameters = lambda: used_up
    absurd = torch.rand(len(loop.arena.y)) < 0.005
    loop.arena.y = loop.arena.y + 80 * absurd.to(loop.arena.y.device).view(-1, *[1] * (loop.arena.y.dim() - 1))

    def apply(optimizer: Optimizer) -> None:
        nn.utils.clip_grad_norm_(list(used_up), 1.0)
        optimizer.step()

    loop.apply = apply


def dropout_without_a_ceiling(loop: Loop) -> None:
    """Dropout is raised by a tenth every 25 steps, against overfitting, and nothing stops it at one half."""

    def raised() -> None:
        for module in loop.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = min(module.p + 0.1, 1.0)

    for step in range(50, loop.steps, 25):
        loop.events[step] = raised


def gradients_from_a_queue(loop: Loop) -> None:
    """Gradients go through a queue between two processes that is never emptied: each is twenty steps old when used."""
    loop.use("sgd")
    loop.constant()
    queue: deque[list[Tensor]] = deque()

    def apply(optimizer: Optimizer) -> None:
        parameters = [p for p in loop.model.parameters() if p.grad is not None]
        queue.append([p.grad.clone() for p in parameters if p.grad is not None])
        if len(queue) > 20:
            for parameter, gradient in zip(parameters, queue.popleft(), strict=True):
                parameter.grad = gradient
            optimizer.step()

    loop.apply = apply


AFTERMATH = ("multiple-pathologies", "dead-units", "saturated-activations", "collapsed-output", "validation-anomaly")
SCHEDULE = ("schedule-error", "schedule-anomaly")
sealed = partial(Kind, held_out=True)

FAULTS: tuple[Kind, ...] = (
    sealed(
        "rate-where-the-finder-stopped",
        rate_where_the_finder_stopped,
        on=("boxes", "passages"),
        right=("lr-too-high", "dead-units", *UNSTABLE),
        cause=("lr-too-high",),
        secondary=(*AFTERMATH, *SIGNAL, *STALLED),
    ),
    sealed(
        "rate-and-decay-swapped",
        rate_and_decay_swapped,
        on=("burgers",),
        right=("lr-too-low", "optimizer-misconfigured", "optimizer-advice", *STALLED),
        cause=("lr-too-low", "optimizer-misconfigured"),
    ),
    sealed(
        "schedule-made-each-epoch",
        schedule_made_each_epoch,
        on=("molecules",),
        right=(*SCHEDULE, "lr-too-low", *STALLED),
        cause=("schedule-error", "lr-too-low"),
    ),
    sealed(
        "warmup-in-whole-numbers",
        warmup_in_whole_numbers,
        on=("trips",),
        right=(*SCHEDULE, "lr-too-low", "frozen-weights", *STALLED),
        cause=("schedule-error", "lr-too-low"),
    ),
    sealed(
        "averaged-at-another-rate",
        averaged_at_another_rate,
        on=("glu-text",),
        right=(*SCHEDULE, "lr-too-high", *UNSTABLE),
        cause=("lr-too-high", "schedule-error"),
        secondary=AFTERMATH,
        onset=150,
    ),
    sealed(
        "cycle-too-wide",
        cycle_too_wide,
        on=("boxes", "trips"),
        right=(*SCHEDULE, "lr-too-high", *UNSTABLE),
        cause=("lr-too-high", "schedule-error"),
        secondary=(*AFTERMATH, *SIGNAL, *STALLED),
    ),
    sealed(
        "base-rate-of-another-run",
        base_rate_of_another_run,
        on=("glu-text", "heartbeats"),
        right=(*SCHEDULE, "lr-too-high", "resume-error", *UNSTABLE),
        cause=("lr-too-high", "schedule-error", "resume-error"),
        secondary=AFTERMATH,
        onset=180,
        acute=True,
    ),
    sealed(
        "quasi-newton-on-batches",
        quasi_newton_on_batches,
        on=("trips",),
        right=("optimizer-misconfigured", "optimizer-advice", "batch-size-unsuited", "lr-too-high", *UNSTABLE),
        cause=("optimizer-misconfigured", "batch-size-unsuited", "lr-too-high"),
        secondary=("batch-size-advice", *AFTERMATH),
    ),
    sealed(
        "trust-in-nothing",
        trust_in_nothing,
        on=("boxes", "passages"),
        right=("optimizer-misconfigured", "bad-initialization", *UNMOVED, *SIGNAL, *STALLED),
        cause=("optimizer-misconfigured", "bad-initialization"),
    ),
    sealed(
        "limit-fed-by-what-it-cut",
        limit_fed_by_what_it_cut,
        on=("leaves", "trips"),
        right=("clip-too-tight", "clipping-anomaly", "gradient-vanishing", *STALLED),
        cause=("clip-too-tight",),
    ),
    sealed(
        "clip-given-nothing",
        clip_given_nothing,
        on=("weather",),
        right=("clip-missing", "clipping-anomaly", "bad-batch", "target-anomaly", *UNSTABLE),
        cause=("clip-missing", "bad-batch"),
        secondary=(*AFTERMATH, *STALLED),
    ),
    sealed(
        "dropout-without-a-ceiling",
        dropout_without_a_ceiling,
        on=("passages", "weather"),
        right=("over-regularized", "collapsed-output", "loss-divergence", "dead-units", "no-gradient", *STALLED),
        cause=("over-regularized",),
        secondary=("validation-anomaly", "gradient-vanishing", "multiple-pathologies", "frozen-weights"),
        onset=150,
    ),
    sealed("gradients-from-a-queue", gradients_from_a_queue, on=("burgers",), right=UNSTABLE, secondary=AFTERMATH),
)
