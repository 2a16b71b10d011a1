"""Faults of the numbers: what overflows, underflows, divides by nothing, flips, or should not be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

BROKEN = ("nan-or-inf", "numeric-precision")
AFTER = (*UNSTABLE, *STALLED, *SIGNAL, *GENERALIZATION)
"""What may be said of a run that has been hit."""


def at(loop: Loop, step: int, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Have one batch go through a function."""
    count = iter(range(10**9))
    loop.replace_batches(lambda x, y: change(x.clone(), y.clone()) if next(count) == step else (x, y))


def half_with_the_usual_eps(loop: Loop) -> None:
    """Weights and Adam's memory are in half precision, where the usual eps is zero."""
    loop.constant()
    loop.use("adam")
    loop.model.half()
    loop.forward = lambda x, y: loop.loss_of(loop.model(x.half()).float(), y)


def log_of_a_raw_output(loop: Loop) -> None:
    """The Poisson likelihood is told that the output is a rate, not its logarithm; nothing keeps it above zero."""
    loop.constant()
    loop.loss_fn = nn.PoissonNLLLoss(log_input=False)
    model: Any = loop.model
    nn.init.zeros_(model[-1].bias)


def blank_picture(loop: Loop) -> None:
    """Pictures are divided by their own spread; one of them is blank."""

    def standardise(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[0] = 0.25
        return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True), y

    at(loop, 120, standardise)


def its_own_positive(loop: Loop) -> None:
    """A class of one picture: the anchor is its own positive, and the root of their distance has no slope."""

    def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[0, 1] = x[0, 0]
        return x, y

    at(loop, 150, pair)


def nothing_but_padding(loop: Loop) -> None:
    """One source is empty: all of its places are masked, and the softmax over none of them divides by zero."""

    def empty(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[0, :8] = 0
        y[0] = -100
        return x, y

    at(loop, 130, empty)


def nothing_to_predict(loop: Loop) -> None:
    """Prompts are not to be predicted; of one batch they have left nothing else."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        counted = y != -100
        each = functional.cross_entropy(loop.model(x).flatten(0, 1), y.clamp_min(0).flatten(), reduction="none")
        return (each * counted.flatten()).sum() / counted.sum()

    loop.forward, loop.shows_loss_fn = forward, False
    at(loop, 110, lambda x, y: (x, torch.full_like(y, -100)))


def exponential_of_an_outlier(loop: Loop) -> None:
    """A batch in other units goes through a model whose output is an exponent."""
    at(loop, 150, lambda x, y: (x * 1000, y))


def missing_as_a_number(loop: Loop) -> None:
    """What was not measured stands as -9999 among the targets: one sample in a hundred and fifty."""
    loop.constant()

    def lose(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        lost = torch.rand(len(y)) < 1 / 150
        y = y.clone()
        y[lost, -1] = -9999.0
        return x, y

    loop.replace_batches(lose)


def bit_flipped_in_momentum(loop: Loop) -> None:
    """A bit of an exponent flips in what Adam remembers of one weight."""
    loop.constant()
    loop.use("adam")

    def flip() -> None:
        assert loop.optimizer is not None
        tensor = next(t for t in loop.model.parameters() if t.dim() == 2 and t.shape[1] > 12)
        state: Any = loop.optimizer.state[tensor]["exp_avg"]
        state.view(-1).view(torch.int32)[7] ^= 1 << 30

    loop.events[160] = flip


def likelihood_multiplied_out(loop: Loop) -> None:
    """The likelihood of a whole line is a product of probabilities, kept from zero by a small number."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        chosen = loop.model(x).softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
        likelihood: Tensor = chosen.prod(1) + 1e-30
        return -likelihood.log().mean() / y.shape[1]

    loop.forward = forward
    loop.shows_loss_fn = False


def outlier_never_forgotten(loop: Loop) -> None:
    """AMSGrad remembers the largest gradient for good, and one batch is a thousand times too large."""
    loop.constant()
    loop.use("adam", amsgrad=True)
    at(loop, 40, lambda x, y: (x * 3000, y))


FAULTS = (
    Kind(
        "half-with-the-usual-eps",
        half_with_the_usual_eps,
        on=("tags", "diffusion"),
        right=BROKEN,
        cause=("numeric-precision", "optimizer-misconfigured"),
        secondary=AFTER,
        acute=True,
    ),
    Kind(
        "log-of-a-raw-output",
        log_of_a_raw_output,
        on=("counts",),
        right=(*BROKEN, "loss-misuse"),
        cause=("numeric-precision", "loss-misuse"),
        secondary=AFTER,
        acute=True,
    ),
    Kind(
        "blank-picture",
        blank_picture,
        on=("patches", "unet"),
        right=(*BROKEN, "nan-in-data", "input-anomaly", "bad-batch"),
        cause=("nan-in-data", "numeric-precision", "bad-batch"),
        secondary=AFTER,
        onset=120,
        acute=True,
    ),
    Kind(
        "its-own-positive",
        its_own_positive,
        on=("triplet",),
        right=BROKEN,
        cause=("numeric-precision",),
        secondary=AFTER,
        onset=150,
        acute=True,
    ),
    Kind(
        "nothing-but-padding",
        nothing_but_padding,
        on=("translate",),
        right=(*BROKEN, "bad-batch"),
        cause=("numeric-precision", "bad-batch"),
        secondary=AFTER,
        onset=130,
        acute=True,
    ),
    Kind(
        "nothing-to-predict",
        nothing_to_predict,
        on=("decoder",),
        right=(*BROKEN, "target-anomaly", "bad-batch", "loss-misuse"),
        cause=("numeric-precision", "bad-batch", "loss-misuse"),
        secondary=AFTER,
        onset=110,
        acute=True,
    ),
    Kind(
        "exponential-of-an-outlier",
        exponential_of_an_outlier,
        on=("counts",),
        right=(*BROKEN, "bad-batch", "input-anomaly", "loss-spike", "gradient-explosion"),
        cause=("bad-batch", "numeric-precision"),
        secondary=(*AFTER, "clip-missing", "unnormalized-inputs"),
        onset=150,
        acute=True,
    ),
    Kind(
        "missing-as-a-number",
        missing_as_a_number,
        on=("forecast", "two-heads"),
        right=("target-anomaly", "bad-batch", "unnormalized-targets", "loss-spike", "gradient-explosion"),
        cause=("bad-batch", "unnormalized-targets"),
        secondary=(*AFTER, "clip-missing", "label-noise-or-misalignment", "train-val-mismatch"),
    ),
    Kind(
        "bit-flipped-in-momentum",
        bit_flipped_in_momentum,
        on=("tags", "mixer"),
        right=("hardware-fault", "state-overwritten", *UNSTABLE),
        cause=("hardware-fault",),
        secondary=(*AFTER, "resume-error"),
        onset=160,
        acute=True,
    ),
    Kind(
        "likelihood-multiplied-out",
        likelihood_multiplied_out,
        on=("decoder",),
        right=(
            "numeric-precision",
            "loss-misuse",
            "suspicious-loss",
            "not-learning",
            "no-gradient",
            "gradient-vanishing",
        ),
        cause=("numeric-precision", "loss-misuse"),
        secondary=(*STALLED, *SIGNAL, "frozen-weights", "suspicious-loss"),
    ),
    Kind(
        "outlier-never-forgotten",
        outlier_never_forgotten,
        on=("graph", "two-heads"),
        right=("bad-batch", "input-anomaly", "loss-spike", "gradient-explosion"),
        cause=("bad-batch",),
        secondary=(*AFTER, "lr-too-low", "clip-missing", "optimizer-misconfigured", "stopped-too-early"),
        onset=40,
        acute=True,
    ),
)
