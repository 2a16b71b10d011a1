"""Sealed: what a loop clears, holds, caches, switches and keeps wrongly."""

from __future__ import annotations

import copy
import io
import re
import zlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.clinic.blind_nets import Cached
from torchdoctor.clinic.data import load_text
from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward


def zero_grad_before_step(loop: Loop) -> None:
    """Gradients are cleared between the backward pass and the step."""
    loop.zero_grad = False

    def apply(optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        optimizer.step()

    loop.apply = apply


def cleared_with_the_accumulation(loop: Loop) -> None:
    """Gradients are cleared at every thirty-second batch, as accumulation asks, and stepped at every one."""
    loop.use("sgd", 1.0)
    loop.constant()
    loop.zero_grad = False
    done = 0

    def apply(optimizer: Optimizer) -> None:
        nonlocal done
        optimizer.step()
        done += 1
        if done % 32 == 0:
            optimizer.zero_grad()

    loop.apply = apply


def step_every_sixty_four(loop: Loop) -> None:
    """Gradients are gathered up to sixty-four batches, where sixty-four samples were meant."""
    loop.zero_grad = False
    loop.schedule = None
    loop.backward = lambda loss: backward(loss / 64)
    seen = 0

    def apply(optimizer: Optimizer) -> None:
        nonlocal seen
        seen += 1
        if seen % 64 == 0:
            optimizer.step()
            optimizer.zero_grad()

    loop.apply = apply


def second_instance_trained(loop: Loop) -> None:
    """The model is built twice: one goes to the optimizer, the other into the loop."""
    other = copy.deepcopy(loop.model)
    loop.parameters = other.parameters


def generator_used_up(loop: Loop) -> None:
    """The matrices come from a generator that was gone through to count them: their group is empty."""
    matrices = (p for p in loop.model.parameters() if p.dim() > 1)
    assert sum(p.numel() for p in matrices) > 0
    vectors = [p for p in loop.model.parameters() if p.dim() < 2]
    loop.use("adamw")
    loop.parameters = lambda: [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]


def frozen_at_validation(loop: Loop) -> None:
    """Validation turns gradients off parameter by parameter, and turns only those of the head on again."""
    loop.validate_every = 25
    inner = loop.validate

    def validate() -> float:
        loop.model.requires_grad_(False)
        loss = inner()
        loop.model.get_submodule("head").requires_grad_(True)
        return loss

    loop.validate = validate


def weights_cached_in_forward(loop: Loop) -> None:
    """Linear layers keep a turned copy of their weights from the first batch on, to save time."""
    for parent in list(loop.model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.bias is not None:
                setattr(parent, name, Cached(child))


def rounded_without_a_way_back(loop: Loop) -> None:
    """What goes into the last layer is rounded to steps of a quarter, without a gradient through the rounding."""
    heads = [m for m in loop.model.modules() if isinstance(m, nn.Linear)]
    heads[-1].register_forward_pre_hook(lambda module, given: ((given[0] * 4).round() / 4,))


class Reversed(torch.autograd.Function):
    """Gives what it is given, and turns the gradient round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The same."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The opposite."""
        return -gradient


def reversal_layer_left_in(loop: Loop) -> None:
    """The layer that turns gradients round, made for a second head of domains, stands before the only one."""
    head = loop.model.get_submodule("head")
    head.register_forward_pre_hook(lambda module, given: (Reversed.apply(given[0]),))  # type: ignore[no-untyped-call]


def modes_swapped(loop: Loop) -> None:
    """`train(not training)`: the model is in eval mode for the steps, and in training mode for validation."""
    train = loop.model.train
    loop.model.train = lambda mode=True: train(not mode)  # type: ignore[method-assign]


def average_copied_back(loop: Loop) -> None:
    """The slow average of the weights is copied into the model after each step, not only for validation."""
    slow = [p.detach().clone() for p in loop.model.parameters()]
    loop.schedule = None

    def apply(optimizer: Optimizer) -> None:
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(slow, loop.model.parameters(), strict=True):
                mean.lerp_(parameter, 0.002)
                parameter.copy_(mean)

    loop.apply = apply


def hook_keeps_activations(loop: Loop) -> None:
    """A hook that was to plot activations once keeps those of every module and batch."""
    kept: list[Tensor] = []
    for module in loop.model.modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda _, given, made: kept.append(made.detach()) if isinstance(made, Tensor) else None
            )


def hooks_added_each_step(loop: Loop) -> None:
    """The hooks that measure the layers are registered inside the loop: one more of each at every step."""

    def measure(module: nn.Module, given: Any, made: Any) -> None:
        if isinstance(made, Tensor):
            float(made.detach().norm())

    def add() -> None:
        for module in loop.model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_hook(measure)

    loop.after_micro = add


def saved_at_every_step(loop: Loop) -> None:
    """From step 120 on the comparison with the best is the wrong way round: a checkpoint is packed at each step."""
    step = 0

    def save() -> None:
        nonlocal step
        step += 1
        if step <= 120 or loop.optimizer is None:
            return
        buffer = io.BytesIO()
        torch.save({"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}, buffer)
        zlib.compress(buffer.getvalue(), 6)

    loop.after_micro = save


def page_tokenised_again(loop: Loop) -> None:
    """Each batch is cut from pages of text that are split into words anew, in the training process."""
    text = load_text()

    def tokenise(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(len(x)):
            start = loop.dice.randrange(len(text) - 4_000)
            re.findall(r"[a-z_]+|[^\sa-z_]", text[start : start + 4_000].lower())
        return x, y

    loop.replace_batches(tokenise)


NOT_TRAINED = (*UNMOVED, *STALLED, "parameters-not-in-optimizer")

KINDS = (
    Kind(
        "zero-grad-before-step",
        zero_grad_before_step,
        on=("strokes",),
        right=(*UNMOVED, *STALLED, "gradients-not-cleared", "accumulation-error", "missing-zero-grad"),
        cause=("accumulation-error", "missing-zero-grad"),
    ),
    Kind(
        "cleared-with-the-accumulation",
        cleared_with_the_accumulation,
        on=("flats", "chirps"),
        right=("missing-zero-grad", "accumulation-error", "gradients-not-cleared", *UNSTABLE),
        cause=("missing-zero-grad", "accumulation-error"),
        secondary=("lr-too-high", *STALLED, "dead-units"),
    ),
    Kind(
        "step-every-sixty-four",
        step_every_sixty_four,
        on=("game-of-life", "word-text"),
        right=(*STALLED, "accumulation-error", "gradients-not-cleared", "frozen-weights", "batch-size-unsuited"),
        cause=("accumulation-error", "batch-size-unsuited"),
        secondary=("batch-size-advice", "stopped-too-early", "lr-too-low"),
    ),
    Kind(
        "second-instance-trained",
        second_instance_trained,
        on=("solids", "rms-text"),
        right=(*NOT_TRAINED, "stale-parameters"),
        cause=("parameters-not-in-optimizer", "stale-parameters"),
        secondary=("missing-zero-grad", "gradients-not-cleared", "weight-growth", "gradient-explosion"),
    ),
    Kind(
        "generator-used-up",
        generator_used_up,
        on=("moves", "pendulum"),
        right=NOT_TRAINED,
        cause=("parameters-not-in-optimizer",),
        secondary=("missing-zero-grad", "gradients-not-cleared", "gradient-explosion"),
    ),
    Kind(
        "frozen-at-validation",
        frozen_at_validation,
        on=("game-of-life",),
        right=(*UNMOVED, *STALLED, "frozen-by-mistake"),
        cause=("frozen-by-mistake",),
        onset=25,
    ),
    Kind(
        "weights-cached-in-forward",
        weights_cached_in_forward,
        on=("solids",),
        right=(*UNMOVED, *STALLED, "detached-graph", "stale-parameters"),
        cause=("detached-graph", "stale-parameters"),
    ),
    Kind(
        "rounded-without-a-way-back",
        rounded_without_a_way_back,
        on=("pendulum",),
        right=(*UNMOVED, *STALLED, "detached-graph", "gradient-vanishing"),
        cause=("detached-graph",),
    ),
    Kind(
        "reversal-layer-left-in",
        reversal_layer_left_in,
        on=("strokes", "vitals"),
        right=(*UNSTABLE, *STALLED, "collapsed-output", "saturated-activations"),
        secondary=("lr-too-high", "dead-units"),
    ),
    Kind(
        "modes-swapped",
        modes_swapped,
        on=("textures",),
        right=("wrong-mode", "eval-mode-in-training", "validation-anomaly", "batchnorm-misuse", "train-val-mismatch"),
        cause=("eval-mode-in-training", "batchnorm-misuse", "train-val-mismatch"),
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION),
    ),
    Kind(
        "average-copied-back",
        average_copied_back,
        on=("word-text",),
        right=("state-overwritten", "frozen-weights", *STALLED),
        secondary=("lr-too-low", "optimizer-misconfigured", "resume-error"),
    ),
    Kind(
        "hook-keeps-activations",
        hook_keeps_activations,
        on=("strokes",),
        right=("memory-growth",),
        secondary=("step-time-regression",),
    ),
    Kind(
        "hooks-added-each-step",
        hooks_added_each_step,
        on=("pendulum",),
        right=("step-time-regression",),
        secondary=("memory-growth",),
    ),
    Kind(
        "saved-at-every-step",
        saved_at_every_step,
        on=("flats",),
        right=("step-time-regression",),
        onset=120,
    ),
    Kind("page-tokenised-again", page_tokenised_again, on=("chapters",), right=("data-starvation",)),
)
FAULTS: tuple[Kind, ...] = tuple(replace(kind) for kind in KINDS)
