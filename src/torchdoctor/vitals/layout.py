"""The watched tensors: a column for each, their optimizers, and their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.vitals.patient import optimizer_tensors, tensor_names


def group_shapes(optimizers: Sequence[Optimizer]) -> list[tuple[int, int, int]]:
    """By optimizer, its number of groups, and of the last one the number of tensors and which is the last.

    These change when tensors are added, or those of a new head take the place of the old ones.
    """
    return [shape_of(optimizer.param_groups) for optimizer in optimizers]


def shape_of(groups: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
    """The same for the groups of one optimizer."""
    last = groups[-1]["params"]
    return len(groups), len(last), id(last[-1]) if last else 0


class Layout:
    """Assigns columns to tensors; a new layout is made when the optimizers' tensors change."""

    def __init__(self, models: Mapping[str, nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.owners = {id(t): number for number, item in enumerate(optimizers) for t in optimizer_tensors(item)}
        """The optimizer that holds a tensor, by the tensor's id."""
        named = tensor_names(models, optimizers)
        self.tensors = list(named)
        self.names = tuple(named.values())
        self.held = [self.owners.get(id(tensor), -1) for tensor in self.tensors]
        """By column, the optimizer that holds the tensor; -1 for none."""
        self.witness: Tensor | None = next(
            (t for t, owner in zip(self.tensors, self.held, strict=True) if owner >= 0 and t.requires_grad), None
        )
        devices = [tensor.device for tensor in self.tensors]
        self.device = max(set(devices), key=devices.count)
        self.is_cuda = self.device.type == "cuda"
        self.shapes = group_shapes(optimizers)

    def __len__(self) -> int:
        return len(self.tensors)
