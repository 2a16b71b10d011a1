"""Inputs and labels that are wrong before the model sees them, in pictures, texts, tables and series."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

WRONG_LABELS = ("label-noise-or-misalignment", "not-learning", "slow-learning", "loss-plateau", "underfitting")
INPUTS = ("input-anomaly", "unnormalized-inputs")


def bytes_not_divided(loop: Loop) -> None:
    """Pictures arrive as bytes from 0 to 255, made floating-point and nothing else."""
    loop.constant()
    loop.use("sgd")

    def as_bytes(x: Tensor) -> Tensor:
        return (128 + 45 * x).clamp(0, 255).round()

    arena = loop.arena
    arena.x = as_bytes(arena.x)
    loop.validated = (as_bytes(loop.validated[0]), loop.validated[1])


def normalised_twice(loop: Loop) -> None:
    """Pictures that were divided by 255 before are divided again, and then the mean is taken off."""

    def prepare(x: Tensor) -> Tensor:
        return ((128 + 45 * x) / 255 / 255 - 0.5) / 0.18

    arena = loop.arena
    arena.x = prepare(arena.x)
    loop.validated = (prepare(loop.validated[0]), loop.validated[1])


def files_not_found(loop: Loop) -> None:
    """Where a file cannot be read the loader gives a blank picture, and that is most of them."""
    share = loop.dice.choice([0.7, 0.85])
    missing = torch.rand(len(loop.arena.x), generator=torch.Generator().manual_seed(loop.seed)) < share
    loop.arena.x = loop.arena.x.clone()
    loop.arena.x[missing] = 0.0


def erased_nearly_all(loop: Loop) -> None:
    """Random erasing covers nine tenths of every training picture, where one tenth was meant."""

    def erase(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        size = x.shape[-1]
        keep = torch.zeros_like(x)
        for index, (row, column) in enumerate(torch.randint(size - 3, (len(x), 2)).tolist()):
            keep[index, :, row : row + 4, column : column + 4] = 1
        return x * keep, y

    loop.replace_batches(erase)


def unknown_words(loop: Loop) -> None:
    """The vocabulary was built from another text: nine characters of ten become the unknown one."""
    known = torch.zeros(loop.arena.classes, dtype=torch.bool)
    known[torch.randperm(loop.arena.classes, generator=torch.Generator().manual_seed(loop.seed))[:6]] = True

    def encode(tokens: Tensor) -> Tensor:
        return torch.where(known[tokens], tokens, torch.zeros_like(tokens))

    arena = loop.arena
    arena.x, arena.y = encode(arena.x), encode(arena.y)
    loop.validated = (encode(loop.validated[0]), encode(loop.validated[1]))


def columns_in_another_order(loop: Loop) -> None:
    """The validation table was written with its numeric columns in another order."""
    x, y = loop.validated
    loop.validated = (torch.cat([x[:, :8].roll(3, 1), x[:, 8:]], 1), y)


def joined_on_the_wrong_key(loop: Loop) -> None:
    """Inputs and targets come from two tables that are sorted differently, and are joined by row."""
    loop.arena.y = loop.arena.y.roll(loop.dice.choice([17, 101]), 0)


def annotators_guess(loop: Loop) -> None:
    """Most of the pixels' labels were guessed: two pictures of three carry the mask of another."""
    generator = torch.Generator().manual_seed(loop.seed)
    y = loop.arena.y
    wrong = torch.rand(len(y), generator=generator) < 0.67
    loop.arena.y = torch.where(wrong.view(-1, 1, 1), y[torch.randperm(len(y), generator=generator)], y)


def prices_as_they_are(loop: Loop) -> None:
    """The target is a price over five orders of magnitude, and nobody takes its logarithm."""
    loop.constant()
    loop.loss_fn = nn.MSELoss()
    loop.model = loop.arena.model = nn.Sequential(loop.model, nn.Linear(3, 1))

    def price(y: Tensor) -> Tensor:
        return (2.2 * y + 6).exp()

    loop.arena.y = price(loop.arena.y)
    loop.validated = (loop.validated[0], price(loop.validated[1]))


FAULTS = (
    Kind(
        "bytes-not-divided",
        bytes_not_divided,
        on=("shapes-vit", "denoiser"),
        right=INPUTS,
        cause=("unnormalized-inputs",),
        secondary=(*UNSTABLE, *STALLED, *SIGNAL, *GENERALIZATION, "unexpected-initial-loss"),
    ),
    Kind(
        "normalised-twice",
        normalised_twice,
        on=("shapes-vit", "cells"),
        right=INPUTS,
        cause=("unnormalized-inputs",),
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION),
    ),
    Kind(
        "files-not-found",
        files_not_found,
        on=("shapes-vit",),
        right=("input-anomaly", "bad-batch", "train-val-mismatch", "validation-anomaly"),
        secondary=(*STALLED, *GENERALIZATION, "label-noise-or-misalignment", "collapsed-output"),
    ),
    Kind(
        "erased-nearly-all",
        erased_nearly_all,
        on=("shapes-vit",),
        right=("over-regularized", "train-val-mismatch", "validation-anomaly", "input-anomaly", *STALLED[:4]),
        cause=("over-regularized", "train-val-mismatch"),
        secondary=(*STALLED, *GENERALIZATION, "collapsed-output"),
    ),
    Kind(
        "unknown-words",
        unknown_words,
        on=("tied-text",),
        right=("input-anomaly", "target-anomaly", "class-imbalance", "collapsed-output", "suspiciously-low-loss"),
        secondary=("batch-anomaly", "underfitting", "loss-plateau"),
    ),
    Kind(
        "columns-in-another-order",
        columns_in_another_order,
        on=("customers",),
        right=("train-val-mismatch", "validation-anomaly"),
        cause=("train-val-mismatch",),
        secondary=("overfitting",),
    ),
    Kind(
        "joined-on-the-wrong-key",
        joined_on_the_wrong_key,
        on=("bands", "tides"),
        right=WRONG_LABELS,
        cause=("label-noise-or-misalignment",),
        secondary=(*STALLED, *GENERALIZATION, "collapsed-output"),
    ),
    Kind(
        "annotators-guess",
        annotators_guess,
        on=("cells",),
        right=(*WRONG_LABELS, "validation-anomaly", "train-val-mismatch"),
        cause=("label-noise-or-misalignment",),
        secondary=(*STALLED, *GENERALIZATION),
    ),
    Kind(
        "prices-as-they-are",
        prices_as_they_are,
        on=("bands",),
        right=("target-anomaly", "unnormalized-targets"),
        cause=("unnormalized-targets",),
        secondary=(
            "unexpected-initial-loss",
            *UNSTABLE,
            *STALLED,
            *GENERALIZATION,
            "bad-batch",
            "collapsed-output",
            "clip-missing",
        ),
    ),
)
