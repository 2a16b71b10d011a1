"""From the device to the host without waiting.

Readings are written into rows of a small device buffer. A few rows make a block; when its steps are over, the block
is copied to pinned memory in one asynchronous copy, and it is read when the event behind that copy has passed. On the
CPU a block is one row and is read at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Row = NDArray[np.float32]

FOUND_INF, LOSS_SCALE, TOTAL_NORM, RATE, BAD_BATCH, NAMED = range(6)
"""The fixed columns; from NAMED on come the named scalars, then the per-tensor norms."""
NAMED_CELLS = 11
HEAD = NAMED + NAMED_CELLS


@dataclass(slots=True)
class Cell:
    """A named scalar: the mean of `count` values, some added up on the device (at `column`), some on the host."""

    column: int | None = None
    count: int = 0
    total: float = 0.0


@dataclass(slots=True)
class Slot:
    """What is being measured of one step, or of one validation."""

    number: int
    kind: str
    row: Tensor
    first: Tensor
    """The row's first named cell, which nearly every step writes: a view made once."""
    block: Block
    cells: dict[str, Cell] = field(default_factory=dict)
    parts: list[tuple[str, int, NDArray[np.intp]]] = field(default_factory=list)
    """(vital, first column, tensor indices): where the per-tensor values of this row are."""
    used: int = HEAD
    facts: dict[str, Any] = field(default_factory=dict)
    """What the host knows by itself: learning rate, step time, clip threshold."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further records that belong to this step: changed groups, new context."""
    finished: bool = False
    read: bool = False

    def take(self, width: int) -> Tensor | None:
        """The next `width` free columns, None when the row is full."""
        if self.used + width > self.row.shape[0]:
            return None
        self.used += width
        return self.row.narrow(0, self.used - width, width)


class Block:
    """Some rows on the device and their copy on the host."""

    __slots__ = ("event", "firsts", "host", "launched", "rows", "slots", "views")

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.rows = torch.zeros(rows, width, dtype=torch.float32, device=device)
        self.host = torch.zeros(rows, width, dtype=torch.float32, pin_memory=True) if cuda else self.rows
        self.event: Any = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
        self.views = self.rows.unbind()  # made once: indexing a tensor costs as much as launching a kernel
        self.firsts = self.rows[:, NAMED].unbind()
        self.slots: list[Slot] = []
        self.launched = False


class Transfer:
    """Hands out slots and gives them back, in order, once their numbers have arrived."""

    def __init__(self, device: torch.device, tensors: int) -> None:
        self._device = device
        # twice the gradients (raw and applied), the weights and the updates
        self._width = HEAD + 4 * tensors
        self._rows = 1 if device.type == "cpu" else 4
        self._queue: deque[Block] = deque()
        self._spare: list[Block] = []

    def open(self, kind: str, number: int) -> Slot:
        """A slot for one step or one validation."""
        block = self._queue[-1] if self._queue else None
        if block is None or block.launched or len(block.slots) == self._rows:
            block = self._spare.pop() if self._spare else Block(self._rows, self._width, self._device)
            self._queue.append(block)
        position = len(block.slots)
        slot = Slot(number, kind, block.views[position], block.firsts[position], block)
        block.slots.append(slot)
        return slot

    def finish(self, slot: Slot) -> None:
        """Nothing more will be written to this slot."""
        slot.finished = True
        block = slot.block
        if len(block.slots) < self._rows or block.launched:
            return
        for item in block.slots:
            if not item.finished:
                return
        self._launch(block)

    def _launch(self, block: Block) -> None:
        block.launched = True
        if block.event is not None:
            block.host.copy_(block.rows, non_blocking=True)
            block.event.record()
        elif self._device.type != "cpu":
            block.host = block.rows.cpu()  # no events here: one wait for every few steps

    def arrived(self, *, wait: bool = False) -> Iterator[tuple[Slot, Row]]:
        """The slots whose numbers have reached the host, oldest first; with `wait`, all that are finished."""
        while self._queue:
            block = self._queue[0]
            if not block.launched:
                if wait:
                    yield from self._read_early(block)
                if not wait or not block.slots or not all(slot.finished for slot in block.slots):
                    return
                self._launch(block)
            if block.event is not None and not block.event.query():
                if not wait:
                    return
                block.event.synchronize()
            self._queue.popleft()
            rows = block.host.numpy()
            for slot, row in zip(block.slots, rows, strict=False):
                if not slot.read:
                    yield slot, row
            block.slots.clear()
            block.launched = False
            self._spare.append(block)

    @staticmethod
    def _read_early(block: Block) -> Iterator[tuple[Slot, Row]]:
        """The finished slots of a block whose last step is still going on: this waits for the device."""
        rows = block.rows.cpu().numpy()
        for slot, row in zip(block.slots, rows, strict=False):
            if not slot.finished:
                return
            if not slot.read:
                slot.read = True
                yield slot, row
