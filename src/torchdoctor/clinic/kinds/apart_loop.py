"""Faults of the loop: gradients that stay, steps left out, checkpoints, averages, modes, overwriting."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward

OVERWRITTEN = ("state-overwritten", "resume-error", "loss-spike", "loss-oscillation")


def several(loop: Loop, make: Callable[[], list[Optimizer]], *, stepped: int, cleared: int) -> None:
    """Train with some optimizers, of which the first few are stepped and the first few are cleared."""

    def run(watch: Watch) -> None:
        optimizers = make()
        loop.doctor = watch(loop.model, optimizers, loss_fn=loop.loss_fn)
        loop.model.train()
        for step in range(loop.steps):
            loss = loop.forward(*next(loop.batches))
            loop.log(loss)
            backward(loss)
            for optimizer in optimizers[:stepped]:
                optimizer.step()
            for optimizer in optimizers[:cleared]:
                optimizer.zero_grad()
            if (step + 1) % 50 == 0:
                loop.log_validation(step, loop.validate())

    loop.run = run


def _tables_apart(loop: Loop) -> tuple[list[Tensor], list[Tensor]]:
    """The other parameters, and the embeddings of more than one column."""
    tables = [m.weight for m in loop.model.modules() if isinstance(m, nn.Embedding) and m.embedding_dim > 1]
    chosen = {id(table) for table in tables}
    others: list[Tensor] = [tensor for tensor in loop.model.parameters() if id(tensor) not in chosen]
    return others, tables


def tables_not_cleared(loop: Loop) -> None:
    """Embeddings have an optimizer of their own, which is stepped and never cleared."""
    others, tables = _tables_apart(loop)
    several(
        loop,
        lambda: [torch.optim.Adam(others, lr=loop.arena.adam), torch.optim.SGD(tables, lr=5 * loop.arena.sgd)],
        stepped=2,
        cleared=1,
    )


def tables_not_stepped(loop: Loop) -> None:
    """Embeddings have an optimizer of their own, which is cleared and never stepped."""
    others, tables = _tables_apart(loop)
    rate = loop.arena.adam
    several(loop, lambda: [torch.optim.Adam(others, lr=rate), torch.optim.Adam(tables, lr=rate)], stepped=1, cleared=2)


def average_too_slow(loop: Loop) -> None:
    """Validation is done with an average of the weights that needs ten thousand steps to follow them."""
    average, inner = copy.deepcopy(loop.model), loop.validate

    @torch.no_grad()
    def apply(optimizer: Optimizer) -> None:
        optimizer.step()
        for mean, tensor in zip(average.parameters(), loop.model.parameters(), strict=True):
            mean.mul_(0.9999).add_(tensor, alpha=0.0001)

    def validate() -> float:
        kept = copy.deepcopy(loop.model.state_dict())
        loop.model.load_state_dict(average.state_dict())
        loss = inner()
        loop.model.load_state_dict(kept)
        return loss

    loop.apply, loop.validate = apply, validate


def resumed_again_and_again(loop: Loop) -> None:
    """The job is stopped and resumed three times, each time from the checkpoint that was written first."""
    loop.constant()
    saved: dict[str, Any] = {}

    def save() -> None:
        assert loop.optimizer is not None
        saved.update(copy.deepcopy({"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}))

    def resume() -> None:
        assert loop.optimizer is not None
        loop.model.load_state_dict(saved["model"])
        loop.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))

    loop.events = {30: save, 120: resume, 190: resume, 260: resume}
    loop.steps = 290


def second_moments_lost(loop: Loop) -> None:
    """A checkpoint without Adam's second moments is loaded: the step count and the first moments are there."""
    loop.constant()
    loop.use("adam", 1.5)

    def load() -> None:
        assert loop.optimizer is not None
        for state in loop.optimizer.state.values():
            state["exp_avg_sq"].zero_()

    loop.events[180] = load


def memory_thrown_away(loop: Loop) -> None:
    """To save memory, what Adam remembers is thrown away before each step."""
    loop.constant()
    loop.use("adam", 1.5)

    def apply(optimizer: Optimizer) -> None:
        optimizer.state.clear()
        optimizer.step()

    loop.apply = apply


def step_under_the_wrong_if(loop: Loop) -> None:
    """The step slipped under the `if` of the logging: one in ten; gradients are cleared each time."""
    loop.constant()
    count = iter(range(10**9))

    def apply(optimizer: Optimizer) -> None:
        if next(count) % 10 == 0:
            optimizer.step()

    loop.apply = apply


def normalization_never_in_training(loop: Loop) -> None:
    """A trick of fine-tuning, BatchNorm kept in eval mode whatever is called, in a net that is trained from scratch."""
    for module in loop.model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
            setattr(module, "train", lambda mode=True, module=module: module)  # noqa: B010


def weights_clamped(loop: Loop) -> None:
    """A line left from a Wasserstein critic holds every weight within a hundredth of zero."""

    @torch.no_grad()
    def apply(optimizer: Optimizer) -> None:
        optimizer.step()
        for tensor in loop.model.parameters():
            tensor.clamp_(-0.01, 0.01)

    loop.apply = apply


def initialised_each_epoch(loop: Loop) -> None:
    """The head is initialised inside the loop over epochs, not before it."""
    loop.constant()
    head: Any = loop.model.head

    def reset() -> None:
        for module in head.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    loop.events = dict.fromkeys(range(40, loop.steps, 40), reset)


def divided_twice(loop: Loop) -> None:
    """Six small batches make one step; the loss is divided by six in the loop, and in the loss again."""
    loop.constant()
    loop.use("plain-sgd")
    loop.arena.batch_size, loop.micro = 6, 6
    loop.batches, loop.steps = loop.arena.batches(), 100
    loop.backward = lambda loss: backward(loss / loop.micro)


FAULTS = (
    Kind(
        "tables-not-cleared",
        tables_not_cleared,
        on=("ratings",),
        right=("gradients-not-cleared", "missing-zero-grad"),
        cause=("missing-zero-grad",),
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION, "lr-too-high"),
    ),
    Kind(
        "tables-not-stepped",
        tables_not_stepped,
        on=("ratings",),
        right=(*UNMOVED, "frozen-by-mistake", "parameters-not-in-optimizer"),
        secondary=(*STALLED, "insufficient-capacity"),
    ),
    Kind(
        "average-too-slow",
        average_too_slow,
        on=("unet", "tags"),
        right=("validation-anomaly", "train-val-mismatch"),
        cause=("train-val-mismatch",),
        secondary=("overfitting", "memorization"),
        onset=50,
    ),
    Kind(
        "resumed-again-and-again",
        resumed_again_and_again,
        on=("decoder", "mixer"),
        right=OVERWRITTEN,
        cause=("resume-error",),
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION),
        onset=120,
    ),
    Kind(
        "second-moments-lost",
        second_moments_lost,
        on=("decoder", "forecast"),
        right=(*OVERWRITTEN, *UNSTABLE),
        cause=("resume-error",),
        secondary=(*STALLED, *SIGNAL, *GENERALIZATION, "lr-too-high"),
        onset=180,
        acute=True,
    ),
    Kind(
        "memory-thrown-away",
        memory_thrown_away,
        on=("forecast", "mixture"),
        right=("state-overwritten", "resume-error", "optimizer-misconfigured", "lr-too-high", *UNSTABLE),
        cause=("resume-error", "optimizer-misconfigured", "lr-too-high"),
        secondary=(*STALLED, *SIGNAL, "batch-size-advice"),
    ),
    Kind(
        "step-under-the-wrong-if",
        step_under_the_wrong_if,
        on=("patches", "tags"),
        right=("gradients-not-cleared", "accumulation-error", "slow-learning", "not-learning"),
        cause=("accumulation-error",),
        secondary=(*STALLED, "lr-too-low", "stopped-too-early"),
    ),
    Kind(
        "normalization-never-in-training",
        normalization_never_in_training,
        on=("table",),
        right=("wrong-mode", "eval-mode-in-training", "batchnorm-misuse", "input-anomaly", "unnormalized-inputs"),
        cause=("eval-mode-in-training", "batchnorm-misuse", "unnormalized-inputs"),
        secondary=(*UNSTABLE, *STALLED, *SIGNAL, *GENERALIZATION, "unexpected-initial-loss"),
    ),
    Kind(
        "weights-clamped",
        weights_clamped,
        on=("tags", "mixer"),
        right=("state-overwritten", "not-learning", "underfitting", "loss-plateau", "update-ratio-abnormal"),
        secondary=(*STALLED, *SIGNAL, *UNMOVED, "over-regularized", "insufficient-capacity"),
    ),
    Kind(
        "initialised-each-epoch",
        initialised_each_epoch,
        on=("graph", "patches"),
        right=OVERWRITTEN,
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION),
        onset=40,
    ),
    Kind(
        "divided-twice",
        divided_twice,
        on=("mixer",),
        right=("gradients-not-cleared", "accumulation-error", "lr-too-low", *STALLED),
        cause=("accumulation-error", "lr-too-low"),
        secondary=("stopped-too-early",),
    ),
)
