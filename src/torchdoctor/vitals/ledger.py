"""The ledger: assigns readings to slots, and makes records of a slot when its numbers have arrived.

Two slots are open at a time: that of the step just taken, because a loss may be logged late, and that of the upcoming
step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from torchdoctor.records import Record
from torchdoctor.stretch import Rows
from torchdoctor.vitals.clock import Clock
from torchdoctor.vitals.readings import Decoder
from torchdoctor.vitals.slot import Bunch, Slot
from torchdoctor.vitals.transfer import Transfer, stacked

Note = Callable[[str, str], None]
Told = Callable[[int], bool]

PATIENCE, TIMES = 40, 4
"""Losses without a step that are worth a fact: this many, plus this multiple of the most that one step has had."""
STRANDED, BROKEN = 20, 3
"""Losses without a step that are worth a note, instead of PATIENCE; and non-finite ones that are reported at once."""
LATE = 4
"""Multiple of the most losses that one step has had above which the next step is late."""
MOST_KEPT = 4096
"""Maximum number of device losses that a step keeps: if there are more, the first ones make its mean."""
ROOT = "loss"
"""The name of a loss that was taken where backward began."""
COPIED_FIRST = 3
"""Losses of a name that are copied before each is trusted to have memory of its own."""


class Ledger:
    """Slots by step, for `optimizers` optimizers and `tensors` tensors."""

    def __init__(self, optimizers: int, device: torch.device, tensors: int, note: Note, unstepped: Told) -> None:
        self.clock = Clock(range(optimizers))
        self._single = optimizers == 1
        self.last: Slot | None = None
        """The step just taken."""
        self.upcoming: Slot | None = None
        """The upcoming step, once something is known of it."""
        self._note = note
        self._unstepped = unstepped
        """Called with the number of losses since the last step if they are too many, and with 0 at the next step;
        returns whether they count."""
        self._seen: dict[str, tuple[int, Tensor | None]] = {}
        """By name: number of losses with memory of their own, and the latest; -1 if they share it (a CUDA graph)."""
        self._numbers: set[str] = set()
        """Names of losses that were logged as numbers."""
        self._since = self._most = 0
        """Losses with a graph since the last step, and the most that one step has had."""
        self.stray: Callable[[], None] = lambda: None
        """Called when several losses are not finite and no step comes, once after each step."""
        self._strayed_at = -1
        self._labelled: dict[str, int] = {}
        """By kind, the label of the latest step that was read."""
        self.lay_out(device, tensors)

    def follow(self, optimizers: int) -> None:
        """Count on with this many optimizers."""
        self.clock.follow(range(optimizers))
        self._single = optimizers == 1

    def lay_out(self, device: torch.device, tensors: int) -> None:
        """Start over with other columns; earlier measurements must have been drained."""
        pending, self.upcoming, self.last = self.upcoming, None, None
        self.transfer = Transfer(device, tensors)
        self._decoder = Decoder(tensors, self._note)
        if pending is not None and (pending.cells or pending.kept or pending.nonfinite):
            _hand_over(pending, self.next)

    @property
    def next(self) -> Slot:
        """The slot of the upcoming step."""
        slot = self.upcoming
        if slot is None:
            slot = self.upcoming = self.transfer.open("vitals", self.clock.count)
        return slot

    def slot_for(self, optimizer: int) -> Slot:
        """The slot of this optimizer's next step: a second optimizer in the same step shares the first one's."""
        if self._single:
            return self.upcoming or self.next
        last = self.last
        if last is not None and not last.finished and last.number == self.clock.number_of_next(optimizer):
            return last
        return self.next

    def put_loss(self, name: str, value: Tensor | float, graph: Tensor | None, keep_first: bool = False) -> int:
        """Enter a loss at its step; returns that step's number."""
        late = False
        if self.clock.belongs_to_next(name, graph):
            slot = self.next
        elif self.last is not None and not self.last.finished:
            slot = self.last
        else:  # the step's record has already been read: this one follows it
            slot, late = self.transfer.open("vitals", self.clock.count - 1), True
        if not (keep_first and slot.has(name)):
            self._put(slot, name, value)
        slot.finished = slot.finished or late
        if graph is not None and graph.requires_grad:  # without a graph, it may be a validation loss
            self.count(1)
        return slot.number

    def put_root(self, value: Tensor | float) -> bool:
        """Enter the loss that backward began from, right before its step; False if it takes the place of another."""
        slot = self.next
        is_new = not slot.drop(ROOT)
        if isinstance(value, Tensor):
            slot.keep(ROOT, value)
        else:
            slot.add(ROOT, value)
            self.transfer.hurry = self.transfer.hurry if math.isfinite(value) else 3
        return is_new

    def hand_back(self, taken: int) -> None:
        """Drop what was taken of steps that are still open, and let the loss begin anew if others have been read."""
        last = None if self.last is None or self.last.finished else self.last
        taken -= sum(slot.drop(ROOT) for slot in (last, self.upcoming) if slot is not None)
        if taken > 0:
            (last or self.next).facts["anew"] = True

    def count(self, losses: int) -> None:
        """Count losses with a graph: too many without a step are reported."""
        limit, before = PATIENCE + TIMES * self._most, self._since
        self._since += losses
        if before < limit <= self._since and self.clock.count > 0 and not self._unstepped(self._since):
            self._since = 0

    @property
    def usual(self) -> int:
        """The most losses with a graph that one step has had."""
        return self._most

    @property
    def is_late(self) -> bool:
        """Whether more losses were logged since the last step than before any other."""
        return self._since > LATE * max(self._most, 1 if self.clock.count else LATE)

    def stranded(self) -> int:
        """How many losses were logged since the last step, if that is many more than any step has had; else 0.

        Also 0 if so many that it was reported.
        """
        losses = max(self._since, _losses_in(self.upcoming, self.is_loss))
        usual = max(self._most, _losses_in(self.last, self.is_loss))
        reported = self.clock.count > 0 and self._since >= PATIENCE + TIMES * self._most
        return losses if losses >= STRANDED + TIMES * usual and not reported else 0

    def strays(self) -> list[Record]:
        """Take the losses that are not finite out of the upcoming step; earlier measurements must have been drained.

        A few of them may be batches that the loop passes over, and are marked as such.
        """
        slot = self.upcoming
        if slot is None:
            return []
        found, slot.nonfinite = slot.nonfinite or {}, None
        losses = [item for item in slot.kept if self.is_loss(item[0]) and item[1]._version == item[2]]
        numbers = stacked([item[1] for item in losses]).tolist() if losses else []
        odd = {id(item): number for item, number in zip(losses, numbers, strict=True) if not math.isfinite(number)}
        for item in losses:
            if id(item) in odd:
                found.setdefault(item[0], []).append(odd[id(item)])
        slot.kept = [item for item in slot.kept if id(item) not in odd]
        if not found:
            return []
        vitals = {name: sum(values) for name, values in found.items()}
        if max(map(len, found.values())) < BROKEN:
            vitals["passed_over"] = float(len(vitals))
        return [{"type": "vitals", "step": self._label(slot), "vitals": vitals}]

    def _stray(self, slot: Slot) -> None:
        several = max(map(len, (slot.nonfinite or {}).values()), default=0) >= BROKEN
        if several and self._strayed_at != self.clock.count:
            self._strayed_at = self.clock.count
            self.stray()

    def _has_stepped(self) -> None:
        overdue, self._since = self._since >= PATIENCE + TIMES * self._most, 0
        if overdue:
            self._unstepped(0)

    def owned(self) -> dict[str, Tensor | None] | None:
        """The names of losses with the latest of each, if all are known to have memory of their own."""
        if any(count < COPIED_FIRST for count, _ in self._seen.values()):
            return None
        return {name: None for name in self._numbers} | {name: value for name, (_, value) in self._seen.items()}

    def has_losses(self) -> bool:
        """Whether any loss was ever logged."""
        return bool(self._seen or self._numbers)

    def is_further(self, name: str) -> bool:
        """Whether losses of other names were logged before the first one of this name."""
        return self.has_losses() and not (name in self._seen or name in self._numbers)

    def is_loss(self, name: str) -> bool:
        """Whether a vital is a loss: NaN in a gauge's number only means that it does not apply."""
        return name in self._seen or name in self._numbers or name == ROOT

    def put_validation(self, values: Mapping[str, Tensor | float]) -> None:
        """Enter a validation at the step just taken."""
        slot = self.transfer.open("validation", max(self.clock.count - 1, 0))
        for name, value in values.items():
            self._put(slot, name, value)
        slot.finished = True

    def advance(self, optimizer: int, slot: Slot) -> bool:
        """A step is over; True if it was a new one, False if it was another optimizer's part of the last one."""
        self.clock.stepped(optimizer)
        if slot is self.upcoming:
            if self.last is not None:
                self.last.finished = True
            self.last, self.upcoming = slot, None
            since = self._since
            self._has_stepped()
            self._most = max(self._most, since)
            return True
        if self.upcoming is not None:
            _hand_over(self.upcoming, slot)
        self._has_stepped()  # if optimizers take turns, one catches up with the other's count
        return False

    def enter(self, bunch: Bunch) -> None:
        """Ordinary steps of a single optimizer are over; the next step gets a new slot."""
        if self.last is not None:
            self.last.finished = True
            self.last = None
        self._has_stepped()
        self.clock.passed(0, len(bunch))
        self.transfer.add(bunch)

    def arrived(self, rows: Rows, *, wait: bool) -> Iterator[tuple[Slot, Iterator[Record]]]:
        """The slots whose numbers have arrived, with their records; with `wait`, everything that was measured.

        Bunched steps go into `rows` at once.
        """
        if wait and self.last is not None:
            self.last.finished = True
        decoder = self._decoder
        for slot in self.transfer.arrived(decoder.is_odd, wait=wait):
            label = self._label(slot)
            if isinstance(slot, Slot):
                yield slot, decoder.decode(slot, label, self.is_loss)
                continue
            columns = decoder.columns(slot)
            if columns is not None:
                rows.extend(label, columns)
                continue
            for single in slot.slots(calm=True):
                rows.add(decoder.decode(single, label + single.number - slot.number, self.is_loss))

    def _label(self, slot: Slot | Bunch) -> int:
        """The label of a slot's first step, never below that of the previous slot of its kind."""
        kind = slot.kind if isinstance(slot, Slot) else "vitals"
        label = max(self.clock.label(slot.number), self._labelled.get(kind, 0))
        self._labelled[kind] = label + len(slot) - 1
        self.clock.forget(slot.number - 1)
        return label

    def _put(self, slot: Slot, name: str, value: Tensor | float) -> None:
        if isinstance(value, float):
            self._numbers.add(name)
            slot.add(name, value)
            if not math.isfinite(value):
                self.transfer.hurry = 3
                if slot is self.upcoming and self._since >= STRANDED + TIMES * self._most:
                    self._stray(slot)
            return
        if len(slot.kept) >= MOST_KEPT:
            return
        count, previous = self._seen.get(name, (0, None))
        if count >= 0 and previous is not None:
            # While the previous loss is alive, its memory cannot be reused. If this loss is at the same address, every
            # loss is written to the same place, and a reference would soon show another step's value.
            count = -1 if _place_of(previous) in (value.data_ptr(), None) else count + 1
        self._seen[name] = count, value if count >= 0 else None
        slot.keep(name, value, copy=count < COPIED_FIRST)


def _losses_in(slot: Slot | None, is_loss: Callable[[str], bool]) -> int:
    """The most losses of one name in a step."""
    if slot is None:
        return 0
    names = Counter(item[0] for item in slot.kept if is_loss(item[0]))
    names.update({name: count for name, (_, count) in slot.cells.items()})
    names.update({name: len(values) for name, values in (slot.nonfinite or {}).items()})
    return max(names.values(), default=0)


def _place_of(scalar: Tensor) -> int | None:
    """A scalar's address; None if a compiled CUDA graph has taken back its memory."""
    try:
        return scalar.data_ptr()
    except RuntimeError:
        return None


def _hand_over(source: Slot, target: Slot) -> None:
    """Move losses that waited for a step that turned out to be part of the one already open."""
    for name, (total, count) in source.cells.items():
        mine = target.cells.get(name, (0.0, 0))
        target.cells[name] = mine[0] + total, mine[1] + count
    for name, values in (source.nonfinite or {}).items():
        for value in values:
            target.add(name, value)
    target.kept += source.kept
    source.cells, source.kept, source.nonfinite = {}, [], None
