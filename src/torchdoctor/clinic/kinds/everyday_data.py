"""What goes wrong with data in ordinary projects: units, order, labels, missing values."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind, Onset
from torchdoctor.clinic.kinds.loop import Loop

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
UNITS = (1500.0, 35.0, 40.0, 3.0, 6.0, 120.0, 0.2, 9000.0, 2.0, 15.0, 60.0, 400.0)
"""Square feet, years, degrees, rooms and so on: the spread of a column as it is in the file."""
WRONG_ROWS = ("label-noise-or-misalignment", *STALLED, "overfitting", "validation-anomaly", "memorization")
WRONG_SPLIT = ("train-val-mismatch", *GENERALIZATION)
OUT_OF_SCALE = ("unnormalized-inputs", "input-anomaly", "unexpected-initial-loss", *UNSTABLE, *STALLED)


def fault(
    slug: str,
    change: Callable[[Loop], None],
    on: str,
    right: tuple[str, ...],
    cause: tuple[str, ...],
    secondary: tuple[str, ...] = (),
    onset: Onset = 0,
    acute: bool = False,
) -> Kind:
    """A kind on arenas that are named in one line."""
    arenas = tuple(f"everyday-{name}" for name in on.split())
    true = (*secondary, "multiple-pathologies")
    return Kind(f"everyday-{slug}", change, arenas, right, (), cause, true, onset=onset, acute=acute, held_out=True)


def since(loop: Loop, onset: int, change: Change) -> None:
    """From a step on, have every batch go through a function."""
    count = itertools.count()
    loop.replace_batches(lambda x, y: change(x.clone(), y.clone()) if next(count) >= onset else (x, y))


def everywhere(loop: Loop, change: Callable[[Tensor], Tensor]) -> None:
    """Have the inputs of training and of validation go through a function."""
    loop.arena.x = change(loop.arena.x.clone())
    loop.validated = (change(loop.validated[0].clone()), loop.validated[1])


def sort(loop: Loop) -> None:
    """Have the data by class, as they lie in folders, and read them in this order."""
    order = loop.arena.y.flatten().argsort(stable=True)
    loop.arena.x, loop.arena.y = loop.arena.x[order], loop.arena.y[order]
    loop.batches = loop.arena.batches(shuffle=False)


# ── units ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def raw_columns(loop: Loop) -> None:
    """The columns of the table are fed as they are in the file, each in its own unit."""
    units = torch.tensor(UNITS)

    def unscaled(x: Tensor) -> Tensor:
        columns = 8 if x.shape[1] == 11 else x.shape[1]  # the last three of eleven are categories
        x[:, :columns] = (x[:, :columns] + 2) * units[:columns]
        return x

    everywhere(loop, unscaled)
    loop.constant()


def raw_bytes(loop: Loop) -> None:
    """Pictures are bytes from 0 to 255, made float and never divided."""
    everywhere(loop, lambda x: (60 * x + 110).clamp(0, 255).round())
    loop.use("sgd")
    loop.constant()


def raw_targets(loop: Loop) -> None:
    """The amounts to be predicted are in their own unit, in the hundred thousands."""
    loop.arena.y = loop.arena.y * 80_000 + 250_000
    loop.validated = (loop.validated[0], loop.validated[1] * 80_000 + 250_000)
    loop.constant()


# ── order and repetition ─────────────────────────────────────────────────────────────────────────────────────────────


def by_folder(loop: Loop) -> None:
    """The files are read folder by folder, one class after the other, without shuffling."""
    sort(loop)


def same_first_batch(loop: Loop) -> None:
    """The loop takes `next(iter(loader))` at each step, of a loader that does not shuffle."""
    first = next(loop.arena.batches(shuffle=False))
    loop.batches = itertools.repeat(first)


def stuck_loader(loop: Loop) -> None:
    """From step 150 on the loader returns what it has in its buffer, the same batch again and again."""
    held: list[tuple[Tensor, Tensor]] = []

    def stuck(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        held.append((x, y))
        return held[0]

    since(loop, 150, stuck)
    loop.constant()
    loop.steps += 150


# ── labels ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def shuffled_apart(loop: Loop) -> None:
    """Inputs were shuffled and labels were not, before both were saved."""
    loop.arena.x = loop.arena.x[torch.randperm(len(loop.arena.x))]


def two_numberings(loop: Loop) -> None:
    """From step 120 on the labels are those of several annotators, half of whom count the classes from another one."""

    def annotated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.where(torch.rand(len(y)) < 0.55, (y + 1) % loop.arena.classes, y)

    since(loop, 120, annotated)


def renumbered(loop: Loop) -> None:
    """From step 200 on the batches come from a second export, with the classes numbered otherwise."""

    def other(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.where(y >= 0, (y + 1) % loop.arena.classes, y)

    since(loop, 200, other)


def few_positives(loop: Loop) -> None:
    """One positive in a hundred in the log that is trained on; validation has as many as negatives."""
    y = loop.arena.y.flatten()
    kept = (y == 0) | (torch.rand(len(y)) < 0.01)
    loop.arena.x, loop.arena.y = loop.arena.x[kept], loop.arena.y[kept]
    x, y = loop.validated
    ones = (y.flatten() == 1).nonzero().flatten()[:128]
    chosen = torch.cat([ones, (y.flatten() == 0).nonzero().flatten()[: len(ones)]])
    loop.validated = (x[chosen], y[chosen])


# ── values that are not there ────────────────────────────────────────────────────────────────────────────────────────


def empty_cells(loop: Loop) -> None:
    """From step 160 on some rows have an empty cell, which was read as NaN."""

    def empty(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[::16, 3] = float("nan")
        return x, y

    since(loop, 160, empty)


def missing_is_999(loop: Loop) -> None:
    """From step 120 on, rows of a second source have -999 where a value is missing."""

    def missing(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[::8, 1] = -999.0
        return x, y

    since(loop, 120, missing)
    loop.use("sgd")
    loop.constant()


def meter_down(loop: Loop) -> None:
    """From step 220 on the meter is down at times, and the target is -9999 then."""

    def down(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y[::10] = -9999.0
        return x, y

    since(loop, 220, down)
    loop.constant()


def shard_of_bytes(loop: Loop) -> None:
    """From step 180 on the data come from files that nobody has scaled."""
    since(loop, 180, lambda x, y: (60 * x + 110, y))
    loop.constant()


def black_pictures(loop: Loop) -> None:
    """From step 140 on the decoder fails, and every picture is black."""
    since(loop, 140, lambda x, y: (torch.zeros_like(x), y))


FAULTS: tuple[Kind, ...] = (
    fault(
        "raw-columns",
        raw_columns,
        "house-prices churn",
        OUT_OF_SCALE,
        ("unnormalized-inputs",),
        (*SIGNAL, "lr-too-high"),
    ),
    fault("raw-bytes", raw_bytes, "pocket-digits", OUT_OF_SCALE, ("unnormalized-inputs",), (*SIGNAL, "lr-too-high")),
    fault(
        "raw-targets",
        raw_targets,
        "house-prices",
        ("unnormalized-targets", "target-anomaly", "unexpected-initial-loss", *UNSTABLE, *STALLED),
        ("unnormalized-targets",),
        (*SIGNAL, "lr-too-high", "lr-too-low", "clip-missing"),
    ),
    fault(
        "by-folder",
        by_folder,
        "pocket-digits reviews",
        ("data-order", "batch-anomaly", "loss-oscillation", "loss-spike", "gradient-instability", "collapsed-output"),
        ("data-order",),
        (*STALLED, *UNSTABLE, *GENERALIZATION, *SIGNAL, "target-anomaly", "suspiciously-low-loss", "class-imbalance"),
    ),
    fault(
        "same-first-batch",
        same_first_batch,
        "pocket-digits novel",
        ("repeated-batch", "batch-anomaly", "overfitting", "memorization"),
        ("repeated-batch", "memorization"),
        ("suspiciously-low-loss", "validation-anomaly", "gradient-vanishing", "loss-plateau"),
    ),
    fault(
        "stuck-loader",
        stuck_loader,
        "motion",
        ("repeated-batch", "batch-anomaly", "overfitting", "memorization"),
        ("repeated-batch", "memorization"),
        ("suspiciously-low-loss", "validation-anomaly", "gradient-vanishing"),
        onset=150,
    ),
    fault(
        "shuffled-apart",
        shuffled_apart,
        "pocket-digits",
        WRONG_ROWS,
        ("label-noise-or-misalignment",),
        ("collapsed-output", "gradient-instability"),
    ),
    fault(
        "two-numberings",
        two_numberings,
        "photos",
        ("bad-batch", *WRONG_ROWS, *UNSTABLE),
        ("label-noise-or-misalignment", "bad-batch"),
        ("data-order", "train-val-mismatch"),
        onset=120,
    ),
    fault(
        "renumbered",
        renumbered,
        "word-tagger photos",
        ("label-noise-or-misalignment", "bad-batch", "target-anomaly", *UNSTABLE, *WRONG_SPLIT),
        ("label-noise-or-misalignment", "bad-batch", "train-val-mismatch"),
        ("data-order", "batch-anomaly"),
        onset=200,
        acute=True,
    ),
    fault(
        "few-positives",
        few_positives,
        "churn comments",
        ("class-imbalance", "collapsed-output", "target-anomaly", *WRONG_SPLIT),
        ("class-imbalance",),
        (*STALLED, "suspiciously-low-loss", "gradient-vanishing"),
    ),
    fault(
        "empty-cells",
        empty_cells,
        "house-prices",
        ("nan-or-inf", "nan-in-data", "input-anomaly", "bad-batch"),
        ("nan-in-data", "bad-batch"),
        onset=160,
        acute=True,
    ),
    fault(
        "missing-is-999",
        missing_is_999,
        "house-prices",
        ("bad-batch", "unnormalized-inputs", "input-anomaly", *UNSTABLE),
        ("bad-batch", "unnormalized-inputs"),
        (*STALLED, *SIGNAL, *GENERALIZATION),
        onset=120,
        acute=True,
    ),
    fault(
        "meter-down",
        meter_down,
        "power-demand",
        ("bad-batch", "unnormalized-targets", "target-anomaly", "label-noise-or-misalignment", *UNSTABLE),
        ("bad-batch", "unnormalized-targets", "label-noise-or-misalignment"),
        (*STALLED, *SIGNAL, *GENERALIZATION),
        onset=220,
        acute=True,
    ),
    fault(
        "shard-of-bytes",
        shard_of_bytes,
        "pocket-digits motion",
        ("bad-batch", "unnormalized-inputs", "input-anomaly", *UNSTABLE),
        ("bad-batch", "unnormalized-inputs"),
        (*STALLED, *SIGNAL, *WRONG_SPLIT),
        onset=180,
        acute=True,
    ),
    fault(
        "black-pictures",
        black_pictures,
        "photos",
        ("bad-batch", "input-anomaly", "collapsed-output", "batch-anomaly", "repeated-batch", "no-gradient", *UNSTABLE),
        ("bad-batch", "repeated-batch"),
        (*STALLED, *SIGNAL, *WRONG_SPLIT),
        onset=140,
        acute=True,
    ),
)
