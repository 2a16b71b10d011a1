"""Faults of what is trained: behind a stop of the gradient, replaced, frozen, or given a rate of nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop


def encoder_without_gradients(loop: Loop) -> None:
    """The encoder is called through a helper that was written for inference, under `no_grad`."""
    model: Any = loop.model
    model.encode = torch.no_grad()(model.encode)


def vocabulary_resized(loop: Loop) -> None:
    """New tokens are added while training: the embedding and the head tied to it are new, the optimizer's are not."""
    loop.constant()
    loop.use("adam")

    def resize() -> None:
        model: Any = loop.model
        old = model.embed.weight.data
        model.embed = nn.Embedding(len(old) + 8, old.shape[1])
        model.embed.weight.data[: len(old)] = old
        model.head = nn.Linear(old.shape[1], len(old) + 8, bias=False)
        model.head.weight = model.embed.weight

    loop.events[40] = resize


def reparametrised_too_late(loop: Loop) -> None:
    """Weight norm is put on the convolutions after the optimizer was built: it holds weights that no longer exist."""

    def built() -> None:
        for module in list(loop.model.modules()):
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                parametrizations.weight_norm(module)

    loop.built = built


def all_but_biases_frozen(loop: Loop) -> None:
    """Where biases were to be spared the decay, everything but the biases is frozen."""
    for name, tensor in loop.model.named_parameters():
        if "bias" not in name:
            tensor.requires_grad_(False)


def rates_fall_with_depth(loop: Loop) -> None:
    """Each block has a share of the rate of the one above it: a hundredth, where nine tenths was meant."""
    loop.constant()
    model: Any = loop.model
    loop.use("adam")
    make = loop.make_optimizer
    rate = loop.arena.adam
    blocks: list[nn.Module] = list(getattr(model, "blocks", None) or model.layers)
    first = model.patch_embed if hasattr(model, "patch_embed") else model.enter
    layers = [model.head, *reversed(blocks), first]
    groups = [{"params": list(part.parameters()), "lr": rate * 0.01**depth} for depth, part in enumerate(layers)]
    loop.make_optimizer = lambda _: make(groups)


FAULTS = (
    Kind(
        "encoder-without-gradients",
        encoder_without_gradients,
        on=("translate",),
        right=(*UNMOVED, "detached-graph"),
        cause=("detached-graph",),
        secondary=STALLED,
    ),
    Kind(
        "vocabulary-resized",
        vocabulary_resized,
        on=("decoder",),
        right=(*UNMOVED, "stale-parameters", "parameters-not-in-optimizer", "state-overwritten"),
        cause=("stale-parameters", "parameters-not-in-optimizer"),
        secondary=(*STALLED, "loss-spike", "gradients-not-cleared"),
        onset=40,
    ),
    Kind(
        "reparametrised-too-late",
        reparametrised_too_late,
        on=("forecast", "unet"),
        right=(*UNMOVED, "stale-parameters", "parameters-not-in-optimizer"),
        cause=("stale-parameters", "parameters-not-in-optimizer"),
        secondary=(*STALLED, "gradients-not-cleared", "insufficient-capacity"),
    ),
    Kind(
        "all-but-biases-frozen",
        all_but_biases_frozen,
        on=("patches", "graph"),
        right=(*UNMOVED, "frozen-by-mistake"),
        cause=("frozen-by-mistake",),
        secondary=(*STALLED, "insufficient-capacity", "gradient-vanishing"),
    ),
    Kind(
        "rates-fall-with-depth",
        rates_fall_with_depth,
        on=("mixer", "forecast"),
        right=("update-ratio-abnormal", "frozen-weights", "optimizer-misconfigured", "optimizer-advice", "lr-too-low"),
        cause=("optimizer-misconfigured", "lr-too-low"),
        secondary=(*STALLED, *GENERALIZATION, *UNSTABLE, "schedule-error"),
    ),
)
