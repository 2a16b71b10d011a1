"""Data gone wrong, never looked at: what is read, cut, joined, cast, split and ordered wrongly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def within(loop: Loop, steps: range, change: Change) -> None:
    """Have the batches of some steps go through a function."""
    count = iter(range(10**6))
    loop.replace_batches(lambda x, y: change(x, y) if next(count) in steps else (x, y))


def another_vocabulary(loop: Loop) -> None:
    """The vocabulary is built anew from the validation text: its tokens have other numbers."""
    order = torch.randperm(loop.arena.classes, generator=torch.Generator("cpu").manual_seed(loop.seed))
    order = order.to(loop.arena.x.device)
    loop.validated = tuple(order[tensor] for tensor in loop.validated)  # type: ignore[assignment]


def order_of_the_file(loop: Loop) -> None:
    """The file lists one class after the other, and the loader reads it as it stands."""
    order = loop.arena.y.argsort()
    loop.arena.x, loop.arena.y = loop.arena.x[order], loop.arena.y[order]
    loop.batches = loop.arena.batches(shuffle=False)


def hardly_any_defaults(loop: Loop) -> None:
    """Of those who applied, one in two hundred defaulted; validation is done on as many of either."""
    bad = loop.arena.y.squeeze(1) > 0.5
    rare = bad.nonzero().squeeze(1)[: int((~bad).sum()) // 200]
    kept = torch.cat([(~bad).nonzero().squeeze(1), rare])
    loop.arena.x, loop.arena.y = loop.arena.x[kept], loop.arena.y[kept]


def labels_of_the_batch_before(loop: Loop) -> None:
    """Of two queues, for inputs and for labels, one loses a batch at step 120: from then on they are one apart."""
    last: list[Tensor] = []

    def delayed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        last.append(y)
        return x, last.pop(0) if len(last) > 1 else y

    within(loop, range(119, loop.steps), delayed)


def pixels_cast_to_bytes(loop: Loop) -> None:
    """Pictures are normalised, and then stored as bytes: below zero they come back as 255."""

    def cast(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.trunc().remainder(256), y

    loop.replace_batches(cast)
    loop.validated = cast(*loop.validated)


def sensor_at_its_code(loop: Loop) -> None:
    """From step 150 on one sensor is broken, and gives the code for no reading: -9999."""

    def broken(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[..., 2] = -9999.0
        return x, y

    within(loop, range(150, loop.steps), broken)


def meters_in_other_units(loop: Loop) -> None:
    """One file, of four batches, has its targets in units a thousand times smaller."""
    within(loop, range(200, 204), lambda x, y: (x, 1000 * y))
    loop.use("sgd")
    loop.constant()


def ratio_with_nothing_below(loop: Loop) -> None:
    """A ratio of two columns is infinite in a single row, where the second is zero."""

    def divided(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[0, 3] = float("inf")
        return x, y

    within(loop, range(170, 171), divided)


def encoded_by_their_outcome(loop: Loop) -> None:
    """A category is replaced by the mean outcome of its rows, its own included, and most have one row only."""
    mean = loop.arena.y.mean()
    loop.arena.x = loop.arena.x.clone()
    loop.arena.x[:, 0] = 4 * (loop.arena.y.squeeze(1) - mean)
    x, y = loop.validated
    x = x.clone()
    x[:, 0] = 0.0
    loop.validated = (x, y)


def blue_for_red(loop: Loop) -> None:
    """Validation pictures are read by another library, which gives blue first."""
    x, y = loop.validated
    loop.validated = (x.flip(1), y)


def time_in_seconds(loop: Loop) -> None:
    """A column is a date, in seconds since 1970, and goes into the net as it is."""

    def dated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[..., -1] = 1.7e9 + 3e7 * x[..., -1]
        return x, y

    loop.replace_batches(dated)
    loop.validated = dated(*loop.validated)


def years_as_targets(loop: Loop) -> None:
    """The target is a year, as it stands in the table: some two thousand, give or take eight."""

    def years(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, 2005 + 8 * y

    loop.replace_batches(years)
    loop.validated = years(*loop.validated)
    loop.use("adam")


def seeded_inside_the_loop(loop: Loop) -> None:
    """Workers are started anew at step 60, and each sets its own seed at each step: three batches, again and again."""
    three = [next(loop.batches) for _ in range(3)]
    count = iter(range(10**6))
    within(loop, range(60, loop.steps), lambda x, y: three[next(count) % 3])


def labels_missing(loop: Loop) -> None:
    """From step 200 on the files come without labels, and all are read as class zero."""
    within(loop, range(200, loop.steps), lambda x, y: (x, torch.zeros_like(y)))


def binary_read_as_text(loop: Loop) -> None:
    """From step 180 on the loader reads a packed file as if it were text."""

    def garbage(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(loop.arena.classes, (x.shape[0], x.shape[1] + 1), device=x.device)
        return tokens[:, :-1], tokens[:, 1:]

    within(loop, range(180, loop.steps), garbage)


def targets_cast_to_whole_numbers(loop: Loop) -> None:
    """Targets are collected in a tensor of integers: what is between -1 and 1 becomes zero."""
    loop.replace_batches(lambda x, y: (x, y.trunc()))


def noise_added_in_place(loop: Loop) -> None:
    """Augmentation is written in place: the noise stays in the stored data, and adds up."""

    def noisy(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loop.arena.x.add_(0.1 * torch.randn_like(loop.arena.x))
        return x, y

    loop.replace_batches(noisy)


MISMATCH = (*GENERALIZATION, "train-val-mismatch")
OFF = ("unnormalized-inputs", "input-anomaly")
BLIND = (*STALLED, *SIGNAL)
FAULTS = (
    Kind(
        "validation-of-another-vocabulary",
        another_vocabulary,
        on=("bytes",),
        right=MISMATCH,
        cause=("train-val-mismatch",),
    ),
    Kind(
        "read-in-the-order-of-the-file",
        order_of_the_file,
        on=("gaps", "points"),
        right=("data-order", "batch-anomaly", "target-anomaly", "class-imbalance"),
        cause=("data-order",),
        secondary=(*UNSTABLE, *BLIND, *GENERALIZATION, "suspiciously-low-loss", "frozen-weights"),
    ),
    Kind(
        "hardly-any-defaults",
        hardly_any_defaults,
        on=("loans",),
        right=("class-imbalance", "target-anomaly", "collapsed-output", *GENERALIZATION),
        cause=("class-imbalance", "train-val-mismatch"),
        secondary=("train-val-mismatch", "loss-plateau", "gradient-instability", "suspiciously-low-loss"),
    ),
    Kind(
        "labels-of-the-batch-before",
        labels_of_the_batch_before,
        on=("sorting",),
        right=("label-noise-or-misalignment", "loss-spike", "loss-divergence", "loss-plateau", "underfitting"),
        cause=("label-noise-or-misalignment",),
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION, "collapsed-output"),
        onset=120,
    ),
    Kind(
        "pixels-cast-to-bytes",
        pixels_cast_to_bytes,
        on=("glyphs",),
        right=(*OFF, "activation-explosion", "unexpected-initial-loss"),
        cause=("unnormalized-inputs",),
        secondary=(*UNSTABLE, *BLIND),
    ),
    Kind(
        "sensor-at-its-code",
        sensor_at_its_code,
        on=("sensors",),
        right=(*OFF, "bad-batch", "loss-spike", "gradient-explosion", "saturated-activations", "loss-divergence"),
        cause=("bad-batch", "unnormalized-inputs", "nan-in-data"),
        secondary=(*UNSTABLE, *BLIND, *GENERALIZATION, "train-val-mismatch", "saturating-nonlinearity"),
        onset=150,
        acute=True,
    ),
    Kind(
        "meters-in-other-units",
        meters_in_other_units,
        on=("demand", "coordinates"),
        right=(*UNSTABLE, "bad-batch", "target-anomaly", "unnormalized-targets"),
        cause=("bad-batch", "unnormalized-targets"),
        secondary=("clip-missing", *BLIND, "validation-anomaly"),
        onset=200,
        acute=True,
    ),
    Kind(
        "ratio-with-nothing-below",
        ratio_with_nothing_below,
        on=("loans",),
        right=("nan-or-inf", "nan-in-data", "input-anomaly", "bad-batch"),
        cause=("nan-in-data", "bad-batch"),
        secondary=("validation-anomaly", "numeric-precision"),
        onset=170,
        acute=True,
    ),
    Kind(
        "encoded-by-their-outcome",
        encoded_by_their_outcome,
        on=("loans",),
        right=("information-leak", "suspiciously-low-loss", *MISMATCH),
        cause=("information-leak", "train-val-mismatch"),
        secondary=("memorization",),
    ),
    Kind("blue-for-red", blue_for_red, on=("glyphs",), right=MISMATCH, cause=("train-val-mismatch",)),
    Kind(
        "time-in-seconds",
        time_in_seconds,
        on=("demand",),
        right=(*OFF, *UNSTABLE, "unexpected-initial-loss"),
        cause=("unnormalized-inputs",),
        secondary=(*BLIND, "validation-anomaly", "lr-too-high"),
    ),
    Kind(
        "years-as-targets",
        years_as_targets,
        on=("demand", "sensors"),
        right=("unnormalized-targets", "target-anomaly", "unexpected-initial-loss", *STALLED),
        cause=("unnormalized-targets",),
        secondary=("lr-too-low", "collapsed-output", "saturated-activations", "weight-growth"),
    ),
    Kind(
        "seeded-inside-the-loop",
        seeded_inside_the_loop,
        on=("words",),
        right=("repeated-batch", "batch-anomaly", "memorization", *GENERALIZATION),
        cause=("repeated-batch", "memorization"),
        secondary=("suspiciously-low-loss",),
        onset=60,
    ),
    Kind(
        "labels-missing-from-later-files",
        labels_missing,
        on=("gaps", "glyphs"),
        right=("target-anomaly", "class-imbalance", "loss-spike", "batch-anomaly", "collapsed-output", "bad-batch"),
        cause=("class-imbalance", "label-noise-or-misalignment", "bad-batch", "data-order"),
        secondary=(*UNSTABLE, *GENERALIZATION, "suspiciously-low-loss", "gradient-vanishing", "data-order"),
        onset=200,
        acute=True,
    ),
    Kind(
        "binary-read-as-text",
        binary_read_as_text,
        on=("bytes", "words"),
        right=("loss-spike", "loss-divergence", "bad-batch", "target-anomaly", "label-noise-or-misalignment"),
        cause=("bad-batch", "label-noise-or-misalignment"),
        secondary=(*UNSTABLE, *GENERALIZATION, "loss-plateau", "underfitting", "train-val-mismatch"),
        onset=180,
        acute=True,
    ),
    Kind(
        "targets-cast-to-whole-numbers",
        targets_cast_to_whole_numbers,
        on=("sensors",),
        right=("target-anomaly", "label-noise-or-misalignment", *MISMATCH),
        secondary=("loss-plateau", "underfitting", "collapsed-output"),
    ),
    Kind(
        "noise-added-in-place",
        noise_added_in_place,
        on=("coordinates",),
        right=(*OFF, *MISMATCH, "over-regularized", "loss-divergence", "underfitting"),
        cause=("over-regularized", "unnormalized-inputs", "train-val-mismatch"),
        secondary=("loss-plateau", "gradient-instability", "label-noise-or-misalignment", "loss-spike"),
    ),
)
