"""Keeps exceptions of Training Doctor out of the training loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def guarded(method: F) -> F:
    """Pass a method's exceptions to the object's `failed(call, error)` instead of its caller.

    KeyboardInterrupt and SystemExit still reach the caller.

    >>> class Clumsy:
    ...     def failed(self, call, error): print(call, "failed:", error)
    ...     @guarded
    ...     def work(self): raise ValueError("no such thing")
    >>> Clumsy().work()
    work failed: no such thing
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  a measurement must never stop the run
            self.failed(method.__name__, error)
            return None

    return cast(F, call)
