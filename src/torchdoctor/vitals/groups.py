"""The group gauge: learning rates at every step, other hyperparameters within about sixty steps of a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torchdoctor.vitals.context import group_settings
from torchdoctor.vitals.transfer import Slot

LOOK_EVERY = 8
"""Steps between two looks at everything but learning rates."""


class GroupGauge:
    """Reads the parameter groups of some optimizers."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self.lay_out()

    def lay_out(self) -> None:
        """Start over, with the optimizers that are watched now."""
        optimizers = self._optimizers
        self._first = [sum(len(opt.param_groups) for opt in optimizers[:number]) for number in range(len(optimizers))]
        self._settings: list[list[dict[str, Any]]] = [[] for _ in optimizers]
        self._seen: list[list[tuple[int, list[str], list[Any]]]] = [[] for _ in optimizers]
        """(number of keys, names, values) of each group when last recorded, to find changes quickly."""

    def read(self, index: int, slot: Slot) -> None:
        """After a step of one optimizer: read its learning rates, and from time to time the settings of its groups."""
        self.enter_rates(index, slot, [group.get("lr") for group in self._optimizers[index].param_groups])
        if slot.number % LOOK_EVERY == 0 or len(self._seen[index]) != len(self._optimizers[index].param_groups):
            self.look(index, slot)

    def enter_rates(self, index: int, slot: Slot, rates: Sequence[Any]) -> None:
        """Enter the learning rates of one optimizer's groups: the first, and those that differ from it."""
        facts, position = slot.facts, self._first[index]
        for rate in rates:
            if type(rate) is not float:
                rate = self._plain_rate(position, rate, slot)
            if position == 0:
                if rate is not None:
                    facts["lr"] = rate
            elif rate is not None and rate != facts.get("lr"):
                facts[f"lr/{position}"] = rate
            position += 1

    def look(self, index: int, slot: Slot | None) -> None:
        """Enter all groups' settings if one of them has changed."""
        if slot is None:
            return
        groups = self._optimizers[index].param_groups
        seen = self._seen[index]
        if len(seen) == len(groups) and all(
            len(group) == size and [group[name] for name in names] == values
            for group, (size, names, values) in zip(groups, seen, strict=True)
        ):
            return
        defaults = self._optimizers[index].defaults
        settings = [group_settings(group, defaults) for group in groups]
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
    def _plain_rate(position: int, rate: Any, slot: Slot) -> float | None:
        if isinstance(rate, Tensor):
            if rate.device.type == "cpu":
                return float(rate)
            if position == 0:
                slot.keep("lr", rate.detach(), copy=True)
            return None
        return float(rate) if isinstance(rate, int | float) else None
