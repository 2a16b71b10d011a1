"""Where backward begins: the loss itself, even if the loop does not show it.

Most loops call ``F.cross_entropy`` and log ``loss.item()``: there is no module to hook and no graph to read. But each
of them calls ``loss.backward()``, which goes through ``torch.autograd.backward``. The tap is on during sampled steps
only. It is reference-counted, and removed only if nothing else has replaced it since.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Watcher(Protocol):
    """An object that wants to be told."""

    def backward_begins(self, loss: Tensor) -> None:
        """Backward is about to run from this loss, with its graph still complete; must not raise."""


# A patch is process-wide, and so are its watchers.
_watchers: list[weakref.ref[Any]] = []
_tap: list[tuple[Callable[..., Any], Callable[..., Any]]] = []


def watch(watcher: Watcher) -> None:
    """Start telling a watcher."""
    if not any(known() is watcher for known in _watchers):
        _watchers.append(weakref.ref(watcher, _forget))
    if not _tap:
        original = torch.autograd.backward
        _tap.append((original, _tapped(original)))
        torch.autograd.backward = _tap[0][1]


def leave(watcher: Watcher) -> None:
    """Stop telling a watcher; when the last one leaves, the tap is removed."""
    _forget(next((known for known in _watchers if known() is watcher), None))


def _forget(reference: weakref.ref[Any] | None) -> None:
    _watchers[:] = [known for known in _watchers if known is not reference]
    if not _watchers and _tap:
        original, tap = _tap.pop()
        if torch.autograd.backward is tap:
            torch.autograd.backward = original


def _tapped(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensors, Tensor) and tensors.numel() == 1 and not torch.compiler.is_compiling():
            for known in tuple(_watchers):
                watcher = known()
                if watcher is not None:
                    watcher.backward_begins(tensors)
        return original(tensors, *args, **kwargs)

    return backward
