"""The curvature gauge, off by default: the curvature of the loss along the optimizer's step.

The batch of a sampled step goes through a copy of the model twice more, at the weights before and after the step. The
change of the gradient along the step is the curvature. Everything happens on the copy and with the same random numbers,
which are restored afterwards: the run is unaffected, except for the time (about two steps) and memory (four times the
model's weights) that it takes.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdoctor.vitals.context import world_size
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.hooks import Hook
from torchdoctor.vitals.passes import PassGauge, is_compiled
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.transfer import Slot

COST = 2.5
"""Cost of one look in steps, estimated generously."""
FIRST = 4
"""The first step that is looked at."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CurvatureGauge(PassGauge):
    """Keeps `curvature` and `step_curvature`, at as many sampled steps as `settings.curvature` allows."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        self._setup = setup
        self._every = math.ceil(COST / setup.curvature) if setup.curvature > 0 else 0
        self._next = FIRST
        self._told = False
        self.forget()

    def forget(self) -> None:
        """Release the batch and the copy."""
        super().forget()
        self._entered: tuple[Any, Any] | None = None
        self._output: Tensor | None = None
        self._compared: tuple[Any, Any] | None = None
        self._cast: tuple[str, torch.dtype, bool] | None = None
        self._twin: _Twin | None = None

    def arm(self) -> None:
        """Put hooks on the model and the loss to see their inputs."""
        super().arm()
        if not self._every:
            return
        reason = _obstacle(self._setup)
        if not self._told:
            self._told = True
            self.tell({"curvature.hidden": reason} if reason else {"curvature.every": self._every})
        if reason is None:
            model = next(iter(self._setup.models.values()))
            self.before(model, "begins")
            self.after(model, "_returned")
            self.before(self._setup.loss_fn, "_compares")

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A batch enters the model; of several before a step, the last one counts."""
        super().begins(module, args, kwargs)
        if self.learns and module.training:
            kind = next(module.parameters()).device.type
            self._cast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
            self._entered, self._output, self._compared = (args, dict(kwargs)), None, None

    def _returned(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.learns and self._entered is not None and isinstance(output, Tensor):
            self._output = output.detach()

    def _compares(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """The loss can be computed again only if its input is the output itself or a reshaped view of it."""
        given, output = args[0] if args else None, self._output
        if not self.learns or output is None or not isinstance(given, Tensor):
            return
        if (given.data_ptr(), given.numel(), given.is_contiguous()) == (output.data_ptr(), output.numel(), True):
            self._compared = (given.shape, *args[1:]), dict(kwargs)
        self._output = None

    def before_step(self, index: int, slot: Slot) -> None:
        """Compute the gradient at the weights before the step."""
        if self._entered is None or self._compared is None or self._cast is None or slot.number < self._next:
            return
        self._next = slot.number + self._every
        began = time.perf_counter()
        try:
            model = next(iter(self._setup.models.values()))
            self._twin = _Twin(model, self._setup.loss_fn, self._entered, self._compared, self._cast)
            self._twin.look()
        except Exception as error:  # noqa: BLE001  a model that cannot be copied or run again must not stop the run
            self._twin, self._every = None, 0
            self.tell({"curvature.hidden": f"{type(error).__name__}: {error}"})
        self._settle(began)

    def after_step(self, index: int, slot: Slot) -> None:
        """Compute the gradient at the weights after the step, and how it has changed along the step."""
        twin, self._twin = self._twin, None
        if twin is None:
            return
        began = time.perf_counter()
        for vital, value in twin.compare(next(iter(self._setup.models.values()))).items():
            slot.keep(vital, value)
        self._settle(began)

    def _settle(self, began: float) -> None:
        # The user asked for this and it has its own budget: it must not make other looks rarer.
        self.spent -= time.perf_counter() - began


class _Twin:
    """A copy of model and loss, with the batch that it runs on."""

    def __init__(self, model: nn.Module, loss_fn: nn.Module, entered: Any, compared: Any, cast: Any) -> None:
        self._device = next(model.parameters()).device
        self._states = _random_states(self._device)
        with _same_random_numbers(self._states, self._device):
            self._model, self._loss_fn = copy.deepcopy((model, loss_fn))
        self._tensors = [tensor for tensor in self._model.parameters() if tensor.requires_grad]
        self._entered, self._compared = _without_graph(entered), _without_graph(compared)
        self._cast = cast
        self._first: list[Tensor] = []

    def look(self) -> None:
        """Remember the gradient at the weights before the step."""
        self._first = self._gradient()

    def compare(self, model: nn.Module) -> dict[str, Tensor]:
        """Take the step too; returns the curvature along it, absolute and relative to the slope."""
        with torch.no_grad():
            now = [tensor.detach() for tensor in model.parameters() if tensor.requires_grad]
            step = [after - before for after, before in zip(now, self._tensors, strict=True)]
            for mine, theirs in zip(self._tensors, now, strict=True):
                mine.copy_(theirs)
        second = self._gradient()
        with torch.no_grad():
            slope = -_dot(step, self._first)
            bend = _dot(step, [after - before for after, before in zip(second, self._first, strict=True)])
            return {
                "curvature": bend / _dot(step, step).clamp_min(1e-30),
                "step_curvature": bend / torch.maximum(slope, 1e-3 * bend.abs() + 1e-30),
            }

    def _gradient(self) -> list[Tensor]:
        kind, dtype, enabled = self._cast
        (shape, *targets), named = self._compared
        args, kwargs = self._entered
        with (
            _same_random_numbers(self._states, self._device),
            torch.enable_grad(),
            torch.autocast(kind, dtype=dtype, enabled=enabled),
        ):
            loss = self._loss_fn(self._model(*args, **kwargs).reshape(shape), *targets, **named)
            found = torch.autograd.grad(loss.sum(), self._tensors, allow_unused=True)
        return [torch.zeros_like(own) if grad is None else grad for own, grad in zip(self._tensors, found, strict=True)]


def _obstacle(setup: Setup) -> str | None:
    """Why the loss cannot be computed a second time without side effects; None if it can."""
    if len(setup.models) != 1 or len(setup.optimizers) != 1:
        return "there are several models or optimizers"
    model, loss_fn = next(iter(setup.models.values())), setup.loss_fn
    if not isinstance(loss_fn, nn.Module):
        return "it needs loss_fn=, an nn.Module"
    if world_size() > 1 or any(is_compiled(module) for module in (*model.modules(), loss_fn)):
        return "the model is compiled or distributed"
    if any(_foreign(module) for part in (model, loss_fn) for module in part.modules()):
        return "hooks of the user would run a second time"
    return None


def _foreign(module: nn.Module) -> bool:
    return any(not isinstance(hook, Hook) for name in HOOKS for hook in getattr(module, name).values())


def _without_graph(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) in (tuple, list):
        return type(value)(_without_graph(item) for item in value)
    if type(value) is dict:
        return {key: _without_graph(item) for key, item in value.items()}
    return value


def _dot(left: list[Tensor], right: list[Tensor]) -> Tensor:
    return torch.stack(
        [torch.dot(a.flatten().float(), b.flatten().float()) for a, b in zip(left, right, strict=True)]
    ).sum()


def _random_states(device: torch.device) -> tuple[Any, ...]:
    own = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), own


@contextmanager
def _same_random_numbers(states: tuple[Any, ...], device: torch.device) -> Iterator[None]:
    """Start from these states, and restore the present ones at the end."""
    present = _random_states(device)
    try:
        _set_random_states(states, device)
        yield
    finally:
        _set_random_states(present, device)


def _set_random_states(states: tuple[Any, ...], device: torch.device) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3] is not None:
        torch.cuda.set_rng_state(states[3], device)
