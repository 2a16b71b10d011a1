"""CK19 labels-in-range."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.nested import leading
from torchdoctor.checks.probing import whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import number_text, share_text
from torchdoctor.vitals.batch_numbers import BINARY, IGNORED, class_dimension, is_whole
from torchdoctor.vitals.graph_nodes import SHAPING
from torchdoctor.vitals.loss_inputs import what_is_compared

REACH = {
    "Relu": (0.0, math.inf),
    "Softplus": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
"""Ranges of activations, by the names of their graph nodes."""


@dataclass(frozen=True)
class LabelsInRange(Check):
    """Targets are within the range of the model's outputs, and tokens within the vocabulary.

    ## What it checks
    - Class labels are in 0 … C - 1 or equal to the ignored label.
    - Targets of a binary loss are in 0 … 1.
    - Targets of a regression are within the range of the last layer, if that is a sigmoid, tanh, softmax or ReLU.
    - Tokens are within the embedding.

    ## How it is told apart
    The class dimension is read from the outputs, and ignored labels are left out. Up to 5 % of the targets may be
    outside the range of a bounded layer, which allows for outliers and rounding. If a classification is trained as a
    regression, its targets need not be classes.

    ## What to do
    Labels from 1 to C: subtract 1. Masks of 0 and 255: divide by 255. Labels of -1 and 1 for a binary loss:
    `(y + 1) / 2`. A bounded last layer: remove it, or scale the targets.

    ## Example
    >>> batch = torch.randn(4, 3), torch.tensor([1, 2, 3, 5])
    >>> print(LabelsInRange().run(Subject.of(nn.Linear(3, 5), nn.CrossEntropyLoss(), batch)).message)
    labels go from 1 to 5, but the outputs have 5 classes: 0 to 4
    """

    code = "CK19"
    name = "labels-in-range"
    quick = True
    needs_loss = False
    suggests = ("clean-data", "fix-loss", "normalize-targets")
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",)

    outside: float = 0.05
    """Share of targets that may be outside the range of a bounded layer."""

    def run(self, subject: Subject) -> Outcome:
        """Check tokens, then labels, then other targets."""
        for message, advice, where in self._tokens(subject):
            return self.failed(message, advice, where=where)
        if (reason := whole_loss(subject)) is not None:
            raise CannotTell(reason)
        outputs, targets = subject.outputs, subject.targets
        if outputs is None:
            raise CannotTell("the model does not run on the batch: see forward-shapes")
        if not isinstance(targets, Tensor) or not targets.numel():
            raise CannotTell("the batch has no tensor of targets")
        if is_whole(targets):
            return self._labels(subject, outputs, targets)
        if targets.is_floating_point() and _is_binary(subject):
            low, high = float(targets.amin()), float(targets.amax())
            if low < 0 or high > 1:
                message = f"targets of a binary loss go from {number_text(low)} to {number_text(high)}"
                return self.failed(message, "Scale them to 0 … 1: `(y + 1) / 2` for -1 and 1, `y / 255` for masks.")
            return self.passed(f"targets go from {number_text(low)} to {number_text(high)}")
        return self._numbers(subject, targets)

    def _labels(self, subject: Subject, outputs: Tensor, targets: Tensor) -> Outcome:
        loss = subject.loss_fn
        ignored = getattr(loss, "ignore_index", IGNORED)
        classes = self._classes(subject, outputs, targets)
        counted = targets[targets != ignored]
        if classes is None or not counted.numel():
            raise CannotTell("it is not clear which dimension of the outputs holds the classes")
        low, high = int(counted.amin()), int(counted.amax())
        if low < 0 or high >= classes:
            if _takes_them(subject):
                return self.passed(f"labels go from {low} to {high}; the loss accepts them, so they are not classes")
            message = f"labels go from {low} to {high}, but the outputs have {classes} classes: 0 to {classes - 1}"
            advice = "Count classes from 0, or give the last layer as many outputs as there are classes; samples to "
            advice += f"leave out have the label {ignored} (ignore_index)."
            return self.failed(message, advice, value=float(high), limit=float(classes - 1))
        return self.passed(f"labels go from {low} to {high}, of {classes} classes", value=float(high))

    @staticmethod
    def _classes(subject: Subject, outputs: Tensor, targets: Tensor) -> int | None:
        known = subject.loss_fn if isinstance(subject.loss_fn, nn.Module) else nn.Identity()
        for labels in (targets, targets.squeeze(-1) if targets.dim() > 1 else targets):
            dimension = class_dimension(known, outputs, labels)
            if dimension:
                return int(outputs.shape[dimension])
        if outputs.dim() == 2 and outputs.shape[0] == targets.numel():
            return int(outputs.shape[1])
        return None

    def _numbers(self, subject: Subject, targets: Tensor) -> Outcome:
        """In a regression: whether the last layer can output such numbers."""
        with torch.enable_grad():
            subject.model.train()
            prediction = subject.prediction()
        node = prediction.grad_fn if prediction is not None else None
        for _ in range(8):
            if node is None or _node_name(node) not in SHAPING:
                break
            node = next((parent for parent, _ in node.next_functions if parent is not None), None)
        kind = _node_name(node)
        if kind not in REACH or subject.kind not in ("regression", "reconstruction"):
            return self.passed("the last layer is not bounded, so it can reach any target")
        low, high = REACH[kind]
        values = targets.float()
        margin = 0.02
        beyond = (values < low - margin) | (values > high + margin)
        share = float(beyond.float().mean())
        reach = f"{number_text(low)} to {number_text(high)}"
        if share > self.outside:
            message = f"{share_text(share)} of the targets are out of range: the last layer, {kind}, outputs {reach}"
            advice = f"Remove {kind}, or scale the targets to {reach}."
            return self.failed(message, advice, value=share, limit=self.outside)
        return self.passed(f"targets are within the range of the last layer, {kind}: {reach}", value=share)

    @staticmethod
    def _tokens(subject: Subject) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Token numbers that the embedding does not have; checked only if the model does not run."""
        found = leading(subject.inputs)
        if not subject.broken or found is None or not is_whole(found) or not found.numel():
            return
        tables = [
            (name, layer.num_embeddings)
            for name, layer in subject.of_type(nn.Embedding)
            if not any(word in name.lower() for word in ("pos", "wpe"))  # position embeddings
        ]
        low, high = int(found.amin()), int(found.amax())
        if tables and (low < 0 or high >= max(size for _, size in tables)):
            name, size = max(tables, key=lambda item: item[1])
            message = f"tokens go from {low} to {high}, but {name} has {size}: 0 to {size - 1}"
            advice = "Give the embedding as many rows as the tokenizer has tokens, including the special tokens."
            yield message, advice, (name,)


def _takes_them(subject: Subject) -> bool:
    """Whether the loss runs on these labels: they may be sample indexes, or left out by a rule of its own."""
    if isinstance(subject.loss_fn, nn.CrossEntropyLoss | nn.NLLLoss) or subject.no_loss or subject.broken:
        return False
    if subject.device.type != "cpu":  # a label out of range would end the process there
        raise CannotTell("labels are out of the range of the outputs, and it is not clear that they are classes")
    try:
        with subject.fresh(), torch.no_grad():
            subject.loss()
    except (IndexError, RuntimeError):
        return False
    return True


def _is_binary(subject: Subject) -> bool:
    if isinstance(subject.loss_fn, BINARY) or subject.broken or subject.no_loss:
        return isinstance(subject.loss_fn, BINARY)
    found = what_is_compared(subject.loss())
    return found is not None and isinstance(found.module, BINARY)


def _node_name(node: Any) -> str:
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")
