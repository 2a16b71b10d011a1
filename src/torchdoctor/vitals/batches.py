"""The batch gauge: what the model is fed and what it is asked for, at sampled steps, as a handful of numbers.

Inputs are seen at the model's own door, targets where `loss_fn` is called or where the loop logs its batch. Scale,
constant features, values that are not finite, class balance, order, and a checksum that shows a batch coming back.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.gauge import Tell
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
LABELS = ("labels", "label", "targets", "target", "y")


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
        self._moments: Tensor | None = None
        """Number, sum and sum of squares of the float targets of all samples so far, on the device."""

    def arm(self) -> None:
        """Hooks on the models' doors and on the loss."""
        super().arm()
        for model in self._models:
            self.before(model, "begins")
        if self._loss_fn is not None:
            self.before(self._loss_fn, "_asked")

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

    def _asked(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        output, target = output_and_target(args, kwargs)
        if target is None or not self.learns:
            return
        if not self._saw_targets:
            dimension = class_dimension(module, output, target)
            self._measure_targets(target, output.shape[dimension] if output is not None and dimension else 0)
        inputs = self._inputs() if self._inputs is not None else None
        if is_whole(target) and inputs is not None and is_whole(inputs) and inputs.numel() == target.numel():
            self._scalars["target_is_input"] = (inputs.flatten() == target.flatten()).float().mean()

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

    def _measure_targets(self, tensor: Tensor, classes: int = 0) -> None:
        self._saw_targets = True
        if is_whole(tensor):
            if classes <= MOST_CLASSES:
                self._measure_labels(class_counts(tensor, classes))
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
