"""Collapse and imbalance where several nets, or a net and its own choices, make the data; and time and memory lost."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop
from torchdoctor.clinic.kinds.players import adversaries, bandit


def critic_overwhelms(loop: Loop) -> None:
    """The critic learns a hundred times faster than the generator: it is always right, and teaches nothing."""
    adversaries(loop, generator_lr=2e-5, critic_lr=1e-2, critics=3)


def generator_collapses(loop: Loop) -> None:
    """The generator learns far too fast and puts everything on one point that the critic believes in."""
    adversaries(loop, generator_lr=loop.dice.choice([0.02, 0.04]), critic_lr=2e-4)


def policy_collapses(loop: Loop) -> None:
    """The advantage has the wrong sign and the rate is huge: the policy becomes sure of the worst arm."""
    bandit(loop, lr=0.3, entropy=0.0, sign=-1.0)


class _Attraction(nn.Module):
    def forward(self, codes: Tensor, y: Tensor) -> Tensor:
        first, second = codes.unbind(1)
        return (first - second).pow(2).mean()


def representation_collapses(loop: Loop) -> None:
    """Two views are drawn together and nothing holds others apart: all codes become one."""
    loop.loss_fn = _Attraction()
    loop.use("adam", 3.0)


def temperature_too_low(loop: Loop) -> None:
    """A contrastive loss with a temperature of 1e-4: scores in the ten thousands, and gradients to match."""

    class Sharp(nn.Module):
        def forward(self, codes: Tensor, y: Tensor) -> Tensor:
            first, second = functional.normalize(codes, dim=-1).unbind(1)
            return functional.cross_entropy(first @ second.T / 1e-4, torch.arange(len(codes)))

    loop.loss_fn = Sharp()
    loop.use("sgd", 1.0)
    loop.constant()


def loader_slow(loop: Loop) -> None:
    """The loader takes ten times as long as a step."""

    def slow(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        time.sleep(0.02)
        return x, y

    loop.replace_batches(slow)
    loop.steps = 200


def loader_becomes_slow(loop: Loop) -> None:
    """After 200 steps reading a batch takes many times as long: the files lie on another disk."""
    count = iter(range(100_000))

    def slow(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if next(count) >= 200:
            time.sleep(0.03)
        return x, y

    loop.replace_batches(slow)
    loop.steps = 350


def history_is_summed(loop: Loop) -> None:
    """At each step the mean over all losses so far is computed from a list that only grows, ever more slowly."""
    kept: list[Tensor] = []
    inner = loop.log

    def log(loss: Tensor, name: str = "loss") -> None:
        kept.append(loss.detach())
        for _ in range(len(kept) // 8):
            torch.stack(kept).mean()
        inner(loss, name)

    loop.log = log
    loop.steps = 400


def graphs_are_kept(loop: Loop) -> None:
    """Losses are collected with their graphs, and so are the activations of every step."""
    kept: list[Tensor] = []
    inner = loop.forward

    def forward(x: Tensor, y: Tensor) -> Tensor:
        x = x.repeat(16, *[1] * (x.dim() - 1))
        loss = inner(x, y.repeat(16, *[1] * (y.dim() - 1)))
        if loop.model.training:
            kept.append(loss)
        return loss

    loop.forward = forward
    loop.steps = 300


COLLAPSED = ("collapsed-output", "dead-units", "saturated-activations")

FAULTS = (
    Kind(
        "critic-overwhelms",
        critic_overwhelms,
        on=("mlp",),
        right=("adversarial-imbalance", "lopsided-losses", "mode-collapse", "collapsed-output", "gradient-vanishing"),
        cause=("adversarial-imbalance", "mode-collapse"),
        secondary=(*COLLAPSED, *UNSTABLE, *STALLED, "suspiciously-low-loss"),
    ),
    Kind(
        "generator-collapses",
        generator_collapses,
        on=("mlp",),
        right=("mode-collapse", "adversarial-imbalance", "lopsided-losses", "collapsed-output", *UNSTABLE),
        cause=("mode-collapse", "adversarial-imbalance", "lr-too-high"),
        secondary=(*COLLAPSED, *STALLED, "gradient-vanishing"),
    ),
    Kind(
        "policy-collapses",
        policy_collapses,
        on=("mlp",),
        right=("policy-collapse", "entropy-collapse", "collapsed-output", "lr-too-high", "loss-misuse"),
        cause=("policy-collapse", "lr-too-high", "loss-misuse"),
        secondary=(*COLLAPSED, *UNSTABLE, "gradient-vanishing", "loss-plateau", "not-learning"),
    ),
    Kind(
        "representation-collapses",
        representation_collapses,
        on=("contrastive",),
        right=("representation-collapse", "collapsed-output", "suspiciously-low-loss"),
        cause=("representation-collapse",),
        secondary=("gradient-vanishing", "loss-plateau", "dead-units"),
    ),
    Kind(
        "temperature-too-low",
        temperature_too_low,
        on=("contrastive",),
        right=("lr-too-high", "loss-misuse", "unexpected-initial-loss", *UNSTABLE),
        cause=("loss-misuse", "lr-too-high"),
        secondary=(*COLLAPSED, *STALLED, *GENERALIZATION, "gradient-vanishing"),
    ),
    Kind(
        "loader-slow",
        loader_slow,
        on=("mlp", "cnn"),
        right=("data-starvation", "slow-data-loading"),
        cause=("slow-data-loading",),
    ),
    Kind(
        "loader-becomes-slow",
        loader_becomes_slow,
        on=("mlp", "regression"),
        right=("data-starvation", "step-time-regression", "slow-data-loading"),
        cause=("slow-data-loading",),
        onset=200,
    ),
    Kind(
        "history-is-summed",
        history_is_summed,
        on=("mlp", "regression"),
        right=("step-time-regression", "data-starvation"),
        secondary=("memory-growth",),
        onset=100,
    ),
    Kind(
        "graphs-are-kept",
        graphs_are_kept,
        on=("mlp",),
        right=("memory-growth", "memory-leak"),
        cause=("memory-leak",),
        secondary=("step-time-regression",),
    ),
)
