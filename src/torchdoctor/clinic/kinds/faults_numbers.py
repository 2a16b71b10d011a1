"""Numbers that are not numbers, too large for their type, or rounded away; and what hits a run from outside."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchdoctor.clinic.kinds.kind import STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward

AT = 150
"""When an acute fault happens, unless the seed moves it."""


def _corrupt(loop: Loop, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], *, times: int = 1) -> None:
    """Have the batch of step `AT`, and of those after it, go through a change."""
    count = iter(range(loop.steps * loop.micro + 1))
    loop.replace_batches(lambda x, y: change(x, y) if AT <= next(count) < AT + times else (x, y))


def nan_in_a_batch(loop: Loop) -> None:
    """One sample of one batch is NaN."""

    def poisoned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[0] = torch.nan
        return x, y

    _corrupt(loop, poisoned)


def infinity_in_a_target(loop: Loop) -> None:
    """One target of one batch is infinite: a logarithm of zero, made long before."""

    def poisoned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y.clone()
        y[0] = torch.inf
        return x, y

    _corrupt(loop, poisoned)


def nan_in_the_file(loop: Loop) -> None:
    """A few samples of the data set are NaN, and the loop drops batches whose loss is not finite."""
    loop.arena.x[:: len(loop.arena.x) // 5] = torch.nan
    loop.backward = lambda loss: backward(loss) if loss.isfinite() else loop.model.zero_grad()


def outlier_batch(loop: Loop) -> None:
    """The inputs of one batch are a thousand times too large."""
    loop.use("sgd")
    loop.constant()
    _corrupt(loop, lambda x, y: (x * 1000, y))


def outlier_target(loop: Loop) -> None:
    """The targets of one batch have another unit, a thousand times smaller: the numbers are a thousand times larger."""
    loop.use("sgd")
    loop.constant()
    _corrupt(loop, lambda x, y: (x, y * 1000))


def gradient_leap(loop: Loop) -> None:
    """The gradients of one step are multiplied by a hundred."""
    loop.clip = None
    _scale_gradients(loop, 100.0)


def gradient_fade(loop: Loop) -> None:
    """The gradients of one step are multiplied by 1e-8."""
    loop.clip = None
    _scale_gradients(loop, 1e-8)


def gradients_gone(loop: Loop) -> None:
    """From one step on the gradients are a hundred-millionth of what they were."""
    loop.clip = None
    _scale_gradients(loop, 1e-8, times=10_000)


def _scale_gradients(loop: Loop, factor: float, *, times: int = 1) -> None:
    count = iter(range(loop.steps + 1))

    def scale() -> None:
        if AT <= next(count) < AT + times:
            for parameter in loop.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    loop.after_micro = scale


def half_without_scaler(loop: Loop) -> None:
    """Everything in fp16 without loss scaling: small gradients become zero, and Adam's squares of them too."""
    loop.model.half()
    loop.replace_batches(lambda x, y: (x.half(), y.half() if y.is_floating_point() else y))
    x, y = loop.validated
    loop.validated = (x.half(), y.half() if y.is_floating_point() else y)
    loop.use("adam", 1.0)
    loop.constant()


def half_overflow(loop: Loop) -> None:
    """In fp16 a sum leaves the range of the type: 65,504 is the largest number there is."""
    half_without_scaler(loop)
    loop.use("sgd", 1.0)
    inner = loop.loss_fn
    grows = iter(range(1, 100_000))
    loop.loss_fn = lambda outputs, y: inner(outputs, y) * (2.0 ** (next(grows) / 10))
    loop.shows_loss_fn = False


def bfloat_rounds_away(loop: Loop) -> None:
    """Weights in bf16 and small steps: each update is below the last bit of the weight, and is rounded away."""
    loop.model.bfloat16()
    loop.replace_batches(lambda x, y: (x.bfloat16(), y.bfloat16() if y.is_floating_point() else y))
    x, y = loop.validated
    loop.validated = (x.bfloat16(), y.bfloat16() if y.is_floating_point() else y)
    loop.use("adamw", lr=loop.dice.choice([3e-5, 1e-4]), weight_decay=0.0)
    loop.constant()


def zero_by_zero(loop: Loop) -> None:
    """Features are divided by their own spread, and after some steps one of them is constant."""

    class Standardised(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.inner((x - x.mean(0)) / x.std(0))
            return made

    loop.model = Standardised(loop.model)

    def constant(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[:, 0] = 1.0
        return x, y

    _corrupt(loop, constant, times=10_000)


def root_of_zero(loop: Loop) -> None:
    """The root mean square error, when it is exactly zero: the loss is finite and its gradient is not."""
    loop.loss_fn = lambda outputs, y: (outputs - y).pow(2).mean(-1).sqrt().mean()
    loop.shows_loss_fn = False

    def known(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = y.clone()
            y[:1] = loop.model(x)[:1]
        return x, y

    _corrupt(loop, known, times=10_000)


def bit_flip(loop: Loop) -> None:
    """A bit of one weight's exponent flips at a step: it is 2**60 times what it was."""

    @torch.no_grad()
    def flip() -> None:
        next(p for p in loop.model.parameters() if p.dim() > 1).view(-1)[7].mul_(2.0**60).add_(2.0**60)

    loop.events[AT] = flip


def scale_collapses(loop: Loop) -> None:
    """Under a scaler every other batch comes to hold an infinity: steps are skipped and the scale collapses."""
    scaler = torch.amp.GradScaler("cpu", growth_interval=1000)
    count = iter(range(100_000))

    def spoiled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        step = next(count)
        if step >= AT and step % 2:
            x = x.clone()
            x[0] = torch.inf
        return x, y

    loop.replace_batches(spoiled)
    loop.clip = None

    def apply(optimizer: torch.optim.Optimizer) -> None:
        scaler.step(optimizer)
        scaler.update()

    loop.backward, loop.apply = lambda loss: backward(scaler.scale(loss)), apply


def weights_swapped_back(loop: Loop) -> None:
    """Half-way the weights of the very first step are loaded by mistake: what was learnt is gone."""
    first = copy.deepcopy(loop.model.state_dict())
    loop.events[AT] = lambda: loop.model.load_state_dict(first)
    loop.constant()


NOT_FINITE = ("nan-or-inf",)
RUIN = (*UNSTABLE, *STALLED, "frozen-weights", "dead-units", "collapsed-output", "validation-anomaly", "no-gradient")

FAULTS = (
    Kind(
        "nan-in-a-batch",
        nan_in_a_batch,
        on=("mlp", "cnn", "lstm"),
        right=("input-anomaly", *NOT_FINITE, "nan-in-data"),
        cause=("nan-in-data", "bad-batch"),
        secondary=RUIN,
        onset=AT,
        acute=True,
    ),
    Kind(
        "infinity-in-a-target",
        infinity_in_a_target,
        on=("regression", "autoencoder"),
        right=("target-anomaly", *NOT_FINITE, "nan-in-data"),
        cause=("nan-in-data", "bad-batch"),
        secondary=RUIN,
        onset=AT,
        acute=True,
    ),
    Kind(
        "nan-in-the-file",
        nan_in_the_file,
        on=("mlp", "regression"),
        right=("input-anomaly", *NOT_FINITE, "nan-in-data"),
        cause=("nan-in-data", "bad-batch"),
        secondary=RUIN,
    ),
    Kind(
        "outlier-batch",
        outlier_batch,
        on=("mlp", "autoencoder", "regression"),
        right=("input-anomaly", "bad-batch", *UNSTABLE),
        cause=("bad-batch", "unnormalized-inputs", "clip-missing"),
        secondary=RUIN,
        onset=AT,
        acute=True,
    ),
    Kind(
        "outlier-target",
        outlier_target,
        on=("regression", "autoencoder"),
        right=("target-anomaly", "bad-batch", *UNSTABLE),
        cause=("bad-batch", "unnormalized-targets", "clip-missing"),
        secondary=RUIN,
        onset=AT,
        acute=True,
    ),
    Kind(
        "gradient-leap",
        gradient_leap,
        on=("transformer", "lstm", "cnn"),
        right=("gradient-explosion",),
        secondary=RUIN,
        onset=AT,
        acute=True,
    ),
    Kind(
        "gradient-fade",
        gradient_fade,
        on=("transformer", "lstm", "mlp"),
        right=("gradient-vanishing",),
        onset=AT,
        acute=True,
    ),
    Kind(
        "gradients-gone",
        gradients_gone,
        on=("cnn", "regression"),
        right=("gradient-vanishing",),
        secondary=(*STALLED, "frozen-weights"),
        onset=AT,
        acute=True,
    ),
    Kind(
        "half-without-scaler",
        half_without_scaler,
        on=("mlp", "autoencoder"),
        right=("numeric-precision", "nan-or-inf", "no-gradient", "gradient-vanishing"),
        cause=("numeric-precision",),
        secondary=RUIN,
    ),
    Kind(
        "half-overflow",
        half_overflow,
        on=("mlp", "regression"),
        right=("numeric-precision", "nan-or-inf"),
        cause=("numeric-precision", "lr-too-high"),
        secondary=(*RUIN, "skipped-steps"),
    ),
    Kind(
        "bfloat-rounds-away",
        bfloat_rounds_away,
        on=("mlp", "autoencoder"),
        right=("numeric-precision", "slow-learning", "frozen-weights", "loss-plateau", "not-learning"),
        cause=("numeric-precision", "lr-too-low"),
        secondary=STALLED,
    ),
    Kind(
        "zero-by-zero",
        zero_by_zero,
        on=("mlp", "regression"),
        right=(*NOT_FINITE, "numeric-precision"),
        cause=("numeric-precision", "bad-batch", "unnormalized-inputs"),
        secondary=(*RUIN, "input-anomaly"),
        onset=AT,
        acute=True,
    ),
    Kind(
        "root-of-zero",
        root_of_zero,
        on=("regression",),
        right=(*NOT_FINITE, "numeric-precision"),
        cause=("numeric-precision",),
        secondary=RUIN,
        onset=AT,
        acute=True,
    ),
    Kind(
        "bit-flip",
        bit_flip,
        on=("mlp", "cnn", "regression"),
        right=("hardware-fault", *UNSTABLE),
        cause=("hardware-fault", "numeric-precision"),
        secondary=(*RUIN, "saturated-activations"),
        onset=AT,
        acute=True,
    ),
    Kind(
        "scale-collapses",
        scale_collapses,
        on=("mlp", "cnn"),
        right=("input-anomaly", "skipped-steps", "nan-in-data", "nan-or-inf"),
        cause=("nan-in-data", "numeric-precision", "bad-batch"),
        secondary=RUIN,
        onset=AT,
    ),
    Kind(
        "old-weights-loaded",
        weights_swapped_back,
        on=("mlp", "cnn", "transformer"),
        right=("resume-error", "state-overwritten", "loss-spike", "loss-divergence"),
        cause=("resume-error", "hardware-fault"),
        secondary=(*UNSTABLE, "state-overwritten"),  # something else than the optimizer did write to all weights
        onset=AT,
        acute=True,
    ),
)
