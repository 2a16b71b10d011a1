"""The faults that can be injected: frozen descriptions, each with the symptoms that count as finding it.

>>> fault = ScaleGradients(20, at=[500, 2500])
>>> str(fault), fault.found_as, fault.active(500), fault.active(501)
('gradients x 20', ('gradient-explosion',), True, False)
>>> ScaleGradients(20, at=-1)
Traceback (most recent call last):
...
torchdoctor.errors.PatientError: a fault's step must be a whole number from 0, not -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from torchdoctor.errors import PatientError, did_you_mean

Undo = Callable[[], None]


def nothing() -> None:
    """The undoing of what needs none."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at each of the steps `at`, for `steps` steps (None: from then on)."""

    at: int | Sequence[int] = field(kw_only=True)
    steps: int | None = field(default=1, kw_only=True)

    acute: ClassVar[bool] = True
    """Whether its symptom must show within a few steps."""
    in_data: ClassVar[bool] = False
    """Whether it acts on batches, so that the loop has to pass them through the injector."""

    def __post_init__(self) -> None:
        for step in self.starts:
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                raise PatientError(f"a fault's step must be a whole number from 0, not {step!r}.")
        if not self.starts:
            raise PatientError("a fault needs at least one step to happen at.")
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise PatientError(f"a fault lasts a whole number of steps from 1, or None for good, not {self.steps!r}.")

    @property
    def starts(self) -> tuple[int, ...]:
        """The steps at which it begins."""
        return (self.at,) if isinstance(self.at, int) else tuple(self.at)

    @property
    def found_as(self) -> tuple[str, ...]:
        """The symptoms of which any one counts as finding it."""
        return ()

    def active(self, step: int) -> bool:
        """Whether it acts at this step."""
        return any(start <= step and (self.steps is None or step < start + self.steps) for start in self.starts)

    def check(self, model: nn.Module) -> None:
        """Raise if the model has not got what the fault would break."""

    def begin(self, model: nn.Module) -> Undo:
        """Change the model before the forward pass of the first active step; undone after the last."""
        return nothing

    def corrupt(self, tensors: tuple[Tensor, ...], model: nn.Module) -> tuple[tuple[Tensor, ...], Undo]:
        """The first batch of an active step, broken; undone after the step."""
        return tensors, nothing

    def gradient(self, gradient: Tensor) -> Tensor:
        """What a gradient becomes before it is added to ``.grad``."""
        return gradient

    def tune(self, optimizer: Optimizer) -> Undo:
        """Change the optimizer between the backward pass and the step of every active step; undone after it."""
        return nothing


@dataclass(frozen=True)
class ScaleGradients(Fault):
    """All gradients multiplied by a factor: the paper uses 20 (explosion) and 1e-8 (vanishing).

    Each backward pass's contribution is scaled before it is accumulated, so that the sum over micro-batches is
    scaled by the factor exactly once. Clipping comes later and sees the scaled gradient.
    """

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_factor(self.factor)

    def __str__(self) -> str:
        return f"gradients x {self.factor:g}"

    @property
    def found_as(self) -> tuple[str, ...]:
        """An explosion or a vanishing."""
        return ("gradient-explosion",) if self.factor > 1 else ("gradient-vanishing",)

    def gradient(self, gradient: Tensor) -> Tensor:
        """Times the factor."""
        return gradient * self.factor


@dataclass(frozen=True)
class NanBatch(Fault):
    """A NaN in the first sample of a batch.

    Whole-number inputs cannot hold one: it then enters at the model's first embedding, where the value would
    have been looked up.
    """

    in_data: ClassVar[bool] = True

    def __str__(self) -> str:
        return "NaN in the batch"

    @property
    def found_as(self) -> tuple[str, ...]:
        """A non-finite value."""
        return ("nan-or-inf",)

    def corrupt(self, tensors: tuple[Tensor, ...], model: nn.Module) -> tuple[tuple[Tensor, ...], Undo]:
        """NaN as the first number of the first floating-point tensor, or of the first embedding's output."""
        for index, tensor in enumerate(tensors):
            if tensor.is_floating_point():
                return (*tensors[:index], _with_nan(tensor), *tensors[index + 1 :]), nothing
        embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
        if embedding is None:
            raise PatientError("a batch without floating-point numbers and a model without an embedding cannot be NaN.")
        reached: list[bool] = []

        def poison(module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:
            if reached:
                return None
            reached.append(True)
            return _with_nan(output)

        handle = embedding.register_forward_hook(poison)

        def undo() -> None:
            handle.remove()
            if not reached:
                raise PatientError(
                    "the NaN did not reach the model's embedding: it was not used in this step, or the model is "
                    "compiled and ignores new hooks. Inject NanBatch into the model before it is compiled."
                )

        return tensors, undo


@dataclass(frozen=True)
class OutlierBatch(Fault):
    """A batch that does not belong: inputs many times too large, or, for tokens, one rare token over and over."""

    scale: float = 100.0

    in_data: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_factor(self.scale)

    def __str__(self) -> str:
        return "outlier batch"

    @property
    def found_as(self) -> tuple[str, ...]:
        """A spike of the loss or of the gradient."""
        return ("loss-spike", "gradient-explosion", "loss-divergence")

    def corrupt(self, tensors: tuple[Tensor, ...], model: nn.Module) -> tuple[tuple[Tensor, ...], Undo]:
        """The first tensor scaled if it holds floating-point numbers, else every tensor of tokens made constant."""
        first = tensors[0]
        if first.is_floating_point():
            return (first * self.scale, *tensors[1:]), nothing
        rarest = torch.bincount(first.flatten()).argmin()
        return tuple(tensor if tensor.is_floating_point() else rarest.expand_as(tensor) for tensor in tensors), nothing


@dataclass(frozen=True)
class JumpLearningRate(Fault):
    """The learning rate of every group times a factor, from a step on; the scheduler goes on underneath."""

    factor: float
    steps: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_factor(self.factor)

    def __str__(self) -> str:
        return f"learning rate x {self.factor:g}"

    @property
    def found_as(self) -> tuple[str, ...]:
        """The first of what a learning rate that is too high leads to."""
        return ("loss-spike", "loss-divergence", "gradient-explosion", "gradient-instability", "nan-or-inf")

    def tune(self, optimizer: Optimizer) -> Undo:
        """Raise it for this step only: a scheduler that multiplies would otherwise multiply the jump as well."""
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.factor

        def undo() -> None:
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                group["lr"] = rate

        return undo


@dataclass(frozen=True)
class FreezeLayer(Fault):
    """A module or parameter, by name, that stops requiring gradients."""

    layer: str
    steps: int | None = field(default=None, kw_only=True)

    acute: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"{self.layer} frozen"

    @property
    def found_as(self) -> tuple[str, ...]:
        """Weights without gradients, or that do not move."""
        return ("no-gradient", "frozen-weights")

    def _parameters(self, model: nn.Module) -> list[nn.Parameter]:
        return [
            parameter
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if (name == self.layer or name.startswith(f"{self.layer}.")) and parameter.requires_grad
        ]

    def check(self, model: nn.Module) -> None:
        """The layer exists and can be frozen."""
        known = {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}
        if not self.layer or self.layer not in known:
            raise PatientError(f"the model has no layer {self.layer!r}. {did_you_mean(self.layer, known - {''})}")
        if not self._parameters(model):
            raise PatientError(f"{self.layer!r} has no trainable parameter to freeze.")

    def begin(self, model: nn.Module) -> Undo:
        """Switch ``requires_grad`` off."""
        frozen = self._parameters(model)
        for parameter in frozen:
            parameter.requires_grad_(False)

        def undo() -> None:
            for parameter in frozen:
                parameter.requires_grad_(True)

        return undo


@dataclass(frozen=True)
class RemoveDropout(Fault):
    """Every dropout of the model set to zero: training looks better, validation will not."""

    steps: int | None = field(default=None, kw_only=True)

    acute: ClassVar[bool] = False

    def __str__(self) -> str:
        return "dropout removed"

    @property
    def found_as(self) -> tuple[str, ...]:
        """Overfitting, in time."""
        return ("overfitting",)

    def check(self, model: nn.Module) -> None:
        """There is a dropout to remove."""
        if not _dropouts(model):
            raise PatientError("the model has no dropout above zero to remove.")

    def begin(self, model: nn.Module) -> Undo:
        """Set them to zero."""
        found = _dropouts(model)
        for module, attribute, _ in found:
            setattr(module, attribute, 0.0)

        def undo() -> None:
            for module, attribute, p in found:
                setattr(module, attribute, p)

        return undo


def _dropouts(model: nn.Module) -> list[tuple[nn.Module, str, float]]:
    """(module, attribute, p) of each dropout above zero, also of the layers that keep it as a plain number."""
    found: list[tuple[nn.Module, str, float]] = []
    for module in model.modules():
        if isinstance(module, _DropoutNd) and module.p > 0:
            found.append((module, "p", module.p))
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0:
            found.append((module, "dropout", module.dropout))
    return found


def _with_nan(tensor: Tensor) -> Tensor:
    poison = torch.zeros_like(tensor)
    poison.view(-1)[0] = math.nan
    return tensor + poison


def _check_factor(factor: float) -> None:
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor < math.inf or factor == 1:
        raise PatientError(f"a factor must be a finite number from 0 other than 1, not {factor!r}.")
