"""The batch gauge: what the model is fed and what it is asked for, at sampled steps, as a handful of numbers.

Inputs are seen at the model's own door, targets where `loss_fn` is called or where the loop logs its batch. Where
neither is shown, labels are read off the gradient of a cross-entropy at the model's output. Scale, constant features,
values that are not finite, class balance, order, and a checksum that shows a batch coming back.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.hooks import Handle, Hook
from torchdoctor.vitals.loss_graph import read_graph
from torchdoctor.vitals.passes import (
    LARGEST,
    PassGauge,
    checksum,
    is_compiled,
    is_plain,
    part_of,
    plain_tensors,
)
from torchdoctor.vitals.transfer import Slot

IGNORED = -100
"""The label that torch's losses leave out."""
MOST_CLASSES = 4096
SHORTEST = 7
"""Tokens of a sequence of which an end that repeats itself says something."""
LABELS = ("labels", "label", "targets", "target", "y")

CROSS_ENTROPY = nn.CrossEntropyLoss()
"""What a loss is taken for that is known by its gradient only."""


class BatchGauge(PassGauge):
    """Statistics of inputs and targets."""

    def __init__(self, models: Mapping[str, nn.Module], loss_fn: Any, tell: Tell) -> None:
        super().__init__(tell)
        self._models = [model for model in models.values() if getattr(model, "_compiled_call_impl", None) is None]
        self._loss_fn = loss_fn if isinstance(loss_fn, nn.Module) and not is_compiled(loss_fn) else None
        self._inputs: weakref.ref[Tensor] | None = None
        self._saw_inputs = self._saw_targets = False
        self._entered_at = 0.0
        self._counts: Tensor | None = None
        """How often each class was seen at all samples so far."""
        self._kind: str | None = None
        """What kind of loss the loop has, from the graph of one that was logged; None while that is not known."""
        self._now: Tensor | None = None
        """How often in this one."""
        self._moments: Tensor | None = None
        """Number, sum and sum of squares of the float targets of all samples so far, on the device."""

    def arm(self) -> None:
        """Hooks on the models' doors and on the loss."""
        super().arm()
        for model in self._models:
            self.before(model, "begins")
        if self._loss_fn is not None:
            self.before(self._loss_fn, "_asked")
        elif len(self._models) == 1:  # from the first sample on: a hook that comes later makes a compiler start anew
            self.after(self._models[0], "_answers")

    def batch_logged(self, tensors: tuple[Tensor, ...]) -> None:
        """The loop shows its batch: inputs first, targets last."""
        self.see("_logged", (tensors,))

    def _logged(self, tensors: tuple[Tensor, ...]) -> None:
        if not self._practising:  # what is logged is the training batch, whatever passed before it
            self._practising = True
            self.forget()
        plain = [tensor for tensor in tensors if is_plain(tensor)]
        if plain and not self._saw_inputs:
            self._measure_inputs(plain[0])
        if len(plain) > 1 and not self._saw_targets:
            self._measure_targets(plain[-1])

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A batch enters a model."""
        super().begins(module, args, kwargs)
        if not self.learns:
            return
        self._entered_at = self._entered_at or time.perf_counter()
        tensor = next((item for item in plain_tensors((args, kwargs)) if item.dim()), None)
        if tensor is not None and not self._saw_inputs:
            self._measure_inputs(tensor)
        labels = next((kwargs[name] for name in LABELS if is_plain(kwargs.get(name))), None)
        if labels is not None and not self._saw_targets:
            self._measure_targets(labels)

    def loss_logged(self, name: str, loss: Tensor) -> None:
        """What kind of loss it is, once."""
        if self._kind is None and self._loss_fn is None and loss.grad_fn is not None:
            self._kind = read_graph(loss.grad_fn).kind or ""

    def _answers(self, module: nn.Module, inputs: Any, output: Any) -> None:
        scores = next(plain_tensors(output), None)
        if self._kind != "cross-entropy" or not self.learns or scores is None:
            return
        if scores.requires_grad and 2 <= scores.dim() <= 3 and 1 < scores.shape[-1] <= MOST_CLASSES:
            register: Callable[[Hook], Handle] = scores.register_hook
            register(Hook(self, "pulled"))

    def pulled(self, gradient: Tensor) -> None:
        """Backward has reached the outputs."""
        self.see("_pulled", (gradient,))

    def _pulled(self, gradient: Tensor) -> None:
        """A cross-entropy raises the score of the label, and lowers all others: the only sign that differs is its."""
        if "guess_loss" in self._scalars or not is_plain(gradient):
            return
        rows = part_of(gradient).float()
        least, labels = rows.min(-1)
        alone = ((rows < 0).sum(-1) <= 1).float().mean() > 0.99
        sure = alone & (rows.sum(-1).abs().sum() <= 0.05 * rows.abs().sum())
        labels = torch.where((least < 0) & sure, labels, IGNORED)
        before = set(self._scalars)
        if not self._saw_targets:
            self._measure_targets(labels, gradient.shape[-1])
        self._measure_guess(CROSS_ENTROPY, labels, gradient.shape[-1])
        self._measure_tokens(labels, IGNORED)
        for vital in self._scalars.keys() - before:  # of another loss, nothing is known
            self._scalars[vital] = torch.where(sure, self._scalars[vital].float(), math.nan)

    def _measure_tokens(self, target: Tensor, ignored: int) -> None:
        """Labels of tokens: are they the tokens themselves, or padding?"""
        inputs = self._inputs() if self._inputs is not None else None
        if inputs is None or not is_whole(target) or not is_whole(inputs) or inputs.numel() != target.numel():
            return
        self._scalars["target_is_input"] = (inputs.flatten() == target.flatten()).float().mean()
        if inputs.dim() == 2 and inputs.shape[1] > SHORTEST:
            self._scalars["target_padding"] = padding(part_of(target.reshape(inputs.shape)), ignored)

    def _asked(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        output, target = output_and_target(args, kwargs)
        if target is None or not self.learns:
            return
        dimension = class_dimension(module, output, target)
        classes = output.shape[dimension] if output is not None and dimension else 0
        if not self._saw_targets:
            self._measure_targets(target, classes, getattr(module, "ignore_index", IGNORED))
        if "guess_loss" not in self._scalars:
            self._measure_guess(module, target, classes)
        self._measure_tokens(target, getattr(module, "ignore_index", IGNORED))

    def _measure_inputs(self, tensor: Tensor) -> None:
        self._saw_inputs = True
        if self._inputs is not None:
            self.tell({"data.same_tensor": self._inputs() is tensor})
        self._inputs = weakref.ref(tensor)
        value = part_of(tensor)
        self._scalars["input_checksum"] = checksum(value)
        if tensor.is_floating_point():
            value = value.float()
            self._scalars["input_mean"] = value.mean()
            self._scalars["input_std"] = value.std(correction=0)
            self._scalars["input_absmax"] = torch.linalg.vector_norm(value, float("inf"))
            self._scalars["input_nonfinite"] = (~torch.isfinite(value)).sum()
            if value.dim() > 1 and value.shape[0] >= 8:
                self._scalars["input_constant"] = (value.amax(0) == value.amin(0)).float().mean()
        elif is_whole(tensor):
            counts = class_counts(value, 0)
            self._scalars["token_top_share"] = counts.amax() / counts.sum().clamp_min(1)

    def _measure_guess(self, module: nn.Module, target: Tensor, classes: int) -> None:
        """What a guess by all that was seen so far would have cost on this very batch, to compare the loss with."""
        if getattr(module, "reduction", "") != "mean" or getattr(module, "label_smoothing", 0):
            return
        if isinstance(module, nn.MSELoss) and self._moments is not None:
            mean = self._moments[1] / self._moments[0]
            self._scalars["guess_loss"] = (part_of(target).float() - mean).square().mean()
        if self._counts is None or self._now is None or classes < 2:
            return
        if isinstance(module, nn.CrossEntropyLoss | nn.NLLLoss) and module.weight is None:
            counts, now = self._counts[:classes], self._now[:classes]
            shares = (counts + 1) / (counts + 1).sum()
            self._scalars["guess_loss"] = -(now * shares.log()).sum() / now.sum().clamp_min(1)

    def _measure_targets(self, tensor: Tensor, classes: int = 0, ignored: int = IGNORED) -> None:
        self._saw_targets = True
        self._now = None
        if is_whole(tensor):
            if classes <= MOST_CLASSES:
                counts = class_counts(tensor, classes)
                if 0 <= ignored < counts.numel():
                    counts[ignored] = 0
                self._now = counts
                self._measure_labels(counts)
        elif tensor.is_floating_point():
            value = part_of(tensor).float()
            self._scalars["target_mean"] = value.mean()
            self._scalars["target_std"] = value.std(correction=0)
            self._scalars["target_min"], self._scalars["target_max"] = value.aminmax()
            self._scalars["target_absmax"] = torch.linalg.vector_norm(value, float("inf"))
            self._scalars["target_nonfinite"] = (~torch.isfinite(value)).sum()
            here = torch.stack([torch.ones_like(value.flatten()[0]), value.mean(), value.square().mean()])
            self._moments = here if self._moments is None else self._moments + here
            number, total, squares = self._moments.unbind()
            self._scalars["pooled_std"] = (squares / number - (total / number).square()).clamp_min(0).sqrt()

    def _measure_labels(self, counts: Tensor) -> None:
        if self._counts is None or self._counts.shape != counts.shape or self._counts.device != counts.device:
            self._counts = torch.zeros_like(counts)
        self._counts = self._counts + counts
        for prefix, numbers in (("target", counts), ("pooled", self._counts)):
            total = numbers.sum().clamp_min(1)
            shares = numbers / total
            self._scalars[f"{prefix}_classes"] = (numbers > 0).sum()
            self._scalars[f"{prefix}_top_share"] = shares.amax()
            self._scalars[f"{prefix}_entropy"] = -(shares * shares.clamp_min(1e-30).log()).sum()
            # The chance that two of them are of one class: unlike an entropy, unbiased in a small batch.
            self._scalars[f"{prefix}_collision"] = (numbers * (numbers - 1)).sum() / (total * (total - 1)).clamp_min(1)

    def forget(self) -> None:
        """Drop what was measured in this step."""
        super().forget()
        self._saw_inputs = self._saw_targets = False
        self._entered_at = 0.0

    def before_step(self, index: int, slot: Slot) -> None:
        """Hand over, and say when the batch arrived: the monitor knows when the step before had ended."""
        super().before_step(index, slot)
        if self._entered_at:
            slot.facts["entered_at"] = self._entered_at
            self._entered_at = 0.0


def padding(tokens: Tensor, ignored: int) -> Tensor:
    """The share of labels that belong to a stretch of one label at the end, or at the beginning, of a sequence.

    >>> padding(torch.tensor([[5, 3, 7, 0, 0, 0, 0, 0], [5, 3, 3, 3, 1, 0, 0, 0]]), -100)
    tensor(0.5000)
    """
    shares = []
    for ordered in (tokens, tokens.flip(1)):
        edge = ordered[:, -1:]
        runs = (ordered == edge).flip(1).cumprod(1).sum(1) * (edge[:, 0] != ignored)
        shares.append((runs * (runs > 2)).sum() / tokens.numel())
    return torch.maximum(*shares)


def output_and_target(args: Any, kwargs: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """What a loss compares: its first argument, and its second where that is data rather than another output."""
    output: Any = args[0] if args else kwargs.get("input")
    target: Any = args[1] if len(args) > 1 else kwargs.get("target")
    good = is_plain(output) and output.is_floating_point() and output.dim() > 0
    known = is_plain(target) and not target.requires_grad and target.dim() > 0
    return (output if good else None), (target if known else None)


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers: tokens or labels."""
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def class_dimension(loss_fn: nn.Module, output: Tensor | None, target: Tensor) -> int:
    """Which dimension of the outputs holds the scores of classes that the targets are labels of; 0 for none."""
    if output is None or not is_whole(target) or output.dim() != target.dim() + 1:
        return 0
    last = output.dim() - 1  # where everybody has them but torch's own losses
    for dimension in (1, last) if isinstance(loss_fn, nn.CrossEntropyLoss | nn.NLLLoss) else (last, 1):
        others = [size for index, size in enumerate(output.shape) if index != dimension]
        if others == list(target.shape) and output.shape[dimension] > 1:
            return dimension
    return 0


def class_counts(labels: Tensor, classes: int) -> Tensor:
    """How often each class occurs, as floats; labels out of range are left out, as the ignored one is."""
    classes = classes or 1024
    flat = labels.detach().flatten()[: max(64, LARGEST // classes)]
    return (flat[:, None] == torch.arange(classes, device=flat.device)).sum(0).float()
