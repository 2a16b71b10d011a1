"""Everyday mistakes of the step: learning rates, schedules, clipping, and settings of the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, warmup


def adam_at_a_tenth(loop: Loop) -> None:
    """Adam with lr=0.1, a rate that had been right for SGD."""
    loop.use("adam", lr=0.1)
    loop.constant()


def sgd_at_one(loop: Loop) -> None:
    """SGD with momentum and lr=1.0."""
    loop.use("sgd", lr=1.0)
    loop.constant()


def rate_for_a_larger_batch(loop: Loop) -> None:
    """The rate of a paper with batches of thousands, for small ones: thirty times what suits."""
    loop.use("adamw", 30.0)
    loop.schedule = warmup(20)
    loop.clip = None


def rate_typo(loop: Loop) -> None:
    """AdamW with lr=1e-6: a digit or three too many after the point."""
    loop.use("adamw", lr=1e-6)
    loop.constant()


def sgd_at_adams_rate(loop: Loop) -> None:
    """SGD without momentum at 1e-3, a rate that had been right for Adam."""
    loop.use("plain-sgd", lr=1e-3)
    loop.constant()


def no_warmup(loop: Loop) -> None:
    """A deep post-norm transformer with the peak rate of its paper from the first step on, and no warm-up."""
    loop.use("adam", lr=2e-2, betas=(0.9, 0.98))
    loop.constant()


def step_decay_of_epochs(loop: Loop) -> None:
    """StepLR(step_size=10, gamma=0.5), meant in epochs, is stepped after each batch."""
    loop.schedule = lambda optimizer: StepLR(optimizer, step_size=10, gamma=0.5)


def exponential_of_epochs(loop: Loop) -> None:
    """ExponentialLR(gamma=0.9), meant for epochs, is stepped after each batch."""
    loop.schedule = lambda optimizer: ExponentialLR(optimizer, gamma=0.9)


def schedule_never_stepped(loop: Loop) -> None:
    """The scheduler with its warm-up is built, and `scheduler.step()` forgotten: the rate stays at its first value."""
    loop.schedule = warmup(500)
    loop.advance = lambda scheduler, step: None


def plateau_of_batches(loop: Loop) -> None:
    """ReduceLROnPlateau is stepped with the loss of every batch, and takes its noise for a plateau."""
    loop.schedule = lambda optimizer: ReduceLROnPlateau(optimizer, patience=3)
    loop.advance = lambda scheduler, step: scheduler.step(loop.losses[-1])


def plateau_of_accuracy(loop: Loop) -> None:
    """ReduceLROnPlateau is given the accuracy, which rises, and left at mode="min"."""
    loop.validate_every = 25
    loop.use("adam")
    loop.clip = None
    loop.schedule = lambda optimizer: ReduceLROnPlateau(optimizer, patience=0)
    x, y = loop.validated

    def advance(scheduler: ReduceLROnPlateau, step: int) -> None:
        if (step + 1) % 25 == 0:
            with torch.no_grad():
                right = loop.model(x).argmax(1) == y
            scheduler.step(right.float().mean().item())

    loop.advance = advance


def clipped_to_nothing(loop: Loop) -> None:
    """SGD with gradients clipped to a norm of 0.001."""
    loop.use("sgd")
    loop.constant()
    loop.clip = 1e-3


def values_clipped_to_nothing(loop: Loop) -> None:
    """SGD with every value of the gradients clipped at 1e-5."""
    loop.use("plain-sgd")
    loop.constant()
    inner = loop.apply

    def apply(optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_value_(loop.model.parameters(), 1e-5)
        inner(optimizer)

    loop.apply = apply


def clipped_after_the_step(loop: Loop) -> None:
    """A recurrent net at a rate that needs clipping, and `clip_grad_norm_` stands after `optimizer.step()`."""
    loop.use("sgd", 15.0)
    loop.constant()
    loop.clip, loop.clip_late = 0.5, True


def recurrent_without_clipping(loop: Loop) -> None:
    """A plain recurrent net with SGD at 0.1 and no clipping."""
    loop.use("sgd", lr=0.1)
    loop.constant()


def eps_of_one(loop: Loop) -> None:
    """Adam with eps=1, as a comment in another library once recommended, at the rate for 1e-8."""
    loop.use("adam", eps=1.0)
    loop.constant()


def adam_with_penalty(loop: Loop) -> None:
    """Adam(weight_decay=0.1), where AdamW was meant: the penalty is all that the gradient says."""
    loop.use("adam", weight_decay=0.1)
    loop.constant()


def decay_of_a_half(loop: Loop) -> None:
    """SGD with weight_decay=0.5."""
    loop.use("sgd", weight_decay=0.5)
    loop.constant()


def betas_swapped(loop: Loop) -> None:
    """Adam with betas=(0.999, 0.9), the wrong way round."""
    loop.use("adam", betas=(0.999, 0.9))
    loop.constant()


def heavy_momentum(loop: Loop) -> None:
    """SGD with momentum=0.999 at the rate for 0.9."""
    loop.use("sgd", momentum=0.999)
    loop.constant()


def batch_of_two(loop: Loop) -> None:
    """Memory ran out and the batch was made two, at the rate for thirty-two."""
    loop.arena.batch_size = 2
    loop.use("sgd", 2.0)
    loop.constant()


def maximized(loop: Loop) -> None:
    """`maximize=True`, left from the script of a policy, with a loss."""
    loop.use("adam", maximize=True)
    loop.constant()


def adadelta_at_adams_rate(loop: Loop) -> None:
    """Adadelta with lr=1e-3, a thousandth of its default."""
    loop.make_optimizer = lambda parameters: torch.optim.Adadelta(parameters, lr=1e-3)
    loop.constant()


def body_at_nothing(loop: Loop) -> None:
    """Two groups: the head at its rate and the body, which is new, at 1e-8 as for a pretrained one."""

    def groups() -> list[dict[str, Any]]:
        parameters = list(loop.model.parameters())
        return [{"params": parameters[:-2], "lr": 1e-8}, {"params": parameters[-2:]}]

    loop.use("adamw")
    loop.constant()
    loop.parameters = groups


_RUIN = (*UNSTABLE, *SIGNAL, *STALLED, *GENERALIZATION, "frozen-weights")
_LAZY = (*STALLED, *UNMOVED, "gradient-vanishing", "collapsed-output")
_HIGH = ("lr-too-high", *UNSTABLE, "not-learning", "loss-plateau", "collapsed-output", "dead-units")
_LOW = ("lr-too-low", "slow-learning", "not-learning", "underfitting", "update-ratio-abnormal", "frozen-weights")
_FADED = ("schedule-anomaly", "schedule-error", "learning-rate-vanished", "update-ratio-abnormal", "loss-plateau")
_SETTING = ("optimizer-advice", "optimizer-misconfigured")
_SHRUNK = ("over-regularized", "collapsed-output", *_SETTING, *STALLED)
_CUT = ("clipping-anomaly", "clip-too-tight", "slow-learning", "not-learning", "update-ratio-abnormal", "underfitting")


def _kind(
    slug: str,
    change: Callable[[Loop], None],
    on: str,
    right: tuple[str, ...],
    cause: tuple[str, ...],
    secondary: tuple[str, ...],
    **more: Any,
) -> Kind:
    arenas = tuple(f"everyday-{name}" for name in on.split())
    true = (*secondary, "multiple-pathologies")
    return Kind(f"everyday-{slug}", change, arenas, right, (), cause, true, held_out=True, **more)


FAULTS: tuple[Kind, ...] = (
    _kind("adam-at-a-tenth", adam_at_a_tenth, "vit digits", _HIGH, ("lr-too-high",), _RUIN),
    _kind("sgd-at-one", sgd_at_one, "digits tagger", _HIGH, ("lr-too-high",), (*_RUIN, "clip-missing")),
    _kind(
        "rate-for-a-larger-batch",
        rate_for_a_larger_batch,
        "gpt vit",
        _HIGH,
        ("lr-too-high", "batch-size-unsuited"),
        (*_RUIN, "batch-size-advice", "clip-missing", "warmup-missing"),
    ),
    _kind("rate-typo", rate_typo, "digits char-lstm", _LOW, ("lr-too-low",), _LAZY),
    _kind(
        "sgd-at-adams-rate",
        sgd_at_adams_rate,
        "topics vit",
        (*_LOW, *_SETTING),
        ("lr-too-low", "optimizer-misconfigured"),
        _LAZY,
    ),
    _kind("no-warmup", no_warmup, "post-norm", ("warmup-missing", *_HIGH), ("warmup-missing", "lr-too-high"), _RUIN),
    _kind("step-decay-of-epochs", step_decay_of_epochs, "resnet gpt", _FADED, ("schedule-error",), _LAZY, onset=60),
    _kind("exponential-of-epochs", exponential_of_epochs, "denoiser", _FADED, ("schedule-error",), _LAZY, onset=40),
    _kind(
        "schedule-never-stepped",
        schedule_never_stepped,
        "tagger",
        (*_FADED, *_LOW),
        ("schedule-error", "lr-too-low"),
        _LAZY,
    ),
    _kind("plateau-of-batches", plateau_of_batches, "digits", _FADED, ("schedule-error",), _LAZY),
    _kind("plateau-of-accuracy", plateau_of_accuracy, "sensor", _FADED, ("schedule-error",), _LAZY),
    _kind(
        "clipped-to-nothing", clipped_to_nothing, "digits forecast", _CUT, ("clip-too-tight",), (*_LAZY, "lr-too-low")
    ),
    _kind(
        "values-clipped-to-nothing",
        values_clipped_to_nothing,
        "prices",
        (*_CUT, "lr-too-low"),
        ("clip-too-tight", "lr-too-low"),
        _LAZY,
    ),
    _kind(
        "clipped-after-the-step",
        clipped_after_the_step,
        "elman",
        ("clipping-anomaly", "clip-missing", *_HIGH),
        ("clip-missing", "lr-too-high"),
        _RUIN,
    ),
    _kind(
        "recurrent-without-clipping",
        recurrent_without_clipping,
        "elman",
        ("clip-missing", *_HIGH),
        ("clip-missing", "lr-too-high"),
        _RUIN,
    ),
    _kind("eps-of-one", eps_of_one, "gpt", (*_SETTING, *_LOW), ("optimizer-misconfigured", "lr-too-low"), _LAZY),
    _kind(
        "adam-with-penalty",
        adam_with_penalty,
        "resnet opinions",
        _SHRUNK,
        ("optimizer-misconfigured", "over-regularized"),
        (*SIGNAL, "weight-growth"),
    ),
    _kind(
        "decay-of-a-half",
        decay_of_a_half,
        "digits prices",
        _SHRUNK,
        ("over-regularized", "optimizer-misconfigured"),
        SIGNAL,
    ),
    _kind(
        "betas-swapped",
        betas_swapped,
        "char-lstm digits",
        (*_SETTING, *UNSTABLE, *STALLED),
        ("optimizer-misconfigured",),
        (*_RUIN, "lr-too-high"),
    ),
    _kind(
        "heavy-momentum",
        heavy_momentum,
        "prices digits",
        (*_SETTING, *UNSTABLE),
        ("optimizer-misconfigured", "lr-too-high"),
        _RUIN,
    ),
    _kind(
        "batch-of-two",
        batch_of_two,
        "digits",
        ("batch-size-unsuited", "batch-size-advice", "lr-too-high", *UNSTABLE, *STALLED),
        ("batch-size-unsuited", "lr-too-high"),
        _RUIN,
    ),
    _kind(
        "maximized",
        maximized,
        "topics",
        (*_SETTING, *UNSTABLE, "loss-misuse", "suspicious-loss"),
        ("optimizer-misconfigured", "loss-misuse"),
        (*_RUIN, "lr-too-high"),
    ),
    _kind(
        "adadelta-at-adams-rate",
        adadelta_at_adams_rate,
        "sensor",
        (*_LOW, *_SETTING),
        ("lr-too-low", "optimizer-misconfigured"),
        _LAZY,
    ),
    _kind(
        "body-at-nothing",
        body_at_nothing,
        "vit tagger",
        (*_LOW, *UNMOVED, *STALLED, "learning-rate-vanished", *_SETTING),
        ("lr-too-low", "optimizer-misconfigured", "frozen-by-mistake"),
        (*_LAZY, "parameters-not-in-optimizer"),
    ),
)
