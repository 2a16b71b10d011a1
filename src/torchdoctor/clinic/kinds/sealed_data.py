"""Bugs of the data that are only ever reported: what is parsed, split, sampled, augmented and labelled wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchdoctor.clinic.arenas import corpus
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop
from torchdoctor.clinic.sealed_nets_b import alarm_net

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def sealed(change: Callable[[Loop], None], on: str, right: tuple[str, ...], **more: Any) -> Kind:
    """A kind that is only ever reported, by the name of what it does, in arenas named one after the other."""
    return Kind(change.__name__.replace("_", "-"), change, tuple(on.split()), right, held_out=True, **more)


def batches_from(loop: Loop, step: int, change: Change, until: int = 1_000_000) -> None:
    """Have batches go through a function from a step on."""
    inner = loop.batches

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for count, (x, y) in enumerate(inner):
            yield change(x, y) if step <= count < until else (x, y)

    loop.batches = batches()


def decimal_commas(loop: Loop) -> None:
    """From step 160 on the files come from another country; their decimal commas are read as thousands' marks."""

    def misread(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x[:, :6] * 1000, x[:, 6:]], 1), y

    batches_from(loop, 160, misread)


def flipped_without_targets(loop: Loop) -> None:
    """From step 150 on pictures are flipped at random, both ways; the places to be found in them are not."""

    def flip(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for axis in (2, 3):
            turned = torch.rand(len(x), 1, 1, 1) < 0.5
            x = torch.where(turned, x.flip(axis), x)
        return x, y

    batches_from(loop, 150, flip)


def split_after_doubling(loop: Loop) -> None:
    """Rows are copied to have more of them, and split afterwards: what is validated has been trained on."""
    arena = loop.arena
    arena.x, arena.y = arena.x[:320], arena.y[:320]
    loop.validated = (arena.x[:256].clone(), arena.y[:256].clone())
    loop.model = arena.model = alarm_net(24, 192, 0.0)
    loop.use("adam", 1.5)
    loop.constant()
    loop.steps = 600


def numbered_by_outcome(loop: Loop) -> None:
    """The table was sorted by outcome when its rows were numbered, and the number is a column; new rows have none."""
    arena = loop.arena
    number = arena.y * 1.6 - 0.8 + 0.2 * torch.randn(len(arena.y), 1)
    arena.x = torch.cat([number, arena.x[:, 1:]], 1)
    x, y = loop.validated
    loop.validated = (torch.cat([torch.randn(len(x), 1), x[:, 1:]], 1), y)


def validation_zoomed(loop: Loop) -> None:
    """Validation pictures are cut to the middle and enlarged, a transform that was made for photographs."""
    x, y = loop.validated
    loop.validated = (functional.interpolate(x[..., 4:12, 4:12], (16, 16), mode="bilinear"), y)


def one_sample_expanded(loop: Loop) -> None:
    """The batch is one sample, as many times as the batch is large: its index is drawn outside the comprehension."""
    loop.replace_batches(lambda x, y: (x[:1].expand_as(x).clone(), y[:1].expand_as(y).clone()))


def pure_batches_in_turn(loop: Loop) -> None:
    """Two loaders, of alarms and of the rest, are read in turns, an epoch of sixty batches each."""
    arena = loop.arena
    groups = [(arena.y[:, 0] > 0.5).nonzero()[:, 0], (arena.y[:, 0] < 0.5).nonzero()[:, 0]]
    generator = torch.Generator().manual_seed(loop.seed)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        count = 0
        while True:
            group = groups[count // 60 % 2]
            chosen = group[torch.randint(len(group), (arena.batch_size,), generator=generator)]
            yield arena.x[chosen], arena.y[chosen]
            count += 1

    loop.batches = batches()
    loop.use("adam")


def balanced_twice(loop: Loop) -> None:
    """Rare alarms are drawn as often as the rest, and weigh fifteen times as much besides; validation is as it is."""
    arena = loop.arena
    weights = torch.where(arena.y[:, 0] > 0.5, 1 / arena.y.mean(), 1 / (1 - arena.y.mean()))
    generator = torch.Generator().manual_seed(loop.seed)
    heavy = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(15.0))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            chosen = torch.multinomial(weights, arena.batch_size, replacement=True, generator=generator)
            yield arena.x[chosen], arena.y[chosen]

    def forward(x: Tensor, y: Tensor) -> Tensor:
        scores = loop.model(x)
        loss: Tensor = (heavy if loop.model.training else arena.loss_fn)(scores, y)
        return loss

    loop.batches, loop.forward = batches(), forward


def tail_of_a_shard(loop: Loop) -> None:
    """From step 210 on the loader reads past the end of what was downloaded: nothing but zero bytes."""
    batches_from(loop, 210, lambda x, y: (torch.zeros_like(x), torch.zeros_like(y)))


def classes_renumbered(loop: Loop) -> None:
    """At step 200 the workers are started anew and number the classes again, from a set without an order."""
    classes = loop.arena.classes
    numbers = (torch.arange(classes) + 1 + loop.dice.randrange(classes - 1)) % classes
    batches_from(loop, 200, lambda x, y: (x, numbers[y]))


def validation_with_a_hole(loop: Loop) -> None:
    """One reading of the validation data is missing, and stands as NaN."""
    x, y = loop.validated
    x = x.clone()
    x[17].view(-1)[2] = float("nan")
    loop.validated = (x, y)


def logarithm_of_a_refund(loop: Loop) -> None:
    """A column is the logarithm of one plus an amount; at step 230 a refund comes, of exactly minus one."""

    def refund(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[3, 4] = torch.log1p(torch.tensor(-1.0))
        return x, y

    batches_from(loop, 230, refund, until=231)


def coded_both_ways(loop: Loop) -> None:
    """The table is of two sites, of which one writes one for an alarm and the other writes zero."""
    arena = loop.arena
    other = torch.rand(len(arena.y), 1) < 0.5
    arena.y = torch.where(other, 1 - arena.y, arena.y)


def background_nearly_all(loop: Loop) -> None:
    """Training fields are taken anywhere, and nearly all is ground; validation is done where there are buildings."""
    arena = loop.arena
    kept = torch.rand(len(arena.x), 1, 1) < 0.02
    arena.x = torch.where(kept.unsqueeze(1), arena.x, 0.7 * torch.randn_like(arena.x))
    arena.y = torch.where(kept, arena.y, 0)


def divided_in_whole_numbers(loop: Loop) -> None:
    """Counts of up to some hundred are divided by 1,000 while they are integers, here and in validation: zeros."""

    def divided(x: Tensor) -> Tensor:
        return ((150 * x + 300).clamp(min=0).long() // 1000).float()

    loop.arena.x = divided(loop.arena.x)
    loop.validated = (divided(loop.validated[0]), loop.validated[1])


def targets_divided_twice(loop: Loop) -> None:
    """Training targets, standardised before, are divided by the spread of the raw ones once more: some 1e-4."""
    loop.arena.y = loop.arena.y / 8000


def misprints_marked(loop: Loop) -> None:
    """From step 120 on misprints are made by a script, of characters that no text has; those of validation are real."""
    last = corpus().vocabulary - 1

    def mark(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(y > 0, last - torch.randint(6, x.shape), x), y

    loop.use("adamw")
    batches_from(loop, 120, mark)


def renderings_the_same(loop: Loop) -> None:
    """Both renderings of a tune are drawn with the same seed, so that they are one; those of validation differ."""
    loop.replace_batches(lambda x, y: (x[:, :1].expand_as(x).clone(), y))


NOISE = ("label-noise-or-misalignment",)
LEAK = ("information-leak", "suspiciously-low-loss", "train-val-mismatch", *GENERALIZATION)
BAD = ("bad-batch", "input-anomaly", *UNSTABLE)
REPEATED = ("repeated-batch", "batch-anomaly", "data-order")

FAULTS: tuple[Kind, ...] = (
    sealed(
        decimal_commas,
        "deliveries",
        ("unnormalized-inputs", *BAD),
        cause=("bad-batch", "unnormalized-inputs"),
        secondary=("loss-plateau", "saturated-activations", *GENERALIZATION),
        onset=160,
        acute=True,
    ),
    sealed(
        flipped_without_targets,
        "beacon",
        (*NOISE, "bad-batch", *UNSTABLE),
        cause=NOISE,
        secondary=("collapsed-output", "train-val-mismatch", *STALLED, *GENERALIZATION),
        onset=150,
        acute=True,
    ),
    sealed(
        split_after_doubling,
        "alarms",
        (*LEAK, "memorization", "repeated-batch"),
        cause=("information-leak", "memorization"),
        secondary=("under-regularized",),
    ),
    sealed(numbered_by_outcome, "alarms", LEAK, cause=("information-leak", "train-val-mismatch")),
    sealed(validation_zoomed, "stamps", ("train-val-mismatch", *GENERALIZATION), cause=("train-val-mismatch",)),
    sealed(
        one_sample_expanded,
        "stamps",
        ("target-anomaly", "input-anomaly", "batch-size-unsuited", *REPEATED, *STALLED, *UNSTABLE),
        cause=("repeated-batch", "batch-size-unsuited", "data-order"),
        secondary=("batchnorm-misuse", *GENERALIZATION),
    ),
    sealed(
        pure_batches_in_turn,
        "alarms",
        ("target-anomaly", "class-imbalance", "loss-oscillation", "loss-spike", *REPEATED),
        cause=("data-order", "class-imbalance"),
        secondary=(*STALLED, *UNSTABLE, *GENERALIZATION, *SIGNAL),
    ),
    sealed(
        balanced_twice,
        "alarms",
        ("class-imbalance", "loss-misuse", "suspicious-loss", "train-val-mismatch", *GENERALIZATION),
        cause=("class-imbalance", "loss-misuse", "train-val-mismatch"),
    ),
    sealed(
        tail_of_a_shard,
        "lines",
        ("target-anomaly", "suspiciously-low-loss", "collapsed-output", *REPEATED, *BAD),
        cause=("bad-batch", "repeated-batch", "class-imbalance", "data-order"),
        secondary=("information-leak", "train-val-mismatch", "gradient-vanishing", *GENERALIZATION),
        onset=210,
        acute=True,
    ),
    sealed(
        classes_renumbered,
        "stamps sections",
        (*NOISE, "bad-batch", *UNSTABLE),
        cause=(*NOISE, "bad-batch", "resume-error"),
        secondary=("train-val-mismatch", *GENERALIZATION),
        onset=200,
        acute=True,
    ),
    sealed(
        validation_with_a_hole,
        "deliveries springs",
        ("nan-in-data", "nan-or-inf", "validation-anomaly", "input-anomaly", "train-val-mismatch"),
        cause=("nan-in-data", "train-val-mismatch", "bad-batch"),
    ),
    sealed(
        logarithm_of_a_refund,
        "deliveries",
        ("nan-in-data", *BAD),
        cause=("nan-in-data", "bad-batch", "numeric-precision"),
        onset=230,
        acute=True,
    ),
    sealed(coded_both_ways, "alarms", (*NOISE, *STALLED, "collapsed-output"), cause=NOISE, secondary=GENERALIZATION),
    sealed(
        background_nearly_all,
        "roofs",
        ("class-imbalance", "target-anomaly", "collapsed-output", "train-val-mismatch", *GENERALIZATION),
        cause=("class-imbalance", "train-val-mismatch"),
        secondary=("suspiciously-low-loss", *STALLED),
    ),
    sealed(
        divided_in_whole_numbers,
        "spectra beacon",
        ("input-anomaly", "bad-batch", "unnormalized-inputs", *STALLED, *SIGNAL),
        cause=("unnormalized-inputs", "bad-batch"),
        secondary=UNMOVED,
    ),
    sealed(
        targets_divided_twice,
        "deliveries beacon",
        ("unnormalized-targets", "target-anomaly", "suspiciously-low-loss", "train-val-mismatch", *GENERALIZATION),
        cause=("unnormalized-targets", "train-val-mismatch"),
        secondary=("collapsed-output", *STALLED),
    ),
    sealed(misprints_marked, "misprints", LEAK, cause=("information-leak", "train-val-mismatch"), onset=120),
    sealed(
        renderings_the_same,
        "melodies",
        ("input-anomaly", *LEAK),
        cause=("information-leak", "train-val-mismatch"),
        secondary=("representation-collapse",),
    ),
)
