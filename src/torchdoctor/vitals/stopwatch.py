"""How long steps take: from the end of one to the end of the next, validations and pauses left out."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence

from torchdoctor.series import median
from torchdoctor.vitals.ledger import Ledger
from torchdoctor.vitals.sampling import Sampling
from torchdoctor.vitals.slot import Slot

PACED_EVERY = 32
"""Steps between two looks at how many of them may travel together."""


class Stopwatch:
    """Times steps, and sets the transfer's pace and the budget of close looks by them."""

    def __init__(self, ledger: Ledger, sampling: Sampling) -> None:
        self._ledger, self._sampling = ledger, sampling
        self._stepped_at = 0.0
        self.interrupted = True
        """Whether more than a step lies between the last one's end and the next one's."""
        self._usual: deque[float] = deque(maxlen=8)
        """The seconds of the last few steps that were not looked at closely."""

    def enter(self, slot: Slot, now: float) -> None:
        """A step has ended."""
        if not self.interrupted:
            slot.facts["seconds"] = seconds = self.seconds(slot.number, [now])[0]
            if not slot.sampled:
                self._usual.append(seconds)
        self._stepped_at, self.interrupted = now, False

    def excess(self, slot: Slot) -> float | None:
        """How many seconds more than others a step took that has just ended; None where that is not known."""
        if "seconds" not in slot.facts or len(self._usual) < 4:
            return None
        return max(0.0, float(slot.facts["seconds"]) - median(self._usual))

    def seconds(self, number: int, ends: Sequence[float]) -> list[float]:
        """The seconds of some steps, the first of which has this number, by the times at which they ended."""
        seconds = list(map(operator.sub, ends, (self._stepped_at, *ends)))
        self._stepped_at, sampling = ends[-1], self._sampling
        sampling.watched += sum(seconds)
        if len(seconds) > 1:  # ordinary ones
            self._usual.extend(seconds[-8:])
        place = (5 - number) % PACED_EVERY
        if place < len(seconds):
            self._ledger.transfer.pace(min(seconds[place], sampling.watched / (number + len(seconds) - 1)))
        return seconds
