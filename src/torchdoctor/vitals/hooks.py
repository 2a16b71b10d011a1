"""Hooks for a user's model, optimizer or parameters that do not interfere with them."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import torch
from torch import nn


class Handle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None:
        """Take the hook off."""


class Hook:
    """Forwards to a method of an object without keeping the object alive.

    A copied or unpickled hook becomes a standard library function that does nothing. So `deepcopy`, `AveragedModel` and
    `torch.save` of a watched model work, copies report nothing, and a file can be loaded where torchdoctor is not
    installed.

    >>> import copy
    >>> class Monitor:
    ...     def seen(self, *args): return "seen"
    >>> monitor = Monitor()
    >>> hook = Hook(monitor, "seen")
    >>> hook(1), copy.deepcopy(hook)(1)
    ('seen', None)
    """

    def __init__(self, target: object, method: str) -> None:
        self._target = weakref.ref(target)
        self._method = method

    def __call__(self, *args: Any) -> Any:
        """What torch calls."""
        target = self._target()
        return None if target is None else getattr(target, self._method)(*args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")


@contextlib.contextmanager
def hidden(model: nn.Module) -> Iterator[None]:
    """Leave our hooks, and copies of them, off a model's modules: TorchScript compiles all hooks, and cannot ours.

    >>> layer = nn.Linear(1, 1)
    >>> handle = layer.register_forward_hook(Hook(layer, "forward"))
    >>> with hidden(layer):
    ...     print(len(layer._forward_hooks))
    0
    >>> len(layer._forward_hooks)
    1
    """
    found: list[tuple[nn.Module, str, Any]] = []
    for module in model.modules():
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = module.__dict__.get(name) or {}
            others = OrderedDict((key, hook) for key, hook in hooks.items() if not _is_ours(hook))
            if len(others) < len(hooks):
                found.append((module, name, hooks))
                module.__dict__[name] = others
    try:
        yield
    finally:
        for module, name, hooks in found:
            module.__dict__[name] = hooks


def _is_ours(hook: Any) -> bool:
    """Whether this is one of our hooks, or a copy."""
    return isinstance(hook, Hook) or isinstance(getattr(hook, "__self__", None), contextlib.nullcontext)


class StepHook(Protocol):
    """What `step_hook` returns."""

    monitor: Any
    """The monitor that watches the optimizer; None while the optimizer is only a candidate."""
    turn: Callable[..., None]
    """Sends later calls to another function, and says whether the optimizer is watched."""

    def __call__(self, *args: Any) -> Any:
        """What torch calls."""


def step_hook(monitor: Any, call: Callable[..., Any]) -> StepHook:
    """An optimizer's step hook; it keeps its monitor alive, so that ``Doctor(model, optimizer)`` alone is enough.

    Optimizers drop their hooks when they are copied or pickled. When a compiled step traces the hook, the call goes to
    a version that Dynamo does not trace: the graph breaks at the edge of the step, where that costs nothing.

    >>> hook = step_hook(None, lambda step: f"first {step}")
    >>> hook.turn(lambda step: f"then {step}", watched=False)
    >>> hook(1)
    'then 1'
    """

    def safely(*args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001  the run matters more than a measurement
            monitor.failed(call.__name__, error)
            return None

    def hook(*args: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return eagerly(safely, *args)
        try:  # not `safely`: a frame costs a microsecond when the caches are full of the loop's own work
            return call(*args)
        except Exception as error:  # noqa: BLE001
            monitor.failed(call.__name__, error)
            return None

    def turn(other: Callable[..., Any], *, watched: bool) -> None:
        nonlocal call  # torch is iterating over the hooks, so none can be replaced
        call = other
        hook.monitor = monitor if watched else None  # type: ignore[attr-defined]

    hook.monitor, hook.turn = monitor, turn  # type: ignore[attr-defined]
    return cast(StepHook, hook)


is_traced = torch.compiler.is_dynamo_compiling
"""Whether Dynamo traces the calling code; it knows this function, and takes it as true."""


def after_first(function: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    """A function that calls `then` once, after its own first call.

    >>> noted = after_first(lambda number: 2 * number, lambda: print("now"))
    >>> noted(1), noted(2)
    now
    (2, 4)
    """
    waiting = [then]

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if waiting:
            waiting.pop()()
        return result

    return call


@torch._disable_dynamo  # type: ignore[attr-defined]  # imports Dynamo when first called, as torch's optimizers do
def eagerly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function outside any graph that is being traced."""
    return function(*args, **kwargs)
