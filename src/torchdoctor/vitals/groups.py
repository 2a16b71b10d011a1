"""The group gauge: learning rates at every step, the other hyper-parameters within eight steps of a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torchdoctor.vitals.context import group_settings
from torchdoctor.vitals.transfer import Slot

LOOK_EVERY = 8
"""Steps between two looks at what is not a learning rate."""


class GroupGauge:
    """Reads the parameter groups of some optimizers."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._first = [sum(len(opt.param_groups) for opt in optimizers[:number]) for number in range(len(optimizers))]
        self._settings: list[list[dict[str, Any]]] = [[] for _ in optimizers]
        self._seen: list[list[tuple[int, list[str], list[Any]]]] = [[] for _ in optimizers]
        """(number of keys, names, values) of each group when it was last written down: a quick look for changes."""

    def read(self, index: int, slot: Slot) -> None:
        """After a step of one optimizer: its rates, and all groups' settings if one of them has changed."""
        groups = self._optimizers[index].param_groups
        for position, group in enumerate(groups, self._first[index]):
            self._read_rate(position, group.get("lr"), slot)
        seen = self._seen[index]
        if slot.number % LOOK_EVERY and len(seen) == len(groups):
            return
        if len(seen) == len(groups) and all(
            len(group) == size and [group[name] for name in names] == values
            for group, (size, names, values) in zip(groups, seen, strict=True)
        ):
            return
        settings = [group_settings(group) for group in groups]
        self._seen[index] = [
            (len(group), list(plain), [group[name] for name in plain])
            for group, plain in zip(groups, settings, strict=True)
        ]
        if settings != self._settings[index]:
            self._settings[index] = settings
            slot.groups = [
                {"optimizer": type(optimizer).__name__, **group}
                for optimizer, known in zip(self._optimizers, self._settings, strict=True)
                for group in known
            ]

    @staticmethod
    def _read_rate(position: int, rate: Any, slot: Slot) -> None:
        if isinstance(rate, Tensor):
            if rate.device.type == "cpu":
                rate = float(rate)
            elif position == 0:
                slot.keep("rate", rate.detach(), copy=True)
                return
        if isinstance(rate, int | float) and (position == 0 or rate != slot.facts.get("lr")):
            slot.facts["lr" if position == 0 else f"lr/{position}"] = float(rate)
