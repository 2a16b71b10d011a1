"""What is being measured of a step: a slot; and of ordinary steps that are over: a bunch of them in columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]

Kept = tuple[str, Tensor, int]
"""A device scalar: what it is, itself, and its version when it was kept."""
Loss = tuple[str, Any, int]
"""Name, number or device scalar, and the scalar's version."""
Raw = tuple[Tensor, int, Tensor | None, float | None, list[float], float, list[Loss]]
"""One step: total norm and its version, norms by tensor, clip threshold, learning rates, when it ended, losses."""
OTHERS = frozenset({"total", "found_inf", "grad_scale", "same_total", "grad_norm", "lr", "seconds", "clip", "memory"})
"""Names that a loss in a bunch may not have: they are those of other numbers."""


@dataclass(slots=True)
class Part:
    """Per-tensor values: device scalars for the tensors `indices`, and their numbers once they have arrived."""

    vital: str
    norms: Sequence[Tensor] | Tensor
    """Device scalars, or one vector of them."""
    indices: Indices
    values: Vector | None = None
    modules: int = 0
    """For values by module instead: how many modules there are."""


class Slot:
    """What is being measured of one step, or of one validation."""

    __slots__ = (
        "cells",
        "detailed",
        "facts",
        "finished",
        "groups",
        "kept",
        "kind",
        "number",
        "parts",
        "sampled",
        "values",
    )

    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind = number, kind
        self.cells: dict[str, tuple[float, int]] = {}
        """Sum and count of numbers that were known on the host, by name."""
        self.kept: list[Kept] = []
        """Device scalars: what each is, itself, and its version when it was kept."""
        self.parts: list[Part] = []
        self.detailed = False
        """Whether the per-tensor values travel with the block, rather than only if the total turns out to be odd."""
        self.sampled = False
        """Whether this step is looked at closely."""
        self.facts: dict[str, Any] = {}
        """What the host knows by itself: learning rate, step time, clip threshold."""
        self.groups: list[dict[str, Any]] | None = None
        self.finished = False
        self.values: dict[str, list[float]] = {}
        """The numbers of what was kept, by key, once they have arrived."""

    def keep(self, key: str, scalar: Tensor, *, copy: bool = False) -> None:
        """Keep a device scalar; `copy` where its owner writes to it later."""
        if copy:
            scalar = scalar.clone()
        if scalar.dim():
            scalar = scalar.reshape(())
        self.kept.append((key, scalar, scalar._version))

    def add(self, name: str, value: float) -> None:
        """Add a number that is known on the host."""
        total, count = self.cells.get(name, (0.0, 0))
        self.cells[name] = total + value, count + 1

    def has(self, name: str) -> bool:
        """Whether there is anything under this name."""
        return name in self.cells or any(item[0] == name for item in self.kept)

    def enter_losses(self, losses: Sequence[Loss]) -> None:
        """The losses of an ordinary step."""
        for name, value, version in losses:
            if type(value) is float:
                self.add(name, value)
            else:
                self.kept.append((name, value, version))

    def enter_norms(
        self, total: tuple[Tensor, int], norms: Tensor | None, clip: float | None, indices: Indices, *, clips: bool
    ) -> None:
        """The norms of an ordinary step, and what it was clipped at; `clips`: whether clipping has measured them."""
        self.kept.append(("total", *total))
        if norms is not None:
            self.parts.append(Part("grad_norm", norms, indices))
        if clip is not None:
            self.facts["clip"] = clip
        self.facts["captured" if clips else "own"] = True

    def __len__(self) -> int:
        return 1

    def scalars(self) -> list[Tensor]:
        """What is to be sent."""
        return [item[1] for item in self.kept]

    def receive(self, numbers: Sequence[float], position: int) -> int:
        """Take the numbers of what was sent, from that position on; returns where they end."""
        self.values = {}
        for key, scalar, version in self.kept:
            # A scalar that its owner has written to since is not what was logged: better none.
            if scalar._version == version:
                self.values.setdefault(key, []).append(numbers[position])
            position += 1
        self.kept = []
        return position


class Bunch:
    """Ordinary steps that are over and measured the same: a number or scalar of each, by what it is.

    Sixteen slots are a hundred objects, and each costs a microsecond when the caches are full of the loop's own work.
    """

    __slots__ = ("_steps", "clips", "indices", "is_true", "losses", "number", "seconds", "totals")

    def __init__(self, number: int, steps: Sequence[Raw], seconds: Sequence[float], indices: Indices, clips: bool):
        self.number, self._steps, self.seconds = number, steps, seconds
        self.indices, self.clips = indices, clips
        self.is_true = True
        """Whether nobody has written to the scalars since they were kept."""
        self.totals: list[float] = []
        """The total norms, once they have arrived."""
        self.losses: dict[str, list[float]] = {}
        """The losses by name, once they have arrived."""

    @staticmethod
    def are_alike(steps: Sequence[Raw]) -> bool:
        """Whether these steps can be a bunch: the same losses, the same clip, one learning rate each."""
        clip, losses = steps[0][3], steps[0][6]
        names = [item[0] for item in losses]
        kind = type(losses[0][1]) if losses else float
        if not OTHERS.isdisjoint(names) or len(set(names)) < len(names):
            return False
        for _, _, norms, own, rates, _, found in steps:
            if norms is None or own != clip or len(found) != len(names) or rates.count(rates[0]) != len(rates):
                return False
            if type(rates[0]) is not float:
                return False
            for name, (mine, value, _) in zip(names, found, strict=True):
                if mine != name or type(value) is not kind:
                    return False
        return True

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, part: slice) -> Bunch:
        first = part.indices(len(self))[0]
        return Bunch(self.number + first, self._steps[part], self.seconds[part], self.indices, self.clips)

    finished = True

    @property
    def clip(self) -> float | None:
        """What the steps were clipped at."""
        return self._steps[0][3]

    @property
    def rates(self) -> list[float]:
        """The learning rates."""
        return [step[4][0] for step in self._steps]

    def scalars(self) -> list[Tensor]:
        """What is to be sent: the totals, then the losses by name."""
        steps = self._steps
        scalars = [step[0] for step in steps]
        for number, (_, value, _) in enumerate(steps[0][6]):
            if type(value) is not float:
                scalars += [step[6][number][1] for step in steps]
        return scalars

    def receive(self, numbers: Sequence[float], position: int) -> int:
        """Take the numbers of what was sent, from that position on; returns where they end."""
        steps, size = self._steps, len(self._steps)
        self.totals = list(numbers[position : position + size])
        position += size
        for number, (name, value, _) in enumerate(steps[0][6]):
            if type(value) is float:
                self.losses[name] = [0.0 + step[6][number][1] for step in steps]
            else:
                self.losses[name] = list(numbers[position : position + size])
                position += size
        for total, version, _, _, _, _, losses in steps:
            if total._version != version:
                self.is_true = False
            for _, value, version in losses:
                if type(value) is not float and value._version != version:
                    self.is_true = False
        return position

    def slots(self, *, calm: bool = False) -> list[Slot]:
        """The same as a slot for each step, with its numbers; `calm`: none of them is odd."""
        slots = []
        for place, (total, version, norms, clip, rates, _, losses) in enumerate(self._steps):
            slot = Slot(self.number + place, "vitals")
            slot.finished = True
            slot.enter_losses(losses)
            slot.enter_norms((total, version), norms, clip, self.indices, clips=self.clips)
            slot.receive([*(self.losses[name][place] for name, *_ in slot.kept[:-1]), self.totals[place]], 0)
            slot.facts["seconds"], slot.facts["lr"] = self.seconds[place], rates[0]
            if calm:
                slot.facts["total"], slot.facts["odd"] = self.totals[place], False
            slots.append(slot)
        return slots

    def is_finite(self) -> bool:
        """Whether all that was measured is finite."""
        return all(map(math.isfinite, self.totals)) and all(
            all(map(math.isfinite, values)) for values in self.losses.values()
        )
