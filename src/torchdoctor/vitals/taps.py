"""Taps on the few torch functions that compute what we would otherwise compute again.

Clipping computes every gradient's norm. ``torch.nn.utils.clip_grad_norm_`` may have been imported before us under any
name, so the taps are on what it calls: ``torch._foreach_norm`` (which the public `get_total_norm` also uses) and the
two private halves in ``torch.nn.utils.clip_grad``. Clipping by value, or by a norm of another order, computes nothing
useful, so listeners are told before it happens. ``GradScaler.update`` shows skipped steps, for which no hook fires, and
``DataLoader.__iter__`` shows where an epoch's batches come from, and ``Optimizer.__init__`` an optimizer that may take
over from a given one. One tap only makes room: TorchScript does not see our hooks. The taps are process-wide and
reference-counted: they are installed with the first listener and removed with the last, but only if nothing else has
replaced them since.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.jit import _recursive as script
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from torchdoctor.vitals.hooks import hidden

Lists = list[tuple[Sequence[Tensor], Sequence[Tensor]]]


class Listener:
    """An object that wants to be told; if one of its methods raises, `failed` is called and the loop continues."""

    def is_elsewhere(self) -> bool:
        """Whether another thread does the training: its gradients must not be touched from this one."""
        return False

    def total_of(self, tensors: Any) -> Tensor | None:
        """The total L2 norm, if the listener needs it anyway and computes it exactly as torch would; else None."""
        return None

    def total_computed(self, tensors: Sequence[Tensor], total: Tensor, lists: Lists) -> None:
        """The total L2 norm of these tensors was computed, perhaps with the norms in `lists` on the way."""

    def clipped(self, parameters: Any, max_norm: float) -> None:
        """The gradients of these parameters were scaled down to max_norm."""

    def clips_otherwise(self, tensors: Sequence[Tensor], order: float | None) -> None:
        """These tensors are about to be clipped by a norm of another order than 2, or by value (None)."""

    def clipped_by_value(self, tensors: Sequence[Tensor], limit: Any) -> None:
        """These tensors were clipped by value to this limit."""

    def scaler_updates(self, scaler: GradScaler) -> None:
        """A gradient scaler is about to check what its optimizers found and update its scale."""

    def loader_begins(self, loader: Any) -> None:
        """An iteration over a data loader has begun."""

    def optimizer_built(self, optimizer: Optimizer) -> None:
        """An optimizer was built, perhaps in another thread."""

    failed: Callable[[str, Exception], None]
    """Called when one of the methods above raises an error."""


# The only module state: a patch is process-wide, and so are its listeners. Plain weak references in a list, because
# iterating over a WeakSet costs more than everything that is done for one listener.
_listeners: list[weakref.ref[Listener]] = []
_taps: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []
recent: Lists = []
"""Tensors whose norms were computed recently, and the norms, until their owner is known; see `take_recent`."""
MOST_RECENT = 8
"""One list for each device and type of a clip; if there are more, they belong to something else."""


def take_recent() -> Lists:
    """Return and forget the norms computed since the last call, so that no gradient is kept alive."""
    lists = recent.copy()
    recent.clear()
    return lists


def add(listener: Listener) -> None:
    """Start telling a listener."""
    if not _taps:
        _install()
    _listeners.append(weakref.ref(listener, _forget))


def remove(listener: Listener) -> None:
    """Stop telling a listener; when the last one leaves, the taps are removed."""
    _forget(next((known for known in _listeners if known() is listener), None))


def _forget(reference: weakref.ref[Listener] | None) -> None:
    """A listener has been removed or garbage-collected."""
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
        (Optimizer, "__init__", _tap_optimizer()),
        (script, "create_script_module", _tap_script()),
    ):
        if hasattr(owner, name):
            _taps.append((owner, name, getattr(owner, name), tap))
            setattr(owner, name, tap)


# Dynamo must only see the originals: with state in a traced function, it would recompile at every call.


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
                except Exception as error:  # noqa: BLE001  torch's own way still works
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


def _tap_optimizer() -> Callable[..., Any]:
    original = Optimizer.__init__

    @functools.wraps(original)
    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _tell("optimizer_built", self, anywhere=True)

    return init


def _tap_script() -> Callable[..., Any]:
    original = script.create_script_module

    def create_script_module(nn_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with hidden(nn_module):
            return original(nn_module, *args, **kwargs)  # type: ignore[no-untyped-call]

    return create_script_module


def _tell(method: str, *args: Any, anywhere: bool = False) -> None:
    for known in tuple(_listeners) if anywhere else _listeners:
        listener = known()
        if listener is not None and (anywhere or not listener.is_elsewhere()):
            try:
                getattr(listener, method)(*args)
            except Exception as error:  # noqa: BLE001  the loop matters more than a measurement
                listener.failed(method, error)
