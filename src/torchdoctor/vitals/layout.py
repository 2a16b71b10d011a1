"""The watched tensors: a column for each, their optimizers, and their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.vitals.patient import optimizer_tensors, tensor_names


def group_shapes(optimizers: Sequence[Optimizer]) -> list[tuple[int, int]]:
    """By optimizer, its number of groups and of tensors in the last one: these change when any is added."""
    return [(len(optimizer.param_groups), len(optimizer.param_groups[-1]["params"])) for optimizer in optimizers]


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
