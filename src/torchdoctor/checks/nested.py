"""Operations on batches: tensors nested in tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors(thing: Any) -> Iterator[Tensor]:
    """Every tensor with at least one dimension."""
    if isinstance(thing, Tensor):
        if thing.dim():
            yield thing
    elif isinstance(thing, Mapping | list | tuple):
        for item in thing.values() if isinstance(thing, Mapping) else thing:
            yield from tensors(item)


def leading(thing: Any) -> Tensor | None:
    """The first tensor with at least one dimension in the inputs."""
    if isinstance(thing, Tensor):
        return thing if thing.dim() else None
    items = thing.values() if isinstance(thing, Mapping) else thing if isinstance(thing, list | tuple) else ()
    return next((found for item in items if (found := leading(item)) is not None), None)


def moved(thing: Any, device: torch.device) -> Any:
    """A copy on a device: of tensors, and of lists, tuples and dicts of them; other objects unchanged."""
    if isinstance(thing, Tensor):
        return thing.detach().clone().to(device).requires_grad_(thing.requires_grad)
    if isinstance(thing, Mapping):
        return {key: moved(item, device) for key, item in thing.items()}
    if isinstance(thing, list | tuple) and not hasattr(thing, "_fields"):
        return type(thing)(moved(item, device) for item in thing)
    return thing


def first(thing: Any, samples: int, of: int) -> Any:
    """The first samples of every tensor that has one entry per sample."""
    if isinstance(thing, Tensor):
        return thing[:samples] if thing.dim() and thing.shape[0] == of else thing
    if isinstance(thing, Mapping):
        return {key: first(item, samples, of) for key, item in thing.items()}
    if isinstance(thing, tuple) and not hasattr(thing, "_fields"):
        return tuple(first(item, samples, of) for item in thing)
    if isinstance(thing, list):
        return thing[:samples] if len(thing) == of else [first(item, samples, of) for item in thing]
    return thing


def shorter(thing: Any, length: int, shape: torch.Size) -> Any:
    """The beginning of every tensor that has one entry per token."""
    if isinstance(thing, Tensor):
        return thing[:, :length] if thing.shape[:2] == shape else thing
    if isinstance(thing, Mapping):
        return {key: shorter(item, length, shape) for key, item in thing.items()}
    if isinstance(thing, tuple | list) and not hasattr(thing, "_fields"):
        return type(thing)(shorter(item, length, shape) for item in thing)
    return thing
