"""From the device to the host without waiting, and with hardly a launch.

Readings are device scalars that exist anyway (a loss, the norms that clipping computed): a slot keeps references to
them. A block of slots is gathered with one launch, copied to pinned memory in one asynchronous copy, and read when the
event behind it has passed. So a step costs no kernel of ours; one launch serves up to `BLOCK` steps, and judging them
in one go costs a third of judging each by itself, when the caches are full of the loop's own work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]

BLOCK = 16
"""Steps that travel together at most."""
LATENCY = 0.2
"""Seconds that a reading may wait for its block: slow steps travel alone."""
KEPT = 4096
"""Device scalars that a block may keep alive: each takes 512 bytes of the device's memory."""


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
        self.kept: list[tuple[str, Tensor, int]] = []
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


class Cargo:
    """Room for some scalars on the device and, pinned, on the host; used again and again.

    The scalars go into it with one multi-tensor copy: stacking them would make a view of each first.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = torch.empty(size, device=device)
        self._host = torch.empty(size, pin_memory=True)
        self._places = list(self._device.unbind())
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self._places)

    def load(self, scalars: list[Tensor]) -> None:
        """Send these scalars off."""
        torch._foreach_copy_(self._places[: len(scalars)], scalars)
        self._host.copy_(self._device, non_blocking=True)
        self._event.record()

    def unload(self, *, wait: bool) -> list[float] | None:
        """The numbers, None while they are under way."""
        if not self._event.query():
            if not wait:
                return None
            self._event.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers


@dataclass(slots=True)
class Block:
    """Slots that travel together, and the copy that is under way."""

    slots: list[Slot] = field(default_factory=list)
    sent: list[tuple[Slot, Part | None]] = field(default_factory=list)
    """What the copy holds, in order: the kept scalars of a slot (None), or one of its parts."""
    stage: str = "open"
    """"open", "first" (scalars under way), "second" (the details of odd steps under way)."""
    cargo: Cargo | None = None
    """The copy that is under way."""
    numbers: list[float] = field(default_factory=list)
    """What has arrived."""


class Transfer:
    """Hands out slots and gives them back, in order, once their numbers have arrived."""

    def __init__(self, device: torch.device, tensors: int) -> None:
        self._device = device
        self._most = max(1, min(BLOCK, KEPT // max(1, tensors)))
        self.size = 1
        self.hurry = 0
        """How many more looks shall not wait for a block to be full: something is known to be wrong."""
        self._queue: deque[Block] = deque()
        self._idle: list[Cargo] = []

    def pace(self, seconds: float) -> None:
        """Let as many steps travel together as pass within the latency."""
        if seconds > 0:
            self.size = max(1, min(self._most, int(LATENCY / seconds)))

    def open(self, kind: str, number: int) -> Slot:
        """A slot for one step or one validation."""
        block = self._queue[-1] if self._queue else None
        if block is None or block.stage != "open" or len(block.slots) >= self.size:
            block = Block()
            self._queue.append(block)
        slot = Slot(number, kind)
        block.slots.append(slot)
        return slot

    @property
    def under_way(self) -> bool:
        """Whether a block has been sent and not read."""
        return bool(self._queue) and self._queue[0].stage != "open"

    def is_due(self) -> bool:
        """Whether a look is worth its while: a block is under way, or as full as it gets."""
        queue = self._queue
        return len(queue) > 1 or self.hurry > 0 or (len(queue) == 1 and queue[0].stage != "open")

    def arrived(self, odd: Any, *, wait: bool = False) -> Iterator[Slot]:
        """The slots whose numbers have reached the host, oldest first; with `wait`, all that are finished.

        `odd(slot)` is asked of each, in order, once its scalars are there: whether its details are wanted too.
        """
        early = wait or self.hurry > 0
        self.hurry = max(0, self.hurry - 1)
        while self._queue:
            block = self._queue[0]
            if block.stage == "open" and not self._send_first(block, early=early):
                return
            if not self._landed(block, wait=wait):
                return
            if block.stage == "first":
                wanted = [slot for slot in block.slots if odd(slot) and not slot.detailed and slot.parts]
                if wanted:
                    block.stage = "second"
                    self._send(block, [(slot, part) for slot in wanted for part in slot.parts])
                    continue
            self._queue.popleft()
            yield from block.slots

    def _send_first(self, block: Block, *, early: bool) -> bool:
        slots = block.slots
        done = 0
        for slot in slots:
            if not slot.finished:
                break
            done += 1
        if done < len(slots):
            if not early or not done:
                return False
            rest = Block(slots[done:])  # somebody wants to know now: the steps still going on stay behind
            del slots[done:]
            self._queue.insert(1, rest)
        elif len(slots) < self.size and not early and len(self._queue) == 1:
            return False
        sent: list[tuple[Slot, Part | None]] = []
        for slot in slots:
            if slot.kept:
                sent.append((slot, None))
            if slot.detailed:
                sent.extend((slot, part) for part in slot.parts)
        block.stage = "first"
        self._send(block, sent)
        return True

    def _send(self, block: Block, sent: list[tuple[Slot, Part | None]]) -> None:
        block.sent = sent
        scalars: list[Tensor] = []
        for slot, part in sent:
            if part is None:
                scalars.extend([item[1] for item in slot.kept])
            else:
                scalars.extend(part.norms.unbind() if isinstance(part.norms, Tensor) else part.norms)
        if not scalars or (self._device.type == "cpu" and len(scalars) < 8):
            block.numbers = [item.item() for item in scalars]
            return
        if self._device.type != "cuda":
            block.numbers = _stacked(scalars).tolist()  # no events here: one wait for every few steps
            return
        with torch.no_grad():
            block.cargo = self._cargo(len(scalars))
            block.cargo.load(scalars)

    def _cargo(self, size: int) -> Cargo:
        for position, cargo in enumerate(self._idle):
            if len(cargo) >= size:
                return self._idle.pop(position)
        return Cargo(max(64, 1 << (size - 1).bit_length()), self._device)

    def _landed(self, block: Block, *, wait: bool) -> bool:
        """Whether the copy has arrived; then its numbers go where they belong."""
        if block.cargo is not None:
            numbers = block.cargo.unload(wait=wait)
            if numbers is None:
                return False
            block.numbers = numbers
            self._idle.append(block.cargo)
            block.cargo = None
        numbers, position = block.numbers, 0
        for slot, part in block.sent:
            if part is not None:
                end = position + len(part.norms)
                part.values = np.array(numbers[position:end])
                position = end
                continue
            slot.values = {}
            for key, scalar, version in slot.kept:
                # A scalar that its owner has written to since is not what was logged: better none.
                if scalar._version == version:
                    slot.values.setdefault(key, []).append(numbers[position])
                position += 1
            slot.kept = []
        block.sent = []
        return True


def _stacked(scalars: list[Tensor]) -> Tensor:
    """Scalars of any type and device in one vector."""
    first = scalars[0]
    if all(item.dtype == first.dtype and item.device == first.device for item in scalars):
        return torch.stack(scalars)
    return torch.stack([item.to("cpu", torch.float32) for item in scalars])
