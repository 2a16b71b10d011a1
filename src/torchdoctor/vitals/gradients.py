"""The gradient gauge: every watched tensor's gradient norm, computed once.

Where the loop clips, the norms that clipping computes are taken. Otherwise one multi-tensor reduction is made just
before the optimizer's step. If anything but clipping touches the gradients between a capture and the step, which
their version counters tell without reading a value, they are measured again as they will be applied.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchdoctor.vitals.transfer import Slot

Indices = NDArray[np.intp]

foreach_norm = torch._foreach_norm  # before any tap: our own reduction is not news to us


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lives here: a norm of it needs no collective."""
    return cast(Tensor, tensor.to_local()) if hasattr(tensor, "to_local") else tensor


def local_all(tensors: list[Tensor]) -> list[Tensor]:
    """The local parts; the list itself where nothing is sharded, which is nearly always."""
    return [local(tensor) for tensor in tensors] if hasattr(tensors[0], "to_local") else tensors


def stack_into(cells: Tensor, scalars: Sequence[Tensor]) -> None:
    """Write scalars of one device and type into neighbouring cells, with one kernel where they allow it."""
    device = cells.device
    if scalars[0].device == device and scalars[0].dtype == torch.float32:
        torch.stack(list(scalars), out=cells)
    else:
        cells.copy_(torch.stack(list(scalars)), non_blocking=True)


def grouped(tensors: Sequence[Tensor], indices: Sequence[int]) -> list[tuple[list[Tensor], Indices]]:
    """Tensors by device and type: what a multi-tensor kernel can take in one go."""
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, int]]] = {}
    for tensor, index in zip(tensors, indices, strict=True):
        groups.setdefault((tensor.device, tensor.dtype), []).append((tensor, index))
    return [
        ([pair[0] for pair in pairs], np.array([pair[1] for pair in pairs], dtype=np.intp)) for pairs in groups.values()
    ]


@dataclass(slots=True)
class Capture:
    """Norms that were taken, and the state of the first and last of their gradients at that moment."""

    slot: Slot
    ends: tuple[Tensor, Tensor]
    versions: tuple[int, int]
    owners: frozenset[int]
    """The optimizers all of whose tensors are in it."""

    def refresh(self) -> None:
        """The gradients were scaled by clipping: that is expected."""
        self.versions = self.ends[0]._version, self.ends[1]._version

    @property
    def untouched(self) -> bool:
        """Whether the gradients are as they were."""
        return (self.ends[0]._version, self.ends[1]._version) == self.versions


class GradientGauge:
    """Measures the gradients of all watched tensors, optimizer by optimizer."""

    def __init__(self, tensors: Sequence[Tensor], owners: Sequence[int]) -> None:
        self._tensors = list(tensors)
        self._owners = list(owners)
        self._groups = {
            owner: grouped(
                [tensor for tensor, holder in zip(tensors, owners, strict=True) if holder == owner],
                [index for index, holder in enumerate(owners) if holder == owner],
            )
            for owner in set(owners)
            if owner >= 0
        }
        self._sharded = any(hasattr(tensor, "to_local") for tensor in tensors)
        self._order: tuple[list[Tensor], Indices, frozenset[int]] = ([], np.zeros(0, dtype=np.intp), frozenset())

    def measure(self, slot: Slot, owner: int, vital: str, scale: Tensor | None = None) -> Capture | None:
        """Own reduction over one optimizer's gradients, divided by a loss scale if there is one."""
        ends: list[Tensor] = []
        with torch.no_grad():
            for tensors, indices in self._groups.get(owner, ()):
                grads: list[Any] = [tensor.grad for tensor in tensors]
                try:
                    if self._sharded:
                        raise TypeError("a norm over shards would need a collective")
                    norms = list(foreach_norm(grads, 2, dtype=torch.float32))
                except (TypeError, RuntimeError):  # some have no gradient, or a sparse or sharded one
                    present = [position for position, grad in enumerate(grads) if grad is not None]
                    grads = [grads[position] for position in present]
                    norms = [_norm(grad) for grad in grads]
                    indices = indices[present]
                if norms:
                    ends += [grads[0], grads[-1]]
                    _write(slot, vital, norms, indices, scale)
        if not ends:
            return None
        first, last = ends[0], ends[-1]
        return Capture(slot, (first, last), (first._version, last._version), frozenset({owner}))

    def recognize(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors are gradients of ours; remembers whose, in their order."""
        known = self._order[0]
        if len(known) == len(tensors) and all(map(operator.is_, [item.grad for item in known], tensors)):
            return True
        position = {id(tensor.grad): index for index, tensor in enumerate(self._tensors) if tensor.grad is not None}
        found = [position[id(tensor)] for tensor in tensors if id(tensor) in position]
        if not found or len(found) != len(tensors):
            return False
        covered = set(found)
        complete = frozenset(
            owner
            for owner, groups in self._groups.items()
            if all(covered.issuperset(part.tolist()) for _, part in groups)
        )
        self._order = [self._tensors[index] for index in found], np.array(found, dtype=np.intp), complete
        return True

    def owner_of_recognized(self) -> int:
        """The optimizer that holds the first of the tensors last recognized, -1 if none does."""
        return self._owners[int(self._order[1][0])]

    def take(self, slot: Slot, tensors: Sequence[Tensor], norms: Sequence[Tensor]) -> Capture:
        """The norms that somebody else computed of the tensors last recognized."""
        if norms[0].requires_grad:  # of gradients that have a graph themselves
            norms = [norm.detach() for norm in norms]
        _write(slot, "grad_norm", norms, self._order[1], None)
        first, last = tensors[0], tensors[-1]
        return Capture(slot, (first, last), (first._version, last._version), self._order[2])


def _write(slot: Slot, vital: str, norms: Sequence[Tensor], indices: Indices, scale: Tensor | None) -> None:
    start = None
    for known, position, columns in slot.parts:
        if columns is indices and known == vital:
            start = position
    cells = slot.take(len(norms)) if start is None else slot.row.narrow(0, start, len(norms))
    if cells is None:
        return
    stack_into(cells, norms)
    if scale is not None:
        cells.div_(scale)
    if start is None:
        slot.parts.append((vital, slot.used - len(norms), indices))


def _norm(grad: Tensor) -> Tensor:
    """The norm of a gradient that the multi-tensor kernels do not take."""
    grad = local(grad)
    if grad.is_sparse:
        grad = grad.coalesce().values()
    norm: Tensor = torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float32))
    return norm.float()
