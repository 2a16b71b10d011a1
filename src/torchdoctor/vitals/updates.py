"""The update gauge: how large the weights are, and how far a step moves them relative to their size.

It runs at sampled steps, and once before the first one: weights that are broken then were broken before the run.
A copy of all weights would cost as much memory as the model, so the movement is measured on a slice of each tensor
(`SLICE` adjacent elements from its middle); weight norms are those of whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdoctor.vitals.gauge import Gauge
from torchdoctor.vitals.gradients import grouped, local, norms_of
from torchdoctor.vitals.transfer import Part, Slot

SLICE = 2048
DEVICE_BYTES = 4_000_000
"""Maximum device memory for copies of the slices: slices shrink if there are very many tensors."""


class UpdateGauge(Gauge):
    """Weight norms and update ratios of all tensors in an optimizer; `owners` gives the optimizer, -1 for none."""

    def __init__(self, tensors: Sequence[Tensor], owners: Sequence[int]) -> None:
        moving = [
            (owner, index, tensor)
            for index, (tensor, owner) in enumerate(zip(tensors, owners, strict=True))
            if owner >= 0 and tensor.requires_grad and tensor.numel() and tensor.is_floating_point()
        ]
        self._slice = max(16, min(SLICE, DEVICE_BYTES // (4 * max(1, len(moving)))))
        self._groups = {
            owner: grouped([item[2] for item in moving if item[0] == owner], [i[1] for i in moving if i[0] == owner])
            for owner in {item[0] for item in moving}
        }
        self._views: dict[tuple[int, int], tuple[list[int], list[Tensor]]] = {}
        self._before: list[list[Tensor]] = []
        self._begun: set[int] = set()
        """Optimizers whose weights were measured before their first watched step."""

    def before_step(self, index: int, slot: Slot) -> None:
        """Just before the step: copy the slices."""
        with torch.no_grad():
            self._before = [
                list(torch._foreach_mul(self._slices(index, number), 1.0))
                for number in range(len(self._groups.get(index, ())))
            ]
            if index not in self._begun:
                self._begun.add(index)
                for tensors, indices in self._groups.get(index, ()):
                    slot.parts.append(Part("start_norm", norms_of(_whole(tensors)), indices))

    def after_step(self, index: int, slot: Slot) -> None:
        """Just after the step: norms of the weights, of the slices, and of the change of the slices."""
        with torch.no_grad():
            for number, before in enumerate(self._before):
                tensors, indices = self._groups[index][number]
                moved = list(torch._foreach_sub(self._slices(index, number), before))
                whole = _whole(tensors)
                for vital, measured in (("weight_norm", whole), ("slice_norm", before), ("change_norm", moved)):
                    slot.parts.append(Part(vital, norms_of(measured), indices))
        self._before = []

    def _slices(self, index: int, number: int) -> list[Tensor]:
        """Views of the middle of each tensor, made again when a tensor's storage has been replaced."""
        tensors, _ = self._groups[index][number]
        pointers, views = self._views.get((index, number), ([], []))
        now = [tensor.data_ptr() for tensor in tensors]
        if now != pointers:
            views = [self._middle(local(tensor.detach())) for tensor in tensors]
            self._views[index, number] = now, views
        return views

    def _middle(self, tensor: Tensor) -> Tensor:
        # as_strided and not reshape, which would copy a non-contiguous weight (channels_last)
        size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        length = min(tensor.numel(), self._slice, size)
        start = (min(tensor.numel(), size) - length) // 2
        return tensor.as_strided((length,), (1,), tensor.storage_offset() + start)


def _whole(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [local(tensor) for tensor in tensors] if hasattr(tensors[0], "to_local") else list(tensors)
