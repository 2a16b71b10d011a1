"""The monitor's side of the fast path: under which terms steps may take it, and how they are recorded afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchdoctor.vitals.captures import Captures
from torchdoctor.vitals.gradients import Capture, Order
from torchdoctor.vitals.groups import GroupGauge
from torchdoctor.vitals.layout import Layout
from torchdoctor.vitals.ledger import Ledger
from torchdoctor.vitals.looks import CloseLooks
from torchdoctor.vitals.slot import Bunch, Loss, Raw
from torchdoctor.vitals.stopwatch import Stopwatch

Begun = tuple[Tensor | None, Tensor | None, tuple[Tensor, Tensor] | None, tuple[int, int], float | None, list[Loss]]
"""A step in progress: total norm, norms by tensor, first and last gradient and their versions, clip, losses."""

Terms = tuple[Order, bool, tuple[int, int, int], int, int | None, dict[str, Tensor | None], bool, bool]
"""Terms for the fast path: the gradients in order, whether they are clipped, the shape of the parameter groups, how
many steps may pass before they are recorded, what the next step is called (None: it does not matter), the losses by
name, whether the device is a CUDA device, and whether numbers are under way."""


class Bunching:
    """Enters ordinary steps of a single optimizer into the ledger, many at a time."""

    def __init__(
        self, ledger: Ledger, captures: Captures, looks: CloseLooks, groups: GroupGauge, stopwatch: Stopwatch
    ) -> None:
        self._ledger, self._captures, self._looks = ledger, captures, looks
        self._groups, self._stopwatch = groups, stopwatch

    def terms(self, layout: Layout) -> Terms | None:
        """The terms under which the next steps may take the fast path; None if they may not."""
        ledger, captures = self._ledger, self._captures
        clock, transfer, last = ledger.clock, ledger.transfer, ledger.last
        if last is None or captures.pending or self._looks.armed == clock.count or transfer.hurry:
            return None
        clips = bool(last.facts.get("captured"))
        order = captures.order(clips=clips)
        previous = ledger.owned()
        room = min(transfer.room(clock.count), self._looks.sampling.next - clock.count)
        if order is None or previous is None or room < 2 or clips == ("own" in last.facts):
            return None
        label = clock.label(clock.count) if clock.follows else None
        return order, clips, layout.shapes[0], room, label, previous, layout.is_cuda, transfer.under_way

    def absorb(self, steps: Sequence[Raw], order: Order, mark: int, *, clips: bool) -> None:
        """Record finished ordinary steps, oldest first; `mark` is autograd's node counter after the last of them."""
        ledger, stopwatch = self._ledger, self._stopwatch
        before = steps[:-1]
        if before and ledger.upcoming is None and not stopwatch.interrupted and Bunch.are_alike(before):
            number = ledger.clock.count
            seconds = stopwatch.seconds(number, [step[5] for step in before])
            ledger.enter(Bunch(number, before, seconds, order.indices, clips))
            steps = steps[-1:]
        for total, version, norms, clip, rates, now, losses in steps:
            slot = ledger.next
            slot.enter_losses(losses)
            slot.enter_norms((total, version), norms, clip, order.indices, clips=clips)
            stopwatch.enter(slot, now)
            self._groups.enter_rates(0, slot, rates)
            ledger.advance(0, slot)
        ledger.clock.mark = mark

    def resume(self, begun: Begun, order: Order | None) -> None:
        """Continue a step that began on the fast path on the normal path."""
        total, norms, ends, versions, clip, losses = begun
        if total is None and not losses:
            return
        slot = self._ledger.next
        slot.enter_losses(losses)
        self._ledger.count(len(losses))
        if total is not None and norms is not None and ends is not None and order is not None:
            slot.enter_norms((total, total._version), norms, clip, order.indices, clips=True)
            self._captures.pending.append(Capture(slot, *ends, versions, order.complete))
