"""Where backward begins: the loss itself, even if the loop does not show it.

Most loops call ``F.cross_entropy`` and log ``loss.item()``: there is no module to hook and no graph to read. But each
of them calls ``loss.backward()``, which goes through ``torch.autograd.backward``. The tap is on during sampled steps,
and at every step of a loop that logs no loss: then also on ``GradScaler.step``, which shows the scaler before its first
update. Taps are reference-counted, and removed only if nothing else has replaced them since.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler


class Watcher(Protocol):
    """An object that wants to be told."""

    def backward_begins(self, loss: Tensor) -> None:
        """Backward is about to run from this loss, with its graph still complete; must not raise."""


class Follower(Protocol):
    """An object that wants to know what each backward did; its methods must not raise."""

    def backward_starts(self, loss: Tensor) -> Any:
        """Backward is about to run from this scalar, with nothing that weights or restricts it."""

    def backward_ended(self, loss: Tensor, before: Any) -> None:
        """It has run; `before` is what `backward_starts` returned."""

    def scaler_steps(self, scaler: GradScaler, optimizer: Any) -> None:
        """A gradient scaler is about to let an optimizer step, or to skip its step."""


# A patch is process-wide, and so are its watchers.
_watchers: list[weakref.ref[Any]] = []
_followers: list[weakref.ref[Any]] = []
_taps: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []


def watch(watcher: Watcher) -> None:
    """Start telling a watcher."""
    _add(_watchers, watcher)


def leave(watcher: Watcher) -> None:
    """Stop telling a watcher; when the last one leaves, the tap is removed."""
    _forget(_watchers, next((known for known in _watchers if known() is watcher), None))


def follow(follower: Follower) -> None:
    """Start telling a follower."""
    _add(_followers, follower)
    _tap(GradScaler, "step", _tapped_step)


def unfollow(follower: Follower) -> None:
    """Stop telling a follower."""
    _forget(_followers, next((known for known in _followers if known() is follower), None))


def _add(known: list[weakref.ref[Any]], item: Any) -> None:
    if not any(reference() is item for reference in known):
        known.append(weakref.ref(item, lambda reference: _forget(known, reference)))
    _tap(torch.autograd, "backward", _tapped)


def _tap(owner: Any, name: str, tapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    if not any(known == name for _, known, _, _ in _taps):
        original = getattr(owner, name)
        _taps.append((owner, name, original, tapped(original)))
        setattr(owner, name, _taps[-1][3])


def _forget(known: list[weakref.ref[Any]], reference: weakref.ref[Any] | None) -> None:
    known[:] = [item for item in known if item is not reference]
    for item in [item for item in _taps if not (_followers or (_watchers and item[1] == "backward"))]:
        owner, name, original, tap = item
        _taps.remove(item)
        if getattr(owner, name) is tap:
            setattr(owner, name, original)


def _tapped(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensors, Tensor) or tensors.numel() != 1 or torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        for known in tuple(_watchers):
            watcher = known()
            if watcher is not None:
                watcher.backward_begins(tensors)
        given = args[0] if args else kwargs.get("grad_tensors")
        if not _followers or given is not None or kwargs.get("inputs") is not None:
            return original(tensors, *args, **kwargs)
        told = [(follower, follower.backward_starts(tensors)) for known in _followers if (follower := known())]
        result = original(tensors, *args, **kwargs)
        for follower, state in told:
            follower.backward_ended(tensors, state)
        return result

    return backward


def _tapped_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        for known in tuple(_followers):
            follower = known()
            if follower is not None:
                follower.scaler_steps(self, optimizer)
        return original(self, optimizer, *args, **kwargs)

    return step
