"""Taps on the few functions of torch that compute what we would otherwise compute again.

Clipping computes every gradient's norm. ``torch.nn.utils.clip_grad_norm_`` may have been imported before us under any
name, so the tap is on what it calls: ``torch._foreach_norm`` (which also serves the public `get_total_norm`) and the
two private halves in ``torch.nn.utils.clip_grad``. Clipping by value, or by a norm of another order, computes nothing
that is of use: whoever listens is told before it cuts. ``GradScaler.update`` tells of steps that were skipped, for
which no hook fires, and ``DataLoader.__iter__`` where the batches of an epoch come from. The taps are process-wide
and counted: they go on with the first listener, off with the last, and only if nobody else has replaced them since.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad
from torch.utils.data import DataLoader

Lists = list[tuple[Sequence[Tensor], Sequence[Tensor]]]


class Listener:
    """Who wants to know; `failed` hears of a method that raised, the loop does not."""

    def is_elsewhere(self) -> bool:
        """Whether another thread is the one that trains: its gradients must not be touched from this one."""
        return False

    def total_of(self, tensors: Any) -> Tensor | None:
        """The total L2 norm, from a listener who needs it anyway and computes it just as torch would; or None."""
        return None

    def total_computed(self, tensors: Sequence[Tensor], total: Tensor, lists: Lists) -> None:
        """Somebody computed the total L2 norm of these tensors, on the way to it perhaps the norms in `lists`."""

    def clipped(self, parameters: Any, max_norm: float) -> None:
        """The gradients of these parameters were scaled down to max_norm."""

    def clips_otherwise(self, tensors: Sequence[Tensor], order: float | None) -> None:
        """These are about to be clipped by their norm of an order that is not 2, or by value (None)."""

    def clipped_by_value(self, tensors: Sequence[Tensor], limit: Any) -> None:
        """No element of these is larger than the limit any more."""

    def scaler_updates(self, scaler: GradScaler) -> None:
        """A gradient scaler is about to look at what its optimizers found and change its scale."""

    def loader_begins(self, loader: Any) -> None:
        """Somebody has begun to go through a data loader."""

    failed: Callable[[str, Exception], None]
    """Told when one of the methods above raised."""


# The one piece of module state: a patch is process-wide, so its listeners are. Plain weak references in a list,
# because going through a WeakSet costs more than all that is done with one listener.
_listeners: list[weakref.ref[Listener]] = []
_taps: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []
recent: Lists = []
"""Tensors whose norms were computed of late, and the norms, until it is known whose they are; see `take_recent`."""
MOST_RECENT = 8
"""One list for each device and type of a clip; more are somebody else's."""


def take_recent() -> Lists:
    """The norms computed since this was last asked; they are forgotten, so that no gradient is kept alive."""
    lists = recent.copy()
    recent.clear()
    return lists


def add(listener: Listener) -> None:
    """Start telling a listener."""
    if not _taps:
        _install()
    _listeners.append(weakref.ref(listener, _forget))


def remove(listener: Listener) -> None:
    """Stop telling a listener; the last one takes the taps off."""
    _forget(next((known for known in _listeners if known() is listener), None))


def _forget(reference: weakref.ref[Listener] | None) -> None:
    """A listener has gone, by itself or because it was let go of."""
    _listeners[:] = [known for known in _listeners if known is not reference]
    if not _listeners:
        for owner, name, original, tap in _taps:
            if getattr(owner, name) is tap:
                setattr(owner, name, original)
        _taps.clear()


def _install() -> None:
    total_norm, clip = _tap_total_norm(), _tap_clip()
    for owner, name, tap in (
        (torch, "_foreach_norm", _tap_foreach_norm()),
        (torch, "_foreach_clamp_min_", _tap_before_values()),
        (torch, "_foreach_clamp_max_", _tap_after_values()),
        (clip_grad, "_get_total_norm", total_norm),
        (clip_grad, "_clip_grads_with_norm_", clip),
        (nn.utils, "get_total_norm", total_norm),
        (nn.utils, "clip_grads_with_norm_", clip),
        (GradScaler, "update", _tap_update()),
        (DataLoader, "__iter__", _tap_iter()),
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
            if len(recent) >= MOST_RECENT:
                recent.clear()
            recent.append((tensors, norms))
        return norms

    return foreach_norm


def _tap_total_norm() -> Callable[..., Any]:
    original = clip_grad._get_total_norm

    def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Tensor:
        if norm_type != 2 or torch.compiler.is_compiling():
            if not torch.compiler.is_compiling() and isinstance(tensors, list):
                _tell("clips_otherwise", tensors, float(norm_type))
            return original(tensors, norm_type, *args, **kwargs)
        if len(_listeners) == 1 and not kwargs and (not args or args == (False, None)):
            listener = _listeners[0]()
            if listener is not None and not listener.is_elsewhere():
                try:
                    ready = listener.total_of(tensors)
                    if ready is not None:
                        return ready
                except Exception as error:  # noqa: BLE001  torch's own way is still open
                    listener.failed("total_of", error)
        recent.clear()
        total = original(tensors, norm_type, *args, **kwargs)
        _tell("total_computed", tensors, total, take_recent())
        return total

    return get_total_norm


def _tap_clip() -> Callable[..., Any]:
    original = clip_grad._clip_grads_with_norm_

    def clip_grads_with_norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> None:
        original(parameters, max_norm, *args, **kwargs)
        if not torch.compiler.is_compiling():
            _tell("clipped", parameters, max_norm)

    return clip_grads_with_norm


def _tap_before_values() -> Callable[..., Any]:
    original = torch._foreach_clamp_min_

    def foreach_clamp_min(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _tell("clips_otherwise", tensors, None)
        return original(tensors, *args, **kwargs)

    return foreach_clamp_min


def _tap_after_values() -> Callable[..., Any]:
    original = torch._foreach_clamp_max_

    def foreach_clamp_max(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tensors, *args, **kwargs)
        if not torch.compiler.is_compiling():
            _tell("clipped_by_value", tensors, args[0] if args else None)
        return result

    return foreach_clamp_max


def _tap_update() -> Callable[..., Any]:
    original = GradScaler.update

    def update(self: GradScaler, *args: Any, **kwargs: Any) -> None:
        _tell("scaler_updates", self)
        original(self, *args, **kwargs)

    return update


def _tap_iter() -> Callable[..., Any]:
    original = DataLoader.__iter__

    def begin(self: DataLoader[Any]) -> Any:
        _tell("loader_begins", self)
        return original(self)

    return begin


def _tell(method: str, *args: Any) -> None:
    for known in _listeners:
        listener = known()
        if listener is not None and not listener.is_elsewhere():
            try:
                getattr(listener, method)(*args)
            except Exception as error:  # noqa: BLE001  the loop's life is worth more than our reading
                listener.failed(method, error)
