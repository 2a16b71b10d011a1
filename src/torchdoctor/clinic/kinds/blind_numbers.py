"""Sealed: what happens at one step in mid-run, what a checkpoint brings back wrongly, and what numbers cannot hold."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from torchdoctor.clinic.kinds.kind import STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward


def resumed_into_a_new_model(loop: Loop) -> None:
    """At step 250 a checkpoint is loaded with `strict=False`; no name fits, and the model is as new."""
    fresh = copy.deepcopy(loop.model.state_dict())
    for name, tensor in fresh.items():
        if tensor.is_floating_point() and tensor.dim() > 1:
            fresh[name] = tensor.flatten()[torch.randperm(tensor.numel())].view_as(tensor)  # other weights, as usual
    loop.steps = 300

    def load() -> None:
        loop.model.load_state_dict(fresh)

    loop.events[250] = load


def checkpoint_brings_its_rate(loop: Loop) -> None:
    """At step 160 the optimizer's checkpoint is loaded; its groups say 0.3, the rate of another experiment."""
    loop.use("adam")
    loop.constant()

    def load() -> None:
        assert loop.optimizer is not None
        state = loop.optimizer.state_dict()
        groups = [{**group, "lr": 0.3} for group in state["param_groups"]]
        loop.optimizer.load_state_dict({"state": state["state"], "param_groups": groups})

    loop.events[160] = load


def momentum_of_a_summed_run(loop: Loop) -> None:
    """At step 220 SGD's momentum comes back from a run whose loss was summed over batches: it is far too long."""
    loop.use("sgd")
    loop.constant()

    def load() -> None:
        assert loop.optimizer is not None
        for state in loop.optimizer.state.values():
            state["momentum_buffer"].mul_(2000.0)

    loop.events[220] = load


def table_zeroed(loop: Loop) -> None:
    """At step 260 the row of the padding is to be set to zero; the index is missing, and the whole table is."""
    loop.steps = 285

    def write() -> None:
        embedding = loop.model.get_submodule("embed")
        assert isinstance(embedding, nn.Embedding)
        embedding.weight.data[:] = 0

    loop.events[260] = write


def garbage_in_one_gradient(loop: Loop) -> None:
    """At step 180 one processor returns garbage for a block of one layer's gradient."""
    loop.use("sgd")
    loop.constant()
    step = 0

    def apply(optimizer: Optimizer) -> None:
        nonlocal step
        if step == 180:
            matrices = [p for p in loop.model.parameters() if p.dim() > 1 and p.grad is not None]
            gradient = matrices[len(matrices) // 2].grad
            assert gradient is not None
            gradient.flatten(1)[: len(gradient) // 2 + 1] = 3e4
        optimizer.step()
        step += 1

    loop.apply = apply


def penalty_weighs_too_much(loop: Loop) -> None:
    """From step 140 on a penalty on the weights is added, as planned; its factor is 1, for 1e-5."""
    inner = loop.forward
    steps = 0
    loop.constant()

    def forward(x: Tensor, y: Tensor) -> Tensor:
        nonlocal steps
        loss = inner(x, y)
        if not loop.model.training:
            return loss
        steps += 1
        if steps > 140:
            loss = loss + sum(p.pow(2).sum() for p in loop.model.parameters())
        return loss

    loop.forward = forward


def angle_of_parallel_vectors(loop: Loop) -> None:
    """The loss adds the angle between output and target, by `acos`; at step 190 one of them is exactly zero."""
    inner = loop.loss_fn

    def angle(outputs: Tensor, y: Tensor) -> Tensor:
        cosine = (outputs * y).sum(1) / (outputs.norm(dim=1) * y.norm(dim=1)).clamp(min=1e-6)
        return inner(outputs, y) + 0.01 * torch.acos(cosine.clamp(-1, 1)).mean()

    seen = 0

    def record(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal seen
        seen += 1
        if seen == 191:
            with torch.no_grad():
                y = y.clone()
                y[0] = 2 * loop.model(x)[0]  # a label that was made by the model itself
        return x, y

    loop.loss_fn = angle
    loop.shows_loss_fn = False
    loop.replace_batches(record)


def last_batch_of_one(loop: Loop) -> None:
    """Features are divided by their spread within the batch; the last batch of an epoch, at step 210, holds one."""

    def batches(inner: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for number, (x, y) in enumerate(inner):
            if number == 210:
                x, y = x[:1], y[:1]
            yield scaled(x), y

    def scaled(x: Tensor) -> Tensor:
        x = x - x.mean(0)
        return x / (x.pow(2).sum(0) / (len(x) - 1)).sqrt()

    x, y = loop.validated
    loop.batches, loop.validated = batches(loop.batches), (scaled(x), y)


def scaler_hides_a_root(loop: Loop) -> None:
    """A term that keeps weights near their start is a root, of zero at the start: the scaler skips every step."""
    scaler = torch.amp.GradScaler("cpu")
    loop.use("adam")
    loop.constant()
    start = [p.detach().clone() for p in loop.model.parameters()]
    inner = loop.forward

    def forward(x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(loop.model.parameters(), start, strict=True)
        way = torch.stack([(p - old).pow(2).sum() for p, old in pairs]).sum()
        return inner(x, y) + 1e-3 * way.sqrt()

    def apply(optimizer: Optimizer) -> None:
        scaler.step(optimizer)
        scaler.update()

    loop.forward = forward
    loop.backward, loop.apply = lambda loss: backward(scaler.scale(loss)), apply


def saved_in_few_bits(loop: Loop) -> None:
    """Every 40 steps the weights go through a checkpoint of a few bits, and training goes on from what it holds."""

    @torch.no_grad()
    def through() -> None:
        for parameter in loop.model.parameters():
            if parameter.dim() > 1:
                size = parameter.abs().amax() / 1.4
                parameter.copy_((parameter / size).round() * size)

    for step in range(40, loop.steps, 40):
        loop.events[step] = through


def exponentials_in_half(loop: Loop) -> None:
    """A loss written by hand, of scores of length 24, is computed in half precision from step 150 on, to save time."""
    half = False

    def likelihood(outputs: Tensor, y: Tensor) -> Tensor:
        scores = 24 * functional.normalize(outputs, dim=1)
        scores = scores.half() if half and loop.model.training else scores
        return (scores.exp().sum(1).log() - scores.gather(1, y.unsqueeze(1)).squeeze(1)).float().mean()

    def switch() -> None:
        nonlocal half
        half = True

    loop.loss_fn = likelihood
    loop.events[150] = switch


HURT = ("dead-units", "saturated-activations", "collapsed-output", "validation-anomaly", *STALLED)
LEAP = (*UNSTABLE, "state-overwritten", "resume-error")

KINDS = (
    Kind(
        "resumed-into-a-new-model",
        resumed_into_a_new_model,
        on=("moves",),
        right=LEAP,
        cause=("resume-error",),
        secondary=("validation-anomaly", "bad-initialization"),
        onset=250,
        acute=True,
    ),
    Kind(
        "checkpoint-brings-its-rate",
        checkpoint_brings_its_rate,
        on=("strokes", "solids"),
        right=(*LEAP, "lr-too-high", "schedule-error", "schedule-anomaly"),
        cause=("lr-too-high", "resume-error", "schedule-error"),
        secondary=HURT,
        onset=160,
        acute=True,
    ),
    Kind(
        "momentum-of-a-summed-run",
        momentum_of_a_summed_run,
        on=("chirps", "game-of-life"),
        right=(*LEAP, "optimizer-misconfigured"),
        cause=("resume-error", "optimizer-misconfigured", "lr-too-high"),
        secondary=HURT,
        onset=220,
        acute=True,
    ),
    Kind(
        "table-zeroed",
        table_zeroed,
        on=("rms-text",),
        right=(*LEAP, "collapsed-output"),
        cause=("resume-error", "bad-initialization", "hardware-fault"),
        secondary=("gradient-vanishing", "validation-anomaly", "no-gradient"),
        onset=260,
        acute=True,
    ),
    Kind(
        "garbage-in-one-gradient",
        garbage_in_one_gradient,
        on=("moves", "heights"),
        right=(*UNSTABLE, "hardware-fault", "clip-missing"),
        cause=("hardware-fault", "clip-missing", "bad-batch"),
        secondary=HURT,
        onset=180,
        acute=True,
    ),
    Kind(
        "penalty-weighs-too-much",
        penalty_weighs_too_much,
        on=("tallies",),
        right=("loss-spike", "loss-divergence", "gradient-explosion", "over-regularized", "collapsed-output"),
        cause=("over-regularized", "loss-misuse"),
        secondary=(*UNSTABLE, *STALLED, "gradient-vanishing", "dead-units", "validation-anomaly", "suspicious-loss"),
        onset=140,
        acute=True,
    ),
    Kind(
        "angle-of-parallel-vectors",
        angle_of_parallel_vectors,
        on=("pendulum",),
        right=("nan-or-inf", "numeric-precision", "bad-batch"),
        cause=("numeric-precision", "bad-batch"),
        onset=190,
        acute=True,
    ),
    Kind(
        "last-batch-of-one",
        last_batch_of_one,
        on=("vitals", "solids"),
        right=("nan-or-inf", "nan-in-data", "input-anomaly", "numeric-precision", "bad-batch"),
        cause=("numeric-precision", "bad-batch", "nan-in-data"),
        onset=210,
        acute=True,
    ),
    Kind(
        "scaler-hides-a-root",
        scaler_hides_a_root,
        on=("flats",),
        right=("skipped-steps", "nan-or-inf", "numeric-precision", "not-learning", "frozen-weights"),
        cause=("numeric-precision",),
        secondary=("no-gradient", "learning-rate-vanished", "update-ratio-abnormal", *STALLED),
    ),
    Kind(
        "saved-in-few-bits",
        saved_in_few_bits,
        on=("pendulum",),
        right=(*LEAP, "numeric-precision"),
        cause=("resume-error", "numeric-precision"),
        secondary=("dead-units", "collapsed-output", "validation-anomaly", *STALLED),
        onset=40,
    ),
    Kind(
        "exponentials-in-half",
        exponentials_in_half,
        on=("solids",),
        right=("nan-or-inf", "numeric-precision", "loss-misuse", "suspicious-loss"),
        cause=("numeric-precision",),
        secondary=("loss-misuse",),
        onset=150,
        acute=True,
    ),
)
FAULTS: tuple[Kind, ...] = tuple(replace(kind) for kind in KINDS)
