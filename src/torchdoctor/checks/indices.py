"""Checks indices before they reach a GPU, where an index out of range would end the whole process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, overrides
from torch.overrides import TorchFunctionMode


class IndicesInRange(TorchFunctionMode):
    """Raises the error that a CPU would raise, before the device runs anything.

    >>> with IndicesInRange():
    ...     torch.nn.Embedding(4, 2)(torch.tensor([1, 4]))
    Traceback (most recent call last):
    ...
    IndexError: index 4 is out of range: embedding has 0 to 3
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Check the indices, then call the function."""
        named = dict(kwargs or {})
        look = LOOKS.get(getattr(func, "__name__", ""))
        if look is not None:
            look(func.__name__, args, named)
        return func(*args, **named)


@contextlib.contextmanager
def indices_in_range(device: torch.device) -> Iterator[None]:
    """Check indices if the device is a GPU."""
    with IndicesInRange() if device.type == "cuda" else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def unlooked() -> Iterator[None]:
    """Suspend checking while the compiler traces."""
    innermost = overrides._get_current_function_mode()  # type: ignore[no-untyped-call]
    with overrides._pop_mode_temporarily() if isinstance(innermost, IndicesInRange) else contextlib.nullcontext():
        yield


def _require(name: str, index: Any, rows: int, *, ignored: int | None = None, negative: bool = False) -> None:
    if not isinstance(index, Tensor) or index.dtype in (torch.bool, torch.uint8) or index.is_floating_point():
        return
    used = index.detach() if ignored is None else index.detach()[index.detach() != ignored]
    if not used.numel():
        return
    low, high = int(used.min()), int(used.max())
    if low < (-rows if negative else 0) or high >= rows:
        raise IndexError(f"index {high if high >= rows else low} is out of range: {name} has 0 to {rows - 1}")


def _at_table(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """``F.embedding(index, table)`` and ``torch.embedding(table, index)``."""
    tensors = [item for item in (*args[:2], named.get("input"), named.get("weight")) if isinstance(item, Tensor)]
    tables = [item for item in tensors if item.is_floating_point()]
    for item in tensors:
        if tables and not item.is_floating_point():
            _require(name, item, tables[0].shape[0])


def _at_classes(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    scores, *rest = (*args, *([named["input"]] if "input" in named else []))
    target = rest[0] if rest else named.get("target")
    if isinstance(scores, Tensor) and scores.dim():
        classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
        _require(name, target, classes, ignored=named.get("ignore_index", -100))


def _at_dimension(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """``gather(x, dim, index)`` and similar functions."""
    given = dict(zip(("input", "dim", "index"), args, strict=False), **named)
    table, dimension = given.get("input"), given.get("dim")
    if isinstance(table, Tensor) and isinstance(dimension, int) and table.dim():
        _require(name, given.get("index"), table.shape[dimension])


def _at_places(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """``table[index]``, ``table[:, index]``; more complex forms are not checked."""
    table, place = args
    places = place if isinstance(place, tuple) else (place,)
    plain = all(isinstance(item, slice | int) or (isinstance(item, Tensor) and item.dtype.is_signed) for item in places)
    if not isinstance(table, Tensor) or not plain or len(places) > table.dim():
        return
    for dimension, item in enumerate(places):
        _require("a tensor", item, table.shape[dimension], negative=True)


def _at_numbers(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    classes = args[1] if len(args) > 1 else named.get("num_classes", -1)
    if isinstance(classes, int) and classes > 0:
        _require(name, args[0], classes)


LOOKS: dict[str, Callable[[str, tuple[Any, ...], dict[str, Any]], None]] = {
    "embedding": _at_table,
    "embedding_bag": _at_table,
    "cross_entropy": _at_classes,
    "cross_entropy_loss": _at_classes,
    "nll_loss": _at_classes,
    "nll_loss_nd": _at_classes,
    "gather": _at_dimension,
    "index_select": _at_dimension,
    "scatter": _at_dimension,
    "__getitem__": _at_places,
    "one_hot": _at_numbers,
}
"""By the name of a function, how its index is checked."""
