"""Hooks for a user's model, optimizer or parameters that do not interfere with them."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch


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


def step_hook(monitor: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer's step hook; it keeps its monitor alive, so that ``Doctor(model, optimizer)`` alone is enough.

    Optimizers drop their hooks when they are copied or pickled. When a compiled step traces the hook, the call goes to
    a version that Dynamo does not trace: the graph breaks at the edge of the step, where that costs nothing.
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

    hook.monitor = monitor  # type: ignore[attr-defined]
    return hook


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
