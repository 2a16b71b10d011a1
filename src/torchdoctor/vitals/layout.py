"""The watched tensors: a column for each, whose they are, and where they live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.vitals.patient import optimizer_tensors, tensor_names


def group_shapes(optimizers: Sequence[Optimizer]) -> list[tuple[int, int]]:
    """By optimizer, how many groups it has and how many tensors its last one has: what changes when any is added."""
    return [(len(optimizer.param_groups), len(optimizer.param_groups[-1]["params"])) for optimizer in optimizers]


class Layout:
    """Columns as they are given out; others are made when the optimizers' tensors change."""

    def __init__(self, models: Mapping[str, nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.owners = {id(t): number for number, item in enumerate(optimizers) for t in optimizer_tensors(item)}
        """By a tensor's id, the optimizer that holds it."""
        named = tensor_names(models, optimizers)
        self.tensors = list(named)
        self.names = tuple(named.values())
        self.held = [self.owners.get(id(tensor), -1) for tensor in self.tensors]
        """By column, the optimizer that holds the tensor, -1 for none."""
        self.witness: Tensor | None = next(
            (t for t, owner in zip(self.tensors, self.held, strict=True) if owner >= 0 and t.requires_grad), None
        )
        devices = [tensor.device for tensor in self.tensors]
        self.device = max(set(devices), key=devices.count)
        self.is_cuda = self.device.type == "cuda"
        self.shapes = group_shapes(optimizers)

    def __len__(self) -> int:
        return len(self.tensors)
