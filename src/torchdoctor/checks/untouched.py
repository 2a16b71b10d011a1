"""Leaves no trace: remembers what a check may change, and restores it exactly."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Undo = Callable[[], None]
CONTAINERS = (dict, list, set, deque)
MOST_ITEMS = 20_000
"""Longest list or dict that is searched; a longer one holds data, not state."""


@contextmanager
def untouched(*things: Any) -> Iterator[None]:
    """Restore everything as it was, whatever happens inside.

    `things` are modules, optimizers, schedulers, tensors, loaders, or lists and dicts of them. For a module that covers
    its parameters and buffers (the tensors themselves, their values, gradients and `requires_grad`), mode, hooks,
    submodules and plain attributes; for an optimizer or a scheduler its state, groups and hooks. The random state of
    Python, numpy and torch is restored as well, and so are torch's global switches.

    >>> model, before = nn.Linear(2, 1), torch.get_rng_state()
    >>> kept = model.weight.detach().clone()
    >>> with untouched(model):
    ...     _ = nn.init.normal_(model.train(False).weight)
    >>> model.training, torch.equal(model.weight, kept), torch.equal(before, torch.get_rng_state())
    (True, True, True)
    """
    memory = Memory(things)
    try:
        yield
    finally:
        memory.restore()


class Memory:
    """A snapshot of some objects, the random state and torch's switches; it can be restored repeatedly."""

    def __init__(self, things: Iterable[Any]) -> None:
        self._undo: list[Undo] = []
        self._last = (random_state(), switches())  # restoring the rest needs switches of its own
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # keeps objects alive, or another object could get the same id
        self._take(list(things))

    def restore(self) -> None:
        """Restore everything; a failure does not stop the rest from being restored."""
        failures: list[Exception] = []
        with torch.no_grad():
            for undo in reversed(self._undo):
                _attempt(undo, failures)
        for undo in self._last:
            _attempt(undo, failures)
        if failures:
            raise failures[0]

    def _take(self, thing: Any) -> None:
        if id(thing) in self._seen or isinstance(thing, str | bytes | int | float | complex | bool | type | None):
            return
        self._seen.add(id(thing))
        self._kept.append(thing)
        if isinstance(thing, Tensor):
            self._take_tensor(thing)
        elif isinstance(thing, torch.Generator):
            state = thing.get_state()
            self._undo.append(lambda: _set_generator(thing, state))
        elif isinstance(thing, nn.Module):
            self._take_attributes(thing)
        elif isinstance(thing, Mapping | list | tuple | set | deque):
            self._take_container(thing)
        elif isinstance(thing, torch.optim.Optimizer) or _is_stateful(thing):
            self._take_attributes(thing)

    def _take_tensor(self, tensor: Tensor) -> None:
        self._undo.append(_tensor_state(tensor))
        if tensor.is_leaf:
            self._undo.extend(
                _tensor_hooks(tensor, name) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
            )
            if tensor.grad is not None:
                self._take(tensor.grad)

    def _take_container(self, thing: Any) -> None:
        if isinstance(thing, CONTAINERS):
            self._undo.append(_container_state(thing))
        if len(thing) > MOST_ITEMS:
            return
        for item in list(thing.values() if isinstance(thing, Mapping) else thing):
            self._take(item)
        if isinstance(thing, Mapping):
            for key in list(thing):
                if isinstance(key, Tensor):  # an optimizer's state is keyed by parameter, maybe not the model's
                    self._take(key)

    def _take_attributes(self, thing: Any) -> None:
        attributes = thing.__dict__
        kept = dict(attributes)
        self._undo.append(lambda: _set_attributes(attributes, kept))
        for value in kept.values():
            self._take(value)


def _attempt(undo: Undo, failures: list[Exception]) -> None:
    try:
        undo()
    except Exception as error:  # noqa: BLE001  restore the rest first
        failures.append(error)


def _is_stateful(thing: Any) -> bool:
    """Whether it has state outside the model: schedulers, scalers, loaders and their samplers."""
    if callable(getattr(thing, "state_dict", None)) and hasattr(thing, "__dict__"):
        return True
    return isinstance(thing, torch.utils.data.DataLoader | torch.utils.data.Sampler)


def _set_generator(generator: torch.Generator, state: Tensor) -> None:
    if not torch.equal(generator.get_state(), state):
        generator.set_state(state)


def _tensor_state(tensor: Tensor) -> Undo:
    """Values, requires_grad and gradient; values are written only if they differ, bypassing the version counter."""
    leaf, needed = tensor.is_leaf, tensor.requires_grad
    grad = tensor.grad if leaf else None
    data = tensor.data
    values = None if tensor.is_meta else tensor.detach().clone()

    def undo() -> None:
        if tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape or tensor.dtype != data.dtype:
            tensor.data = data  # it was moved, cast or replaced
        if values is not None and not _same(tensor.detach(), values):
            tensor.data.copy_(values)
        if leaf and tensor.requires_grad != needed:
            tensor.requires_grad_(needed)
        if leaf and tensor.grad is not grad:
            tensor.grad = grad

    return undo


def _tensor_hooks(tensor: Tensor, name: str) -> Undo:
    kept = dict(getattr(tensor, name, None) or {})

    def undo() -> None:
        now = getattr(tensor, name, None)
        if now is not None and dict(now) != kept:
            now.clear()
            now.update(kept)

    return undo


def _same(now: Tensor, values: Tensor) -> bool:
    """Whether values are equal; NaN equals NaN."""
    if now.layout != torch.strided or now.is_quantized:
        return False
    if torch.equal(now, values):
        return True
    if not (now.is_floating_point() or now.is_complex()):
        return False
    return torch.equal(torch.nan_to_num(now), torch.nan_to_num(values)) and torch.equal(now.isnan(), values.isnan())


def _container_state(thing: Any) -> Undo:
    items = dict(thing) if isinstance(thing, dict) else list(thing)

    def undo() -> None:
        thing.clear()
        thing.update(items) if isinstance(thing, dict | set) else thing.extend(items)

    return undo


def _set_attributes(attributes: dict[str, Any], kept: Mapping[str, Any]) -> None:
    for name in [name for name in attributes if name not in kept]:
        del attributes[name]
    attributes.update(kept)


def random_state() -> Undo:
    """A function that restores the random state of Python, numpy and torch, on every device in use."""
    python, numpy_state, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    ready = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if ready else None
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None

    def undo() -> None:
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if mps is not None:
            torch.mps.set_rng_state(mps)

    return undo


def switches() -> Undo:
    """A function that restores torch's global switches."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    def undo() -> None:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if now != (deterministic, warn_only):  # setting this loads the compiler, which takes seconds
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        if torch.is_anomaly_enabled() != anomaly:
            torch.autograd.set_detect_anomaly(anomaly, check_nan)

    return undo
