"""Data that is wrong: its scale, its order, its labels, its copies, and what it gives away."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from torchdoctor.clinic.arenas import Transformer
from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

BLINDED = ("not-learning", "loss-plateau", "underfitting", "slow-learning", "collapsed-output")


def same_batch_again(loop: Loop) -> None:
    """`next(iter(loader))` without shuffling inside the loop: the same batch at every step."""
    batch = next(loop.batches)
    loop.batches = iter(lambda: batch, None)


def batch_stuck(loop: Loop) -> None:
    """After 100 steps the loader's worker gives the same batch over and over."""

    def stuck(inner: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for step, batch in enumerate(inner):
            if step == 100:
                while True:
                    yield batch
            yield batch

    loop.batches = stuck(loop.batches)


def sorted_by_class(loop: Loop) -> None:
    """The data is sorted by class, and the loader does not shuffle."""
    chosen = torch.randperm(len(loop.arena.x))[: 40 * loop.arena.batch_size]
    chosen = chosen[loop.arena.y[chosen].argsort()]
    loop.arena.x, loop.arena.y = loop.arena.x[chosen], loop.arena.y[chosen]
    loop.batches = loop.arena.batches(shuffle=False)


def inputs_of_bytes(loop: Loop) -> None:
    """Inputs in the thousands, as they came from the file, into a net without normalisation."""
    scale = loop.dice.choice([1e3, 5e3])
    loop.replace_batches(lambda x, y: (x * scale + scale, y))
    loop.validated = (loop.validated[0] * scale + scale, loop.validated[1])
    loop.use("sgd")
    loop.constant()


def one_feature_in_millions(loop: Loop) -> None:
    """One feature is in millions, the others of unit scale."""

    def scaled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[:, 0] = (x[:, 0] + 3) * 1e6
        return x, y

    loop.replace_batches(scaled)
    loop.validated = scaled(*loop.validated)
    loop.constant()


def inputs_tiny(loop: Loop) -> None:
    """Inputs a million times too small: the first layer sees only its bias."""
    loop.replace_batches(lambda x, y: (x * 1e-6, y))
    loop.validated = (loop.validated[0] * 1e-6, loop.validated[1])
    loop.constant()


def inputs_far_from_zero(loop: Loop) -> None:
    """Inputs of unit spread around 300."""
    loop.replace_batches(lambda x, y: (x + 300, y))
    loop.validated = (loop.validated[0] + 300, loop.validated[1])
    loop.constant()


def targets_in_thousands(loop: Loop) -> None:
    """Targets of some ten thousand, as prices are, for a net that begins near zero."""
    scale = loop.dice.choice([1e4, 5e4])
    loop.replace_batches(lambda x, y: (x, y * scale + 3 * scale))
    loop.validated = (loop.validated[0], loop.validated[1] * scale + 3 * scale)
    loop.use("adam")
    loop.constant()


def targets_too_large_for_sgd(loop: Loop) -> None:
    """Targets in the hundreds, with squared error and SGD: the first steps throw the weights far away."""
    loop.replace_batches(lambda x, y: (x, y * 500))
    loop.validated = (loop.validated[0], loop.validated[1] * 500)
    loop.use("sgd")
    loop.constant()


def labels_shuffled(loop: Loop) -> None:
    """Labels are shuffled against inputs: two lists were sorted apart."""
    loop.arena.y = loop.arena.y[torch.randperm(len(loop.arena.y))]
    loop.validated = (loop.validated[0], loop.validated[1][torch.randperm(len(loop.validated[1]))])


def labels_off_by_one(loop: Loop) -> None:
    """Each sample has the label of its neighbour: one list lost its first line."""
    loop.arena.y = loop.arena.y.roll(1, 0)
    loop.validated = (loop.validated[0], loop.validated[1].roll(1, 0))


def inputs_unused(loop: Loop) -> None:
    """The loader gives zeros for inputs: reading the files failed silently."""
    loop.replace_batches(lambda x, y: (torch.zeros_like(x), y))
    loop.validated = (torch.zeros_like(loop.validated[0]), loop.validated[1])


def one_class_nearly_always(loop: Loop) -> None:
    """99 of 100 samples are of one class, and the net learns to say it always."""
    rare = torch.rand(len(loop.arena.x)) < 0.01
    others = (loop.arena.y == 0).nonzero().flatten()
    chosen = torch.where(rare, torch.arange(len(rare)), others[torch.randint(len(others), (len(rare),))])
    loop.arena.x, loop.arena.y = loop.arena.x[chosen], loop.arena.y[chosen]


def one_class_only(loop: Loop) -> None:
    """A filter of the loader lets one class through only."""
    kept = loop.arena.y == 1
    loop.arena.x, loop.arena.y = loop.arena.x[kept], loop.arena.y[kept]


def mask_leaks(loop: Loop) -> None:
    """The causal mask is off by one: every place sees the character that it is to predict."""
    assert isinstance(loop.model, Transformer)
    loop.model.hides_from = 2
    loop.use("adam", 3.0)
    loop.constant()
    loop.steps = 400


def answer_among_the_inputs(loop: Loop) -> None:
    """Some features of the training data are the label itself; in validation they are missing."""

    def told(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        answer = 2.0 * functional.one_hot(y, loop.arena.classes)
        x = x.clone()
        x[:, : answer.shape[1]] = answer
        return x, y

    loop.replace_batches(told)
    x = loop.validated[0].clone()
    x[:, : loop.arena.classes] = 0
    loop.validated = (x, loop.validated[1])


def validation_not_normalised(loop: Loop) -> None:
    """Validation is fed with inputs that were not normalised."""
    x, y = loop.validated
    loop.validated = (x * 30 + 60, y)
    loop.validate_every = 25


def validation_of_other_labels(loop: Loop) -> None:
    """Classes have other numbers in the validation set."""
    x, y = loop.validated
    loop.validated = (x, (y + 1) % loop.arena.classes)
    loop.validate_every = 25


def validation_constant(loop: Loop) -> None:
    """Validation is run on a model that was loaded once: its loss never changes."""
    with torch.no_grad():
        fixed = float(loop.forward(*(tensor[:256] for tensor in loop.validated)))
    loop.validate = lambda: fixed
    loop.validate_every = 25


def few_samples(loop: Loop) -> None:
    """A large net and sixty-odd samples with some noise: it learns them by heart."""
    kept = 64
    flipped = torch.rand(kept) < 0.2
    loop.arena.x = loop.arena.x[:kept]
    loop.arena.y = torch.where(flipped, torch.randint(loop.arena.classes, (kept,)), loop.arena.y[:kept])
    loop.arena.batch_size = 16
    loop.use("adam", 1.5)
    loop.constant()
    loop.validate_every = 10
    loop.steps = 400


def few_texts(loop: Loop) -> None:
    """A language model reads the same few pages again and again."""
    loop.arena.x, loop.arena.y = loop.arena.x[:48], loop.arena.y[:48]
    loop.use("adam", 1.5)
    loop.constant()
    loop.validate_every = 20
    loop.steps = 400


def sequences_transposed(loop: Loop) -> None:
    """Batch and time are swapped by a `view`: samples are mixed with each other."""

    def scrambled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        size, length, width = x.shape
        return x.transpose(0, 1).reshape(size, length, width), y

    loop.replace_batches(scrambled)
    loop.validated = scrambled(*loop.validated)


def noise_too_strong(loop: Loop) -> None:
    """Augmentation drowns the inputs: noise of five times their spread, in training only."""
    loop.replace_batches(lambda x, y: (x + 5 * torch.randn_like(x), y))
    loop.validate_every = 25


SCALE = ("unnormalized-inputs",)
EXPLODES = (*UNSTABLE, "dead-units", "saturated-activations", "collapsed-output", "unexpected-initial-loss", *STALLED)

FAULTS = (
    Kind(
        "same-batch-again",
        same_batch_again,
        on=("mlp", "cnn", "gru-text"),
        right=(
            "batch-anomaly",
            "repeated-batch",
        ),
        cause=("repeated-batch",),
        secondary=(*GENERALIZATION, "memorization", "suspiciously-low-loss", "loss-plateau", "loss-spike"),
    ),
    Kind(
        "batch-stuck",
        batch_stuck,
        on=("mlp", "regression"),
        right=(
            "batch-anomaly",
            "repeated-batch",
        ),
        cause=("repeated-batch",),
        secondary=(*GENERALIZATION, "memorization", "suspiciously-low-loss", "loss-plateau", "gradient-vanishing"),
        onset=100,
    ),
    Kind(
        "sorted-by-class",
        sorted_by_class,
        on=("mlp", "cnn", "lstm"),
        right=("batch-anomaly", "data-order", "loss-oscillation"),
        cause=("data-order",),
        secondary=(*UNSTABLE, *GENERALIZATION, "class-imbalance", "collapsed-output", "underfitting", "loss-plateau"),
    ),
    Kind(
        "inputs-in-thousands",
        inputs_of_bytes,
        on=("mlp", "regression", "cnn"),
        right=(*SCALE, "input-anomaly"),
        cause=SCALE,
        secondary=(*EXPLODES, "validation-anomaly", "gradient-vanishing", "no-gradient", "frozen-weights"),
    ),
    Kind(
        "one-feature-in-millions",
        one_feature_in_millions,
        on=("mlp", "regression", "binary"),
        right=(*SCALE, "input-anomaly"),
        cause=SCALE,
        secondary=(*EXPLODES, "validation-anomaly", "gradient-vanishing", "no-gradient", "frozen-weights"),
    ),
    Kind(
        "inputs-tiny",
        inputs_tiny,
        on=("mlp", "cnn"),
        right=(*SCALE, "input-anomaly"),
        cause=SCALE,
        secondary=(*STALLED, "collapsed-output", "gradient-vanishing", "dead-units"),
    ),
    Kind(
        "inputs-far-from-zero",
        inputs_far_from_zero,
        on=("mlp", "binary"),
        right=(*SCALE, "input-anomaly"),
        cause=SCALE,
        secondary=(*EXPLODES, "validation-anomaly", "gradient-vanishing", "no-gradient", "frozen-weights"),
    ),
    Kind(
        "targets-in-thousands",
        targets_in_thousands,
        on=("regression",),
        right=("target-anomaly", "unnormalized-targets", "unexpected-initial-loss"),
        cause=("unnormalized-targets",),
        secondary=(*STALLED, "weight-growth", "collapsed-output"),
    ),
    Kind(
        "targets-too-large-for-sgd",
        targets_too_large_for_sgd,
        on=("regression", "autoencoder"),
        right=("target-anomaly", "unnormalized-targets", "unexpected-initial-loss"),
        cause=("unnormalized-targets",),
        secondary=(*EXPLODES, "validation-anomaly", "gradient-vanishing"),
    ),
    Kind(
        "labels-shuffled",
        labels_shuffled,
        on=("mlp", "cnn", "lstm"),
        right=("label-noise-or-misalignment", "not-learning", "underfitting"),
        cause=("label-noise-or-misalignment",),
        secondary=(*BLINDED, *GENERALIZATION, "update-ratio-abnormal"),
    ),
    Kind(
        "labels-off-by-one",
        labels_off_by_one,
        on=("resnet", "regression"),
        right=("label-noise-or-misalignment", "not-learning", "underfitting"),
        cause=("label-noise-or-misalignment",),
        secondary=(*BLINDED, *GENERALIZATION, "update-ratio-abnormal"),
    ),
    Kind(
        "inputs-all-zero",
        inputs_unused,
        on=("mlp", "cnn"),
        right=(
            "input-anomaly",
            "unnormalized-inputs",
            "label-noise-or-misalignment",
            "collapsed-output",
            "not-learning",
            "bad-batch",
        ),
        cause=("unnormalized-inputs", "label-noise-or-misalignment", "bad-batch"),
        secondary=(
            "batch-anomaly",
            *BLINDED,
            "no-gradient",
            "frozen-weights",
            "gradient-vanishing",
            "repeated-batch",
            "dead-units",
        ),
    ),
    Kind(
        "one-class-nearly-always",
        one_class_nearly_always,
        on=("mlp", "cnn", "lstm"),
        right=("target-anomaly", "class-imbalance", "collapsed-output"),
        cause=("class-imbalance",),
        secondary=("suspiciously-low-loss", *GENERALIZATION, "loss-spike", "gradient-explosion", "loss-plateau"),
    ),
    Kind(
        "one-class-only",
        one_class_only,
        on=("mlp", "cnn"),
        right=("target-anomaly", "class-imbalance", "collapsed-output", "suspiciously-low-loss"),
        cause=("class-imbalance",),
        secondary=("batch-anomaly", *GENERALIZATION, "gradient-vanishing", "loss-plateau"),
    ),
    Kind(
        "mask-leaks",
        mask_leaks,
        on=("transformer",),
        right=("uneven-position-loss", "information-leak", "suspiciously-low-loss"),
        cause=("information-leak",),
        secondary=("loss-plateau",),
    ),
    Kind(
        "answer-among-the-inputs",
        answer_among_the_inputs,
        on=("mlp", "resnet"),
        right=("information-leak", "suspiciously-low-loss", "train-val-mismatch", "overfitting", "validation-anomaly"),
        cause=("information-leak", "train-val-mismatch"),
        secondary=("loss-plateau", "gradient-vanishing", "memorization", "target-anomaly"),  # it says: a column is it
    ),
    Kind(
        "validation-not-normalised",
        validation_not_normalised,
        on=("mlp", "cnn"),
        right=("train-val-mismatch", "validation-anomaly"),
        cause=("train-val-mismatch",),
        secondary=("overfitting",),
    ),
    Kind(
        "validation-of-other-labels",
        validation_of_other_labels,
        on=("mlp", "cnn"),
        right=("train-val-mismatch", "validation-anomaly", "overfitting"),
        cause=("train-val-mismatch",),
        secondary=("overfitting",),
    ),
    Kind(
        "validation-constant",
        validation_constant,
        on=("mlp", "regression"),
        right=("validation-anomaly",),
    ),
    Kind(
        "few-samples",
        few_samples,
        on=("mlp", "cnn", "lstm"),
        right=("overfitting", "memorization", "under-regularized"),
        cause=("memorization", "under-regularized"),
        secondary=("loss-plateau", "suspiciously-low-loss", "gradient-vanishing", "repeated-batch"),
        onset="best-validation",
    ),
    Kind(
        "few-texts",
        few_texts,
        on=("transformer", "gru-text"),
        right=("overfitting", "memorization", "under-regularized"),
        cause=("memorization", "under-regularized"),
        secondary=("loss-plateau", "suspiciously-low-loss", "gradient-vanishing", "repeated-batch"),
        onset="best-validation",
    ),
    Kind(
        "sequences-transposed",
        sequences_transposed,
        on=("lstm", "rnn"),
        right=("label-noise-or-misalignment", "not-learning", "underfitting", "loss-plateau"),
        cause=("label-noise-or-misalignment",),
        secondary=(*BLINDED, *GENERALIZATION),
    ),
    Kind(
        "noise-too-strong",
        noise_too_strong,
        on=("mlp", "cnn"),
        right=("over-regularized", "not-learning", "train-val-mismatch", "validation-anomaly", "underfitting"),
        cause=("over-regularized", "not-learning", "train-val-mismatch", "unnormalized-inputs"),
        secondary=("input-anomaly", *STALLED, "loss-oscillation"),
    ),
)
