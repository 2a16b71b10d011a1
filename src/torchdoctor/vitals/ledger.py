"""The ledger: which slot a reading goes into, and what comes out of it when the slot's numbers have arrived.

Two slots are open at a time: that of the step just taken, because a loss may be logged late, and that of the step
which is being prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from torchdoctor.records import Record
from torchdoctor.vitals.clock import Clock
from torchdoctor.vitals.readings import Decoder
from torchdoctor.vitals.transfer import NAMED, NAMED_CELLS, Cell, Slot, Transfer

Note = Callable[[str, str], None]


class Ledger:
    """Slots by step, for `optimizers` optimizers and `tensors` tensors."""

    def __init__(self, optimizers: int, device: torch.device, tensors: int, note: Note) -> None:
        self.clock = Clock(range(optimizers))
        self.last: Slot | None = None
        """The step just taken."""
        self._next: Slot | None = None
        self._note = note
        self.lay_out(device, tensors)

    def lay_out(self, device: torch.device, tensors: int) -> None:
        """Begin anew with other columns; what was measured before must have been drained."""
        pending, self._next, self.last = self._next, None, None
        self._transfer = Transfer(device, tensors)
        self._decoder = Decoder(tensors, self._note)
        if pending is not None and pending.cells:
            self._hand_over(pending, self.next)

    @property
    def next(self) -> Slot:
        """The slot of the step that comes."""
        if self._next is None:
            self._next = self._transfer.open("vitals", self.clock.count)
        return self._next

    def slot_for(self, optimizer: int) -> Slot:
        """The slot of this optimizer's next step: a second optimizer of the same step shares the first one's."""
        if (
            self.last is not None
            and not self.last.finished
            and self.last.number == self.clock.number_of_next(optimizer)
        ):
            return self.last
        return self.next

    def put_loss(self, name: str, value: Tensor | float, graph: Tensor | None, *, keep_first: bool) -> int:
        """Enter a loss where it belongs; returns its step's number."""
        late = False
        if self.clock.belongs_to_next(name, graph):
            slot = self.next
        elif self.last is not None and not self.last.finished:
            slot = self.last
        else:  # the step's record has already been read: this one follows it
            slot, late = self._transfer.open("vitals", self.clock.count - 1), True
        if not (keep_first and name in slot.cells):
            self._put(slot, name, value)
        if late:
            self._transfer.finish(slot)
        return slot.number

    def put_validation(self, values: Mapping[str, Tensor | float]) -> None:
        """Enter a validation at the step just taken."""
        slot = self._transfer.open("validation", max(self.clock.count - 1, 0))
        for name, value in values.items():
            self._put(slot, name, value)
        self._transfer.finish(slot)

    def advance(self, optimizer: int, slot: Slot) -> bool:
        """A step is over; True if it was a new one, False if it was another optimizer's part of the last."""
        self.clock.stepped(optimizer)
        if slot is self._next:
            if self.last is not None and not self.last.finished:
                self._transfer.finish(self.last)
            self.last, self._next = slot, None
            return True
        if self._next is not None:
            self._hand_over(self._next, slot)
        return False

    def arrived(self, every: int, *, wait: bool) -> Iterator[tuple[Slot, Iterator[Record]]]:
        """The slots whose numbers have arrived, with their records; with `wait`, all that was measured."""
        if wait and self.last is not None and not self.last.finished:
            self._transfer.finish(self.last)
        for slot, row in self._transfer.arrived(wait=wait):
            yield slot, self._decoder.decode(slot, row, self.clock.label(slot.number), every)

    def _hand_over(self, source: Slot, target: Slot) -> None:
        """Losses that were waiting for a step which turned out to be part of the one already open."""
        for name, cell in source.cells.items():
            mine = target.cells.setdefault(name, Cell())
            mine.total += cell.total
            if cell.column is not None:
                self._put_device(target, mine, source.row[cell.column])
                mine.count -= 1
            mine.count += cell.count
        source.cells.clear()

    def _put(self, slot: Slot, name: str, value: Tensor | float) -> None:
        cell = slot.cells.get(name)
        if cell is None:
            if len(slot.cells) >= NAMED_CELLS:
                self._note("names", f"more than {NAMED_CELLS} named values in one step: {name!r} was left out.")
                return
            cell = slot.cells[name] = Cell()
        if isinstance(value, float):
            cell.total += value
            cell.count += 1
        else:
            self._put_device(slot, cell, value)

    @staticmethod
    def _put_device(slot: Slot, cell: Cell, value: Tensor) -> None:
        fresh = cell.column is None
        if fresh:
            cell.column = NAMED + sum(item.column is not None for item in slot.cells.values())
        place = slot.first if cell.column == NAMED else slot.row[cell.column]
        if fresh:
            place.copy_(value)
        else:
            place.add_(value)
        cell.count += 1
