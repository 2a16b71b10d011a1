"""Step times: from the end of one step to the end of the next, without validations and pauses."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence

from torchdoctor.series import median
from torchdoctor.vitals.ledger import Ledger
from torchdoctor.vitals.sampling import Sampling
from torchdoctor.vitals.slot import Slot

PACED_EVERY = 32
"""Steps between two updates of how many steps travel together."""


class Stopwatch:
    """Times steps, and uses the times to set the transfer's pace and the budget of close looks."""

    def __init__(self, ledger: Ledger, sampling: Sampling) -> None:
        self._ledger, self._sampling = ledger, sampling
        self._stepped_at = 0.0
        self.interrupted = True
        """Whether more than one step lies between the last end and the next one."""
        self._usual: deque[float] = deque(maxlen=8)
        """Seconds of the last few steps that were not looked at closely."""

    def enter(self, slot: Slot, now: float) -> None:
        """A step has ended."""
        if not self.interrupted:
            slot.facts["seconds"] = seconds = self.seconds(slot.number, [now])[0]
            if not slot.sampled:
                self._usual.append(seconds)
        self._stepped_at, self.interrupted = now, False

    def excess(self, slot: Slot) -> float | None:
        """How many seconds longer than usual the step took that has just ended; None if unknown."""
        if "seconds" not in slot.facts or len(self._usual) < 4:
            return None
        return max(0.0, float(slot.facts["seconds"]) - median(self._usual))

    def seconds(self, number: int, ends: Sequence[float]) -> list[float]:
        """The seconds of some steps from their end times; the first step has this number."""
        seconds = list(map(operator.sub, ends, (self._stepped_at, *ends)))
        self._stepped_at, sampling = ends[-1], self._sampling
        sampling.watched += sum(seconds)
        if len(seconds) > 1:  # ordinary steps
            self._usual.extend(seconds[-8:])
        place = (5 - number) % PACED_EVERY
        if place < len(seconds):
            self._ledger.transfer.pace(min(seconds[place], sampling.watched / (number + len(seconds) - 1)))
        return seconds
