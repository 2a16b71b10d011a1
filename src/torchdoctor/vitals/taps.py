"""Taps on the few functions of torch that compute what we would otherwise compute again.

Clipping computes every gradient's norm. ``torch.nn.utils.clip_grad_norm_`` may have been imported before us under
any name, so the tap is on what it calls: ``torch._foreach_norm`` (which also serves the public `get_total_norm`)
and the two private halves in ``torch.nn.utils.clip_grad``. ``GradScaler.update`` tells of steps that were skipped,
for which no hook fires. The taps are process-wide and counted: they go on with the first listener, off with the
last, and only if nobody else has replaced them since.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad


class Listener:
    """Who wants to know; every method must return quickly and never raise."""

    def norms_computed(self, tensors: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        """Somebody computed the L2 norms of these tensors."""

    def total_computed(self, tensors: Sequence[Tensor], total: Tensor) -> None:
        """Somebody computed the total L2 norm of these tensors."""

    def clipped(self, parameters: Any, max_norm: float) -> None:
        """The gradients of these parameters were scaled down to max_norm."""

    def scaler_updates(self, scaler: GradScaler) -> None:
        """A gradient scaler is about to look at what its optimizers found and change its scale."""


# The one piece of module state: a patch is process-wide, so its listeners are. Plain weak references in a list,
# because going through a WeakSet costs more than all that is done with one listener.
_listeners: list[weakref.ref[Listener]] = []
_taps: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []


def add(listener: Listener) -> None:
    """Start telling a listener."""
    if not _taps:
        _install()
    _listeners.append(weakref.ref(listener))


def remove(listener: Listener) -> None:
    """Stop telling a listener; the last one takes the taps off."""
    _listeners[:] = [known for known in _listeners if known() is not None and known() is not listener]
    if not _listeners:
        for owner, name, original, tap in _taps:
            if getattr(owner, name) is tap:
                setattr(owner, name, original)
        _taps.clear()


def _install() -> None:
    total_norm, clip = _tap_total_norm(), _tap_clip()
    for owner, name, tap in (
        (torch, "_foreach_norm", _tap_foreach_norm()),
        (clip_grad, "_get_total_norm", total_norm),
        (clip_grad, "_clip_grads_with_norm_", clip),
        (nn.utils, "get_total_norm", total_norm),
        (nn.utils, "clip_grads_with_norm_", clip),
        (GradScaler, "update", _tap_update()),
    ):
        if hasattr(owner, name):
            _taps.append((owner, name, getattr(owner, name), tap))
            setattr(owner, name, tap)


# Dynamo must see the originals alone: with state in a traced function it would recompile at every call.


def _tap_foreach_norm() -> Callable[..., Any]:
    original = torch._foreach_norm

    def foreach_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        norms = original(tensors, *args, **kwargs)
        if not torch.compiler.is_compiling() and (not args or args[0] == 2):
            for known in _listeners:
                if (listener := known()) is not None:
                    listener.norms_computed(tensors, norms)
        return norms

    return foreach_norm


def _tap_total_norm() -> Callable[..., Any]:
    original = clip_grad._get_total_norm

    def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Tensor:
        total = original(tensors, norm_type, *args, **kwargs)
        if not torch.compiler.is_compiling() and norm_type == 2:
            for known in _listeners:
                if (listener := known()) is not None:
                    listener.total_computed(tensors, total)
        return total

    return get_total_norm


def _tap_clip() -> Callable[..., Any]:
    original = clip_grad._clip_grads_with_norm_

    def clip_grads_with_norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> None:
        original(parameters, max_norm, *args, **kwargs)
        if not torch.compiler.is_compiling():
            for known in _listeners:
                if (listener := known()) is not None:
                    listener.clipped(parameters, max_norm)

    return clip_grads_with_norm


def _tap_update() -> Callable[..., Any]:
    original = GradScaler.update

    def update(self: GradScaler, *args: Any, **kwargs: Any) -> None:
        for known in _listeners:
            if (listener := known()) is not None:
                listener.scaler_updates(self)
        original(self, *args, **kwargs)

    return update
