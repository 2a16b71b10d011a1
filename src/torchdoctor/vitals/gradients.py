"""The gradient gauge: every watched tensor's gradient norm, computed once.

Where the loop clips, the norms that clipping computes are kept. Otherwise one multi-tensor reduction is made just
before the optimizer's step. If anything but clipping touches the gradients between a capture and the step, which
their version counters tell without reading a value, they are measured again as they will be applied.
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

foreach_norm = torch._foreach_norm  # before any tap: our own reduction is not news to us

VERIFY_EVERY = 128
"""Captures between two full comparisons of a clipped list with our gradients; in between its ends are compared."""


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lives here: a norm of it needs no collective."""
    return cast(Tensor, tensor.to_local()) if hasattr(tensor, "to_local") else tensor


def norms_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The norms of tensors of one device and type, in one go; of half precision in single, which does not overflow."""
    return list(foreach_norm(list(tensors), 2, dtype=torch.promote_types(tensors[0].dtype, torch.float32)))


def grouped(tensors: Sequence[Tensor], indices: Sequence[int]) -> list[tuple[list[Tensor], Indices]]:
    """Tensors by device and type: what a multi-tensor kernel can take in one go."""
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, int]]] = {}
    for tensor, index in zip(tensors, indices, strict=True):
        groups.setdefault((tensor.device, tensor.dtype), []).append((tensor, index))
    return [
        ([pair[0] for pair in pairs], np.array([pair[1] for pair in pairs], dtype=np.intp)) for pairs in groups.values()
    ]


@dataclass(slots=True, frozen=True)
class Order:
    """Tensors of ours in the order in which somebody handed over their gradients."""

    tensors: list[Tensor]
    indices: Indices
    owner: int
    """The optimizer that holds the first of them, -1 if none does."""
    complete: frozenset[int]
    """The optimizers all of whose tensors are among them."""
    reduction: Reduction | None = None
    """How we measure them ourselves, where nobody else does."""


@dataclass(slots=True)
class Capture:
    """Norms that were taken, and the state of the first and last of their gradients at that moment."""

    slot: Slot
    first: Tensor
    last: Tensor
    versions: tuple[int, int]
    owners: frozenset[int]

    def refresh(self) -> None:
        """The gradients were scaled by clipping: that is expected."""
        self.versions = self.first._version, self.last._version

    @property
    def untouched(self) -> bool:
        """Whether the gradients are as they were."""
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
        """The order in which our gradients were last handed over."""
        self._uses = 0

    @cached_property
    def whole(self) -> Order | None:
        """All tensors of an only optimizer, if one multi-tensor reduction takes them; None otherwise."""
        groups = self._groups.get(0, [])
        if self._sharded or len(self._groups) != 1 or len(groups) != 1:
            return None
        tensors, indices = groups[0]
        return Order(tensors, indices, 0, frozenset({0}), Reduction(tensors))

    def measure(self, slot: Slot, owner: int, vital: str, scale: Tensor | None = None) -> Capture | None:
        """Own reduction over one optimizer's gradients; a loss scale that is still in them is kept beside."""
        ends: list[Tensor] = []
        # Measured again within a step (a second call, another micro-batch): the later measurement counts.
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
        """Whose gradients these tensors are, None if they are not all ours."""
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
    """The norm of a gradient that the multi-tensor kernels do not take."""
    grad = local(grad)
    if grad.is_sparse:
        grad = grad.coalesce().values()
    norm: Tensor = torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float32))
    return norm.float()
