"""Everyday bugs of the loop: gradients not cleared, layers left out, modes forgotten, memory and time given away."""

from __future__ import annotations

import copy
import time
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward


def zero_grad_forgotten(loop: Loop) -> None:
    """`optimizer.zero_grad()` is missing from a loop with SGD and momentum."""
    loop.use("sgd")
    loop.constant()
    loop.zero_grad = False


def zero_grad_each_epoch(loop: Loop) -> None:
    """`optimizer.zero_grad()` stands before the loop over batches, so it is called once in an epoch."""
    loop.use("adam")
    loop.constant()
    loop.zero_grad = False
    steps = count()
    inner = loop.apply

    def apply(optimizer: torch.optim.Optimizer) -> None:
        inner(optimizer)
        if (next(steps) + 1) % loop.arena.epoch == 0:
            optimizer.zero_grad()

    loop.apply = apply


def zero_grad_before_step(loop: Loop) -> None:
    """Gradients are cleared after the backward pass and before the step, which then has none."""
    inner = loop.apply
    loop.clip = None

    def apply(optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        inner(optimizer)

    loop.apply = apply


def loss_made_to_require(loop: Loop) -> None:
    """The forward pass runs under no_grad, and `loss.requires_grad = True` has silenced the error of backward."""
    inner = loop.forward
    loop.clip = None

    def forward(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            loss = inner(x, y)
        return loss.requires_grad_()

    loop.forward = forward


def backbone_without_gradient(loop: Loop) -> None:
    """The new backbone's output is detached before the head, as in the script for a pretrained one."""
    backbone = loop.model.get_submodule("blocks")
    backbone.register_forward_hook(lambda module, given, made: made.detach())


def head_in_optimizer(loop: Loop) -> None:
    """The optimizer is given the parameters of the last layer only, and the rest is neither frozen nor pretrained."""
    loop.parameters = lambda: list(loop.model.parameters())[-2:]


def blocks_in_list(loop: Loop) -> None:
    """The blocks are kept in a plain Python list, so `model.parameters()` does not hold them."""
    model: Any = loop.model
    blocks = list(model.blocks)
    loop.use("adam")
    del model.blocks
    model.blocks = blocks


def random_backbone_frozen(loop: Loop) -> None:
    """`requires_grad = False` on all but the head, copied from a fine-tuning script; this backbone is new."""
    for parameter in list(loop.model.parameters())[:-2]:
        parameter.requires_grad_(False)


def weights_made_anew(loop: Loop) -> None:
    """`model.apply(init)` after the optimizer was built puts new Parameters in place of the weights."""

    def initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            module.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty_like(module.weight)))

    def apply() -> None:
        loop.model.apply(initialize)

    loop.built = apply


def vocabulary_resized(loop: Loop) -> None:
    """The embedding is replaced by one with more words after the optimizer was built."""
    model: Any = loop.model

    def resize() -> None:
        old = model.embedding
        model.embedding = type(old)(old.num_embeddings + 8, old.embedding_dim)

    loop.built = resize


def copy_is_called(loop: Loop) -> None:
    """The forward pass runs through a deep copy of the model, kept as the best one; the optimizer has the model."""
    double = copy.deepcopy(loop.model)
    loop.clip = None
    loop.forward = lambda x, y: loop.loss_of(double(x), y)


def predicted_before_the_loop(loop: Loop) -> None:
    """Predictions stand before the inner loop of 40 steps: `retain_graph=True` has silenced the error of the second."""
    loop.use("adam")
    loop.constant()
    steps = count()
    kept: list[tuple[Tensor, Tensor]] = []

    def forward(x: Tensor, y: Tensor) -> Tensor:
        if not loop.model.training:
            return loop.loss_of(loop.model(x), y)
        if next(steps) % 40 == 0:
            kept[:] = [(loop.model(x), y)]
        return loop.loss_of(*kept[0])

    loop.forward = forward
    loop.backward = lambda loss: backward(loss, retain_graph=True)


def eval_after_validation(loop: Loop) -> None:
    """`model.eval()` for the first validation, and no `model.train()` after it."""
    loop.use("sgd")
    loop.constant()
    loop.validate_every = 25
    loop.stays_in_eval = True


def eval_from_the_start(loop: Loop) -> None:
    """`model.eval()` was called on loading, and nobody calls `model.train()`: BatchNorm never sees a batch."""

    def load() -> None:
        loop.model.eval()

    loop.events[0] = load
    loop.stays_in_eval = True
    loop.use("sgd", 2.0)
    loop.constant()


def sums_over_micro_batches(loop: Loop) -> None:
    """Sixteen micro-batches to a step of SGD, and their loss is not divided."""
    loop.use("sgd")
    loop.constant()
    loop.micro, loop.divide, loop.steps = 16, False, 150
    loop.arena.batch_size = 8


def divided_twice(loop: Loop) -> None:
    """The mean loss of each of eight micro-batches is divided by eight, and by the size of the batch as well."""
    loop.use("sgd")
    loop.constant()
    loop.micro, loop.steps = 8, 150
    size = loop.arena.batch_size
    loop.backward = lambda loss: backward(loss / size)


def activations_kept(loop: Loop) -> None:
    """A forward hook appends every layer's output to a list for a plot, and the list is never emptied."""
    kept: list[Tensor] = []
    for module in loop.model.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            module.register_forward_hook(lambda module, given, made: kept.append(made))


def outputs_kept(loop: Loop) -> None:
    """All outputs and probabilities are gathered in a list, for a score at the end of training."""
    kept: list[tuple[Tensor, Tensor]] = []

    def forward(x: Tensor, y: Tensor) -> Tensor:
        outputs = loop.model(x)
        kept.append((outputs, outputs.softmax(-1)))
        return loop.loss_of(outputs, y)

    loop.arena.batch_size *= 3
    loop.forward = forward


def hooks_pile_up(loop: Loop) -> None:
    """At every tenth step the loop registers its hook for histograms once more, and none is removed."""

    def histogram(module: nn.Module, given: Any, made: Tensor) -> None:
        torch.histc(made.detach(), bins=64)

    layers = [module for module in loop.model.modules() if isinstance(module, nn.Conv1d | nn.Conv2d)]

    def register() -> None:
        for layer in layers:
            layer.register_forward_hook(histogram)

    loop.events.update(dict.fromkeys(range(0, loop.steps, 10), register))


def score_of_everything(loop: Loop) -> None:
    """After each step a ranking score is computed over all predictions since the start, which grow."""
    seen: list[Tensor] = []
    inner = loop.apply

    def forward(x: Tensor, y: Tensor) -> Tensor:
        outputs = loop.model(x)
        if loop.model.training:
            seen.append(outputs.detach().flatten())
        return loop.loss_of(outputs, y)

    def apply(optimizer: torch.optim.Optimizer) -> None:
        inner(optimizer)
        torch.cat(seen).sort().values.cumsum(0)

    loop.forward, loop.apply = forward, apply


def waits_for_data(loop: Loop) -> None:
    """Every batch is read and decoded in the training process, which takes several times as long as a step."""

    def read(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        time.sleep(loop.dice.uniform(0.012, 0.02))
        return x, y

    loop.replace_batches(read)


def storage_slows_down(loop: Loop) -> None:
    """From batch 160 on the network drive is slow, and each batch takes several steps' time to come."""
    batch = count()

    def read(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if next(batch) >= 160:
            time.sleep(0.025)
        return x, y

    loop.replace_batches(read)


_CLEARED = ("gradients-not-cleared", "missing-zero-grad")
_LEFT_OUT = (*UNMOVED, "parameters-not-in-optimizer", "stale-parameters", "frozen-by-mistake")
_LAZY = (*STALLED, *SIGNAL)
_HARD = (*UNSTABLE, *SIGNAL, *STALLED)


def _kind(
    slug: str, change: Any, on: tuple[str, ...], right: tuple[str, ...], cause: tuple[str, ...], **more: Any
) -> Kind:
    arenas = tuple(f"everyday-{name}" for name in on)
    return Kind(f"everyday-{slug}", change, on=arenas, right=right, cause=cause, held_out=True, **more)


FAULTS: tuple[Kind, ...] = (
    _kind(
        "zero-grad-forgotten",
        zero_grad_forgotten,
        ("digits", "forecast"),
        _CLEARED,
        ("missing-zero-grad",),
        secondary=_HARD,
    ),
    _kind("zero-grad-each-epoch", zero_grad_each_epoch, ("sensor",), _CLEARED, ("missing-zero-grad",), secondary=_HARD),
    _kind(
        "zero-grad-before-step",
        zero_grad_before_step,
        ("prices", "opinions"),
        ("gradients-not-cleared", *UNMOVED, "not-learning"),
        ("missing-zero-grad", "detached-graph"),
        secondary=_LAZY,
    ),
    _kind(
        "loss-made-to-require",
        loss_made_to_require,
        ("topics",),
        (*UNMOVED, "detached-graph", "not-learning"),
        ("detached-graph",),
        secondary=_LAZY,
    ),
    _kind(
        "backbone-without-gradient",
        backbone_without_gradient,
        ("vit",),
        (*UNMOVED, "detached-graph"),
        ("detached-graph",),
        secondary=_LAZY,
    ),
    _kind(
        "head-in-optimizer",
        head_in_optimizer,
        ("opinions", "contracts"),
        _LEFT_OUT,
        ("parameters-not-in-optimizer",),
        secondary=_LAZY,
    ),
    _kind(
        "blocks-in-list",
        blocks_in_list,
        ("tagger",),
        (*_LEFT_OUT, *STALLED),
        ("parameters-not-in-optimizer", "insufficient-capacity"),
        secondary=_LAZY,
    ),
    _kind(
        "random-backbone-frozen",
        random_backbone_frozen,
        ("resnet", "sensor"),
        _LEFT_OUT,
        ("frozen-by-mistake",),
        secondary=_LAZY,
    ),
    _kind("weights-made-anew", weights_made_anew, ("vit", "digits"), _LEFT_OUT, ("stale-parameters",), secondary=_LAZY),
    _kind("vocabulary-resized", vocabulary_resized, ("topics",), _LEFT_OUT, ("stale-parameters",), secondary=_LAZY),
    _kind(
        "copy-is-called",
        copy_is_called,
        ("contracts",),
        (*UNMOVED, "not-learning", "detached-graph", "stale-loss", "stale-parameters"),
        ("detached-graph", "stale-loss", "stale-parameters"),
        secondary=(*_LAZY, "parameters-not-in-optimizer"),
    ),
    _kind(
        "predicted-before-the-loop",
        predicted_before_the_loop,
        ("ratings",),
        ("stale-loss", "suspicious-loss", "repeated-batch", "batch-anomaly"),
        ("stale-loss",),
        secondary=(*_HARD, *GENERALIZATION, "lr-too-high"),
    ),
    _kind(
        "eval-after-validation",
        eval_after_validation,
        ("resnet", "tissue"),
        ("wrong-mode", "eval-mode-in-training"),
        ("eval-mode-in-training",),
        onset=25,
        secondary=(*_HARD, *GENERALIZATION, "multiple-pathologies"),
    ),
    _kind(
        "eval-from-the-start",
        eval_from_the_start,
        ("resnet",),
        ("wrong-mode", "eval-mode-in-training"),
        ("eval-mode-in-training",),
        secondary=(*_HARD, *GENERALIZATION),
    ),
    _kind(
        "sums-over-micro-batches",
        sums_over_micro_batches,
        ("digits", "prices"),
        ("gradients-not-cleared", "accumulation-error", *UNSTABLE),
        ("accumulation-error", "lr-too-high"),
        secondary=_HARD,
    ),
    _kind(
        "divided-twice",
        divided_twice,
        ("digits", "vit"),
        ("accumulation-error", *STALLED),
        ("accumulation-error", "lr-too-low"),
        secondary=_LAZY,
    ),
    _kind("activations-kept", activations_kept, ("tissue",), ("memory-growth",), ()),
    _kind("outputs-kept", outputs_kept, ("gpt",), ("memory-growth",), ()),
    _kind("hooks-pile-up", hooks_pile_up, ("sensor",), ("step-time-regression",), ()),
    _kind("score-of-everything", score_of_everything, ("ratings",), ("step-time-regression", "memory-growth"), ()),
    _kind("waits-for-data", waits_for_data, ("digits",), ("data-starvation",), ()),
    _kind(
        "storage-slows-down",
        storage_slows_down,
        ("sensor",),
        ("data-starvation", "step-time-regression"),
        (),
        onset=160,
    ),
)
