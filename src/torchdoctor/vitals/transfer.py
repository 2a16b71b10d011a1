"""Transfers numbers from the device to the host without waiting and almost without launches.

Readings are device scalars that exist anyway (a loss, the norms that clipping computed), and a slot keeps references to
them. A block of slots is gathered with one launch, copied to pinned memory asynchronously, and read when the event
behind the copy has completed. So a step costs no kernel of ours: one launch serves up to `BLOCK` steps. Judging them
together costs a third of judging each separately, when the caches are full of the loop's own work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdoctor.vitals.slot import Bunch as Bunch
from torchdoctor.vitals.slot import Indices as Indices
from torchdoctor.vitals.slot import Part as Part
from torchdoctor.vitals.slot import Slot as Slot
from torchdoctor.vitals.slot import Vector as Vector

BLOCK = 64
"""Maximum number of steps that travel together."""
LATENCY, PROMPT = 0.65, 0.1
"""Seconds that a reading may wait for its block, on a device and on the host: slow steps travel alone."""
KEPT = 4096
"""Device scalars that a block may keep alive: each takes 512 bytes of device memory."""
VALUES = 1 << 20
"""Norms by tensor that the ordinary steps of a block may keep alive, one vector per step."""


class Cargo:
    """Reusable memory for scalars, on the device and pinned on the host.

    One multi-tensor copy fills it: stacking the scalars would first make a view of each.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = torch.empty(size, dtype=torch.float32, device=device)
        self._host = torch.empty(size, dtype=torch.float32, device="cpu", pin_memory=True)
        self._places = list(self._device.unbind())
        self._numbers = self._host.numpy()
        self._count = 0
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self._places)

    def load(self, scalars: list[Tensor]) -> None:
        """Send these scalars."""
        self._count = len(scalars)
        torch._foreach_copy_(self._places[: self._count], scalars)
        self._host.copy_(self._device, non_blocking=True)
        self._event.record()

    def has_landed(self) -> bool:
        """Whether the numbers have arrived."""
        return bool(self._event.query())

    def unload(self, *, wait: bool) -> list[float] | None:
        """The numbers; None while they are under way."""
        if not self._event.query():
            if not wait:
                return None
            self._event.synchronize()
        numbers: list[float] = self._numbers[: self._count].tolist()
        return numbers


@dataclass(slots=True)
class Block:
    """Slots that travel together, and the copy that is under way."""

    slots: list[Slot | Bunch] = field(default_factory=list)
    sent: list[tuple[Slot | Bunch, Part | None]] = field(default_factory=list)
    """The contents of the copy, in order: the scalars of a slot or bunch (None), or one of a slot's parts."""
    stage: str = "open"
    """"open", "first" (scalars under way) or "second" (details of odd steps under way)."""
    cargo: Cargo | None = None
    """The copy that is under way."""
    numbers: list[float] = field(default_factory=list)
    """The numbers that have arrived."""
    opened: int = 0
    """Slots that were opened one by one: their norms may be one scalar each."""

    def __len__(self) -> int:
        return sum(map(len, self.slots))


class Transfer:
    """Hands out slots and returns them in order once their numbers have arrived."""

    def __init__(self, device: torch.device, tensors: int) -> None:
        self._device = device
        self._latency = PROMPT if device.type == "cpu" else LATENCY
        self._most = max(1, min(BLOCK, VALUES // max(1, tensors)))
        self._most_opened = max(1, KEPT // max(1, tensors))
        self.size = 1
        self.hurry = 0
        """How many more looks do not wait for a full block, because something is known to be wrong."""
        self._queue: deque[Block] = deque()
        self._idle: list[Cargo] = []

    def pace(self, seconds: float) -> None:
        """Let as many steps travel together as happen within the latency."""
        if seconds > 0:
            self.size = max(1, min(self._most, int(self._latency / seconds)))

    def open(self, kind: str, number: int) -> Slot:
        """Open a slot for one step or one validation."""
        slot = Slot(number, kind)
        block = self._open_block(self._most_opened)
        block.opened += 1
        block.slots.append(slot)
        return slot

    def add(self, bunch: Bunch) -> None:
        """Add finished ordinary steps."""
        while len(bunch):
            block = self._open_block()
            room = self._most_in(block, bunch.number) - len(block)
            block.slots.append(bunch[:room])
            bunch = bunch[room:]

    def _open_block(self, most_opened: int = BLOCK) -> Block:
        block = self._queue[-1] if self._queue else None
        if block is None or block.stage != "open" or self._is_full(block) or block.opened >= most_opened:
            block = Block()
            self._queue.append(block)
        return block

    def _most_in(self, block: Block, number: int = 0) -> int:
        """Maximum number of steps in this block; an empty one begins with this number.

        A full-size block ends at a round step number, where baselines are recomputed: then fewer of its parts must be
        judged separately. Its last step stays behind (see `close`).
        """
        if self.size < BLOCK:
            return self.size
        first = block.slots[0].number if block.slots else number
        return BLOCK + 1 - first % BLOCK

    def _is_full(self, block: Block) -> bool:
        return bool(block.slots) and len(block) >= self._most_in(block)

    @property
    def under_way(self) -> bool:
        """Whether a block has been sent and not read."""
        return bool(self._queue) and self._queue[0].stage != "open"

    def room(self, number: int) -> int:
        """Number of steps that the open block can still take; the next one has this number."""
        block = self._queue[-1] if self._queue else None
        if block is None or block.stage != "open" or self._is_full(block):
            block = Block()
        return self._most_in(block, number) - len(block)

    def close(self) -> None:
        """Send a full block, except the step just taken: its loss may still come, and it would delay the others."""
        block = self._queue[-1] if self._queue else None
        if block is None or block.stage != "open" or self.size < 2 or not self._is_full(block):
            return
        if len(block) > 1 and not block.slots[-1].finished:
            self._queue.append(Block([block.slots.pop()], opened=1))

    def has_landed(self) -> bool:
        """Whether reading now would return any of what is under way."""
        cargo = self._queue[0].cargo if self._queue else None
        return cargo is None or cargo.has_landed()

    def is_due(self) -> bool:
        """Whether a look is worthwhile: a block is full or under way, or there is a hurry."""
        queue = self._queue
        return len(queue) > 1 or self.hurry > 0 or (len(queue) == 1 and queue[0].stage != "open")

    def arrived(self, odd: Any, *, wait: bool = False) -> Iterator[Slot | Bunch]:
        """The slots whose numbers have reached the host, oldest first; with `wait`, all that are finished.

        `odd(slot)` is called for each, in order, once its scalars are there: whether its details are needed too. A
        bunch for which it is true is split into slots.
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
                wanted = self._wanted(block, odd)
                if wanted:
                    block.stage = "second"
                    self._send(block, [(slot, part) for slot in wanted for part in slot.parts])
                    continue
            self._queue.popleft()
            yield from block.slots

    @staticmethod
    def _wanted(block: Block, odd: Any) -> list[Slot]:
        """The slots whose details are needed."""
        slots, wanted = [], []
        for item in block.slots:
            parts = item.slots() if isinstance(item, Bunch) and odd(item) else (item,)
            for slot in parts:
                slots.append(slot)
                if isinstance(slot, Slot) and odd(slot) and not slot.detailed and slot.parts:
                    wanted.append(slot)
        block.slots = slots
        return wanted

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
            rest = Block(slots[done:])  # unfinished steps stay behind
            del slots[done:]
            self._queue.insert(1, rest)
        elif not self._is_full(block) and not early and len(self._queue) == 1:
            return False
        sent: list[tuple[Slot | Bunch, Part | None]] = []
        for slot in slots:
            if isinstance(slot, Bunch) or slot.kept:
                sent.append((slot, None))
            if isinstance(slot, Slot) and slot.detailed:
                sent.extend((slot, part) for part in slot.parts)
        block.stage = "first"
        self._send(block, sent)
        return True

    def _send(self, block: Block, sent: list[tuple[Slot | Bunch, Part | None]]) -> None:
        block.sent = sent
        scalars: list[Tensor] = []
        for slot, part in sent:
            if part is None:
                scalars += slot.scalars()
            else:
                scalars.extend(part.norms.unbind() if isinstance(part.norms, Tensor) else part.norms)
        try:
            self._load(block, scalars)
        except Exception:  # what cannot be sent must not block everything after it
            block.slots, block.sent, block.numbers = [], [], []
            raise

    def _load(self, block: Block, scalars: list[Tensor]) -> None:
        if not scalars or (self._device.type == "cpu" and len(scalars) < 8):
            block.numbers = [item.item() for item in scalars]
            return
        if self._device.type != "cuda":
            block.numbers = stacked(scalars).tolist()  # no events here: one wait for every few steps
            return
        with torch.inference_mode(False), torch.no_grad():  # the memory is also used outside a validation
            cargo = self._cargo(len(scalars))
            cargo.load(scalars)
            block.cargo = cargo

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
            position = slot.receive(numbers, position)
        block.sent = []
        return True


def stacked(scalars: list[Tensor]) -> Tensor:
    """Stack scalars of any type and device into one vector."""
    first = scalars[0]
    if all(item.dtype == first.dtype and item.device == first.device for item in scalars):
        return torch.stack(scalars)
    return torch.stack([item.to("cpu", torch.float32) for item in scalars])
