"""The measurements of a step (a slot), and of many finished ordinary steps in columns (a bunch)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]

Kept = tuple[str, Tensor, int]
"""A device scalar: its key, the scalar, and its version when it was kept."""
Loss = tuple[str, Any, int]
"""Name, number or device scalar, and the scalar's version."""
Raw = tuple[Tensor, int, Tensor | None, float | None, list[float], float, list[Loss]]
"""One step: total norm and its version, norms by tensor, clip threshold, learning rates, end time, losses."""
OTHERS = frozenset({"total", "found_inf", "grad_scale", "same_total", "grad_norm", "lr", "seconds", "clip", "memory"})
"""Names that a loss in a bunch must not have, because other numbers have them."""


@dataclass(slots=True)
class Part:
    """Per-tensor values: device scalars for the tensors `indices`, and their numbers once they have arrived."""

    vital: str
    norms: Sequence[Tensor] | Tensor
    """Device scalars, or one vector of them."""
    indices: Indices
    values: Vector | None = None
    modules: int = 0
    """For values by module: the number of modules."""


class Slot:
    """The measurements of one step or one validation."""

    __slots__ = (
        "cells",
        "detailed",
        "facts",
        "finished",
        "groups",
        "kept",
        "kind",
        "nonfinite",
        "number",
        "parts",
        "sampled",
        "values",
    )

    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind = number, kind
        self.cells: dict[str, tuple[float, int]] = {}
        """Sum and count of numbers that were known on the host, by name."""
        self.nonfinite: dict[str, list[float]] | None = None
        """The non-finite numbers among them."""
        self.kept: list[Kept] = []
        """Device scalars: key, scalar, and its version when it was kept."""
        self.parts: list[Part] = []
        self.detailed = False
        """Whether the per-tensor values always travel with the block, not only if the total is odd."""
        self.sampled = False
        """Whether this step is looked at closely."""
        self.facts: dict[str, Any] = {}
        """Values known on the host: learning rate, step time, clip threshold."""
        self.groups: list[dict[str, Any]] | None = None
        self.finished = False
        self.values: dict[str, list[float]] = {}
        """The numbers of what was kept, by key, once they have arrived."""

    def keep(self, key: str, scalar: Tensor, *, copy: bool = False) -> None:
        """Keep a device scalar; use `copy` if its owner overwrites it later."""
        if copy:
            scalar = scalar.clone()
        if scalar.dim():
            scalar = scalar.reshape(())
        if scalar.is_inference():  # it has no version
            with torch.inference_mode(False):
                scalar = scalar.clone()
        self.kept.append((key, scalar, scalar._version))

    def add(self, name: str, value: float) -> None:
        """Add a number that is known on the host."""
        if not math.isfinite(value):
            self.nonfinite = self.nonfinite or {}
            self.nonfinite.setdefault(name, []).append(value)
            return
        total, count = self.cells.get(name, (0.0, 0))
        self.cells[name] = total + value, count + 1

    def has(self, name: str) -> bool:
        """Whether there is anything with this name."""
        return name in self.cells or name in (self.nonfinite or ()) or any(item[0] == name for item in self.kept)

    def drop(self, name: str) -> bool:
        """Drop what has this name; whether there was anything."""
        had = self.has(name)
        self.cells.pop(name, None)
        (self.nonfinite or {}).pop(name, None)
        self.kept = [item for item in self.kept if item[0] != name]
        return had

    def enter_losses(self, losses: Sequence[Loss]) -> None:
        """Enter the losses of an ordinary step."""
        for name, value, version in losses:
            if type(value) is float:
                self.add(name, value)
            else:
                self.kept.append((name, value, version))

    def enter_norms(
        self, total: tuple[Tensor, int], norms: Tensor | None, clip: float | None, indices: Indices, *, clips: bool
    ) -> None:
        """Enter the norms of an ordinary step and its clip threshold; `clips`: whether clipping has computed them."""
        self.kept.append(("total", *total))
        if norms is not None:
            self.parts.append(Part("grad_norm", norms, indices))
        if clip is not None:
            self.facts["clip"] = clip
        self.facts["captured" if clips else "own"] = True

    def __len__(self) -> int:
        return 1

    def scalars(self) -> list[Tensor]:
        """The scalars to be sent."""
        return [item[1] for item in self.kept]

    def receive(self, numbers: Sequence[float], position: int) -> int:
        """Take the numbers of what was sent, from that position on; returns where they end."""
        self.values = {}
        for key, scalar, version in self.kept:
            # A scalar that its owner has overwritten is no longer what was logged: drop it.
            if scalar._version == version:
                self.values.setdefault(key, []).append(numbers[position])
            position += 1
        self.kept = []
        return position


class Bunch:
    """Finished ordinary steps with the same measurements: for each of these, a number or scalar per step.

    Sixteen slots are a hundred objects, and each costs a microsecond when the caches are full of the loop's own work.
    So does a line of Python per step: whatever can be done for all steps at once is.
    """

    __slots__ = ("_kept", "_steps", "clips", "indices", "is_true", "losses", "number", "seconds", "totals")

    def __init__(self, number: int, steps: Sequence[Raw], seconds: Sequence[float], indices: Indices, clips: bool):
        self.number, self._steps, self.seconds = number, steps, seconds
        self.indices, self.clips = indices, clips
        self._kept: list[tuple[str | None, Sequence[Tensor], Sequence[int]]] = []
        """What was sent: the name of a loss (None: the total norms), a scalar per step, and the scalars' versions."""
        self.is_true = True
        """Whether no scalar has been overwritten since it was kept."""
        self.totals: list[float] = []
        """The total norms, once they have arrived."""
        self.losses: dict[str, list[float]] = {}
        """The losses by name, once they have arrived."""

    @staticmethod
    def are_alike(steps: Sequence[Raw]) -> bool:
        """Whether these steps can form a bunch: same losses, same clip, usable learning rates."""
        _, _, norms, clips, rates, _, losses = zip(*steps, strict=True)
        count, names = len(steps), [item[0] for item in losses[0]]
        if clips.count(clips[0]) != count or type(None) in map(type, norms) or set(map(len, losses)) != {len(names)}:
            return False
        if not OTHERS.isdisjoint(names) or len(set(names)) < len(names) or _rates(rates) is None:
            return False
        kinds: set[type] = set()
        for name, lot in zip(names, zip(*losses, strict=True), strict=True):
            called, values, _ = zip(*lot, strict=True)
            kinds.update(map(type, values))
            if called.count(name) != count:
                return False
        return len(kinds) <= 1

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, part: slice) -> Bunch:
        first = part.indices(len(self))[0]
        return Bunch(self.number + first, self._steps[part], self.seconds[part], self.indices, self.clips)

    finished = True

    @property
    def clip(self) -> float | None:
        """The clip threshold of the steps."""
        return self._steps[0][3]

    @property
    def rates(self) -> dict[str, Sequence[float]]:
        """The learning rates: of the first group, and of those that differ from it."""
        return _rates([step[4] for step in self._steps]) or {}

    def scalars(self) -> list[Tensor]:
        """The scalars to be sent: the totals, then the losses by name."""
        totals, versions, *_, losses = zip(*self._steps, strict=True)
        self._kept = [(None, totals, versions)]
        for lot in zip(*losses, strict=True):
            names, values, versions = zip(*lot, strict=True)
            if type(values[0]) is float:
                self.losses[names[0]] = [0.0 + value for value in values]
            else:
                self._kept.append((names[0], values, versions))
        return list(chain.from_iterable(scalars for _, scalars, _ in self._kept))

    def receive(self, numbers: Sequence[float], position: int) -> int:
        """Take the numbers of what was sent, from that position on; returns where they end."""
        size = len(self._steps)
        for name, scalars, versions in self._kept:
            values = list(numbers[position : position + size])
            position += size
            if name is None:
                self.totals = values
            else:
                self.losses[name] = values
            if tuple(map(_version, scalars)) != versions:
                self.is_true = False
        self._kept = []
        return position

    def slots(self, *, calm: bool = False) -> list[Slot]:
        """A slot for each step, with its numbers; `calm`: none of the steps is odd."""
        slots, by_group = [], self.rates.items()
        for place, (total, version, norms, clip, _, _, losses) in enumerate(self._steps):
            slot = Slot(self.number + place, "vitals")
            slot.finished = True
            slot.enter_losses(losses)
            slot.enter_norms((total, version), norms, clip, self.indices, clips=self.clips)
            slot.receive([*(self.losses[name][place] for name, *_ in slot.kept[:-1]), self.totals[place]], 0)
            slot.facts["seconds"] = self.seconds[place]
            slot.facts.update((name, rates[place]) for name, rates in by_group)
            if calm:
                slot.facts["total"], slot.facts["odd"] = self.totals[place], False
            slots.append(slot)
        return slots

    def is_finite(self) -> bool:
        """Whether all measured numbers are finite."""
        return all(map(math.isfinite, chain(self.totals, *self.losses.values())))


_version = operator.attrgetter("_version")


def _rates(rows: Sequence[Sequence[Any]]) -> dict[str, Sequence[float]] | None:
    """The learning rates of some steps, one row by group for each, as `GroupGauge.enter_rates` records them.

    None if they are not finite floats, or if two groups have the same one at some of the steps only.

    >>> _rates([[0.1, 0.1, 0.2], [0.1, 0.1, 0.3]])
    {'lr': (0.1, 0.1), 'lr/2': (0.2, 0.3)}
    >>> _rates([[0.1, 0.1], [0.1, 0.2]])
    """
    if len(set(map(len, rows))) != 1:
        return None
    first, *others = zip(*rows, strict=True)
    found: dict[str, Sequence[float]] = {"lr": first}
    for number, rates in enumerate(others, 1):
        if rates != first:
            if any(map(operator.eq, rates, first)):
                return None
            found[f"lr/{number}"] = rates
    if any(set(map(type, rates)) != {float} or not all(map(math.isfinite, rates)) for rates in found.values()):
        return None
    return found
