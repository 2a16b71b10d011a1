"""The gradient gauge: computes every watched tensor's gradient norm once.

If the loop clips, the norms that clipping computes are kept. Otherwise, one multi-tensor reduction runs just before the
optimizer's step. If anything but clipping changes the gradients between a capture and the step, their version counters
show it without reading a value, and they are measured again as they will be applied.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchdoctor.vitals.reduction import Reduction
from torchdoctor.vitals.transfer import Indices, Part, Slot

foreach_norm = torch._foreach_norm  # the original: our own reduction must not trigger our taps

VERIFY_EVERY = 128
"""Captures between two full comparisons of a clipped list with our gradients; otherwise, only its ends are compared."""


def local(tensor: Tensor) -> Tensor:
    """The local part of a sharded tensor: its norm needs no collective."""
    return cast(Tensor, tensor.to_local()) if hasattr(tensor, "to_local") else tensor


def norms_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The norms of tensors of one device and type in one call; half precision is summed in float32."""
    return list(foreach_norm(list(tensors), 2, dtype=torch.promote_types(tensors[0].dtype, torch.float32)))


def grouped(tensors: Sequence[Tensor], indices: Sequence[int]) -> list[tuple[list[Tensor], Indices]]:
    """Group tensors by device and type: a multi-tensor kernel takes one group per call."""
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, int]]] = {}
    for tensor, index in zip(tensors, indices, strict=True):
        groups.setdefault((tensor.device, tensor.dtype), []).append((tensor, index))
    return [
        ([pair[0] for pair in pairs], np.array([pair[1] for pair in pairs], dtype=np.intp)) for pairs in groups.values()
    ]


@dataclass(slots=True, frozen=True)
class Order:
    """Watched tensors in the order in which their gradients were passed."""

    tensors: list[Tensor]
    indices: Indices
    owner: int
    """The optimizer that holds the first of them; -1 if none does."""
    complete: frozenset[int]
    """The optimizers all of whose tensors are among them."""
    reduction: Reduction | None = None
    """How we measure them ourselves if nothing else does."""


@dataclass(slots=True)
class Capture:
    """Captured norms, and the versions of the first and last of their gradients at that moment."""

    slot: Slot
    first: Tensor
    last: Tensor
    versions: tuple[int, int]
    owners: frozenset[int]

    def refresh(self) -> None:
        """Accept the change: clipping scaled the gradients."""
        self.versions = self.first._version, self.last._version

    @property
    def untouched(self) -> bool:
        """Whether the gradients have not changed."""
        return (self.first._version, self.last._version) == self.versions


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
        self.order: Order | None = None
        """The order in which our gradients were last passed."""
        self._uses = 0

    @cached_property
    def whole(self) -> Order | None:
        """All tensors of a single optimizer, if one multi-tensor reduction can take them; else None."""
        groups = self._groups.get(0, [])
        if self._sharded or len(self._groups) != 1 or len(groups) != 1:
            return None
        tensors, indices = groups[0]
        return Order(tensors, indices, 0, frozenset({0}), Reduction(tensors))

    def measure(self, slot: Slot, owner: int, vital: str, scale: Tensor | None = None) -> Capture | None:
        """Reduce one optimizer's gradients ourselves; a loss scale that they still contain is kept too."""
        ends: list[Tensor] = []
        # If the gradients are measured again within a step (a second call, another micro-batch), the later one counts.
        slot.parts = [part for part in slot.parts if part.vital != vital or self._owners[part.indices[0]] != owner]
        with torch.no_grad():
            for tensors, indices in self._groups.get(owner, ()):
                grads: list[Any] = [tensor.grad for tensor in tensors]
                try:
                    if self._sharded:
                        raise TypeError("a norm over shards would need a collective")
                    norms = norms_of(grads)
                except (AttributeError, TypeError, RuntimeError):  # some have no gradient, or a sparse or sharded one
                    present = [position for position, grad in enumerate(grads) if grad is not None]
                    grads = [grads[position] for position in present]
                    norms = [_norm(grad) for grad in grads]
                    indices = indices[present]
                if norms:
                    ends += [grads[0], grads[-1]]
                    slot.parts.append(Part(vital, norms, indices))
        if not ends:
            return None
        if scale is not None:
            slot.keep("grad_scale", scale, copy=True)
        slot.detailed = slot.facts["own"] = True
        return Capture(slot, ends[0], ends[-1], (ends[0]._version, ends[-1]._version), frozenset({owner}))

    def recognize(self, tensors: Sequence[Tensor]) -> Order | None:
        """The order of these tensors if all are gradients of ours; else None."""
        order = self.order
        if order is not None and len(order.tensors) == len(tensors):
            self._uses += 1
            if self._uses % VERIFY_EVERY:
                if order.tensors[0].grad is tensors[0] and order.tensors[-1].grad is tensors[-1]:
                    return order
            elif all(map(operator.is_, [item.grad for item in order.tensors], tensors)):
                return order
        position = {id(tensor.grad): index for index, tensor in enumerate(self._tensors) if tensor.grad is not None}
        found = [position[id(tensor)] for tensor in tensors if id(tensor) in position]
        if not found or len(found) != len(tensors):
            return None
        covered = set(found)
        complete = frozenset(
            owner
            for owner, groups in self._groups.items()
            if all(covered.issuperset(part.tolist()) for _, part in groups)
        )
        indices = np.array(found, dtype=np.intp)
        self.order = Order([self._tensors[index] for index in found], indices, self._owners[found[0]], complete)
        return self.order


def _norm(grad: Tensor) -> Tensor:
    """The norm of a gradient that the multi-tensor kernels do not support."""
    grad = local(grad)
    if grad.is_sparse:
        grad = grad.coalesce().values()
    norm: Tensor = torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float32))
    return norm.float()
