"""The promise to the training loop: no exception of ours reaches it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def guarded(method: F) -> F:
    """Keep a method's exceptions from its caller: the object's `failed(call, error)` hears of them instead.

    KeyboardInterrupt and SystemExit pass: they are the user's.

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
        except Exception as error:  # noqa: BLE001  the run's life is worth more than our reading
            self.failed(method.__name__, error)
            return None

    return cast(F, call)
