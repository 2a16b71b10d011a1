"""Faults of data, targets and validation as people report them, in loops that show little of themselves.

Half of the loops that are asked about call a function for a loss and log a number: there is no module to hook, and no
graph behind what is logged.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop


def log_numbers(loop: Loop) -> None:
    """The loss is not shown, and is logged as a number."""
    loop.shows_loss_fn = loop.log_batches = False

    def log(loss: Tensor, name: str = "loss") -> None:
        loop.losses.append(loss.item())
        if loop.doctor is not None:
            loop.doctor.log_loss(loss.item(), name=name)

    loop.log = log


def outcome_left_in_table(loop: Loop) -> None:
    """A column of the table is the outcome that is to be predicted, in other numbers."""

    def told(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[:, -1] = 0.8 * y.flatten() - 0.4
        return x, y

    loop.replace_batches(told)
    loop.validated = told(*loop.validated)


def validated_in_training_mode(loop: Loop) -> None:
    """`model.eval()` is forgotten: validation runs with dropout, and with the statistics of its own batches."""

    @torch.no_grad()
    def validate() -> float:
        x, y = (tensor[:64] for tensor in loop.validated)
        return float(loop.forward(x, y))

    loop.validate = validate


def crossed_out_of_sight(loop: Loop) -> None:
    """`((model(x) - y) ** 2).mean()` of a column and a row; the loop logs `loss.item()`."""
    log_numbers(loop)
    loop.forward = lambda x, y: ((loop.model(x) - y.flatten()) ** 2).mean()


def targets_unseen(loop: Loop) -> None:
    """Targets in the tens of thousands, `functional.mse_loss`, and `loss.item()` is all that is logged."""
    log_numbers(loop)
    loop.replace_batches(lambda x, y: (x, 2e4 * y + 5e4))
    loop.validated = (loop.validated[0], 2e4 * loop.validated[1] + 5e4)
    loop.forward = lambda x, y: functional.mse_loss(loop.model(x), y)
    loop.use("adam")
    loop.constant()


def ordered_by_outcome(loop: Loop) -> None:
    """The table is sorted by what is to be predicted, and the loader does not shuffle."""
    chosen = torch.randperm(len(loop.arena.x))[: 40 * loop.arena.batch_size]
    chosen = chosen[loop.arena.y[chosen].flatten().argsort()]
    loop.arena.x, loop.arena.y = loop.arena.x[chosen], loop.arena.y[chosen]
    loop.batches = loop.arena.batches(shuffle=False)
    loop.use("sgd")
    loop.constant()


def views_without_negatives(loop: Loop) -> None:
    """Two views are drawn together, both with gradients, and nothing keeps different things apart."""

    def pulled(x: Tensor, y: Tensor) -> Tensor:
        first, second = loop.model(x).unbind(1)
        return functional.mse_loss(first, second)

    loop.forward = pulled
    loop.use("adam")
    loop.constant()


def numbers_logged(loop: Loop) -> None:
    """Nothing is wrong: the loop calls a function for a loss, and logs a number."""
    log_numbers(loop)


def rare_but_learnt(loop: Loop) -> None:
    """Nothing is wrong: one sample in thirty is positive, most batches have one or two, and they are learnt."""
    inner = loop.arena.batches()
    size = loop.arena.batch_size

    def thinned() -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in inner:
            more, answers = next(inner)
            every, labels = torch.cat([x, more]), torch.cat([y, answers])
            common = (labels.flatten() == 0).nonzero().flatten()
            some = (labels.flatten() == 1).nonzero().flatten()[: max(1, size // 30)]
            chosen = torch.cat([common[: size - len(some)], some])
            yield every[chosen], labels[chosen]

    log_numbers(loop)
    loop.batches = thinned()
    loop.validate_every = 0


FAULTS = (
    Kind(
        "outcome-left-in-table",
        outcome_left_in_table,
        on=("mlp", "binary"),
        right=("information-leak", "target-anomaly", "suspiciously-low-loss"),
        cause=("information-leak",),
    ),
    Kind(
        "validated-in-training-mode",
        validated_in_training_mode,
        on=("dropout-mlp", "batchnorm"),
        right=("validation-anomaly", "train-val-mismatch", "wrong-mode"),
        cause=("train-val-mismatch",),
        secondary=GENERALIZATION,
    ),
    Kind(
        "crossed-out-of-sight",
        crossed_out_of_sight,
        on=("regression",),
        right=("suspicious-loss", "loss-misuse"),
        cause=("loss-misuse",),
        secondary=(*STALLED, "collapsed-output"),
    ),
    Kind(
        "targets-unseen",
        targets_unseen,
        on=("regression",),
        right=("target-anomaly", "unnormalized-targets"),
        cause=("unnormalized-targets",),
        secondary=(*STALLED, *UNSTABLE, "collapsed-output", "saturated-activations"),
    ),
    Kind(
        "ordered-by-outcome",
        ordered_by_outcome,
        on=("regression",),
        right=("batch-anomaly", "data-order", "loss-oscillation"),
        cause=("data-order",),
        secondary=(*STALLED, *UNSTABLE, *GENERALIZATION),
    ),
    Kind(
        "views-without-negatives",
        views_without_negatives,
        on=("contrastive",),
        right=("collapsed-output", "representation-collapse"),
        cause=("representation-collapse",),
        secondary=("loss-plateau", "suspiciously-low-loss", "gradient-vanishing"),
    ),
    Kind("numbers-logged", numbers_logged, on=("mlp", "binary", "gru-text")),
    Kind("rare-but-learnt", rare_but_learnt, on=("binary",)),
)
