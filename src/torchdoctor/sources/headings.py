"""What lines say about the lines after them: titles that name a phase, and evaluations that follow an epoch.

>>> phases = Phases()
>>> phases.heading("Epoch 1 Validation metrics:")
>>> phases.named({"accuracy": 0.8}), phases.named({"f1": 0.5}), phases.named({"epoch": 2.0, "loss": 0.5})
({'val/accuracy': 0.8}, {'val/f1': 0.5}, {'epoch': 2.0, 'loss': 0.5})
"""

from __future__ import annotations

import re

from torchdoctor.sources.count_names import TOTAL, counts
from torchdoctor.sources.words import SPLITS, is_measure, taken_apart, words_of

LONGEST = 60
"""Most characters of a title."""
UNDER = 8
"""Most rows that a title may refer to."""
FRAME = "=-#*~"
ENDS = (":", *FRAME)
BAR = "batch"
_FRAMED = re.compile(r"[:\]\s]\s*(([=#*~-])\2+\s*[^=#*~]+?\s*\2\2+)\Z")
"""A title in its frame, after a logger's prefix."""


class Phases:
    """Follows the lines of a log, and adds the phase to names without one."""

    def __init__(self) -> None:
        self._phase = ""
        self._left = 0
        self._seen: set[str] = set()
        self._counted: set[float] = set()
        """The counts in the last row."""
        self._evaluated = False
        """Whether the epoch's validation was logged, so its training is over."""

    def heading(self, text: str) -> None:
        """Take note of a line that may be a title: "Validation:", "=== Test ==="."""
        bare = text.strip() if len(text) < 2 * LONGEST else ""
        framed = _FRAMED.search(bare)
        bare = framed[1] if framed else bare
        if not bare or len(bare) > LONGEST or not bare.endswith(ENDS):
            return
        if bare[-1] != ":" and bare[0] not in FRAME:
            return
        words = words_of(bare)
        if not words:  # a rule between two parts
            return
        found = [SPLITS[word] for word in words if word in SPLITS]
        self._phase, self._left, self._seen = (found[-1] if len(set(found)) == 1 else ""), UNDER, set()

    def named(self, row: dict[str, float]) -> dict[str, float]:
        """A row with the phase from its title, or of an evaluation after the end of an epoch."""
        counted = {row[name] for name in row if counts(name)}
        if counted and not (row.keys() & {BAR} and len(row) > 2):
            if len(row) > 1 or counted != self._counted:  # otherwise a title's list only repeats the step
                self._phase, self._evaluated = "", False
            self._counted = counted
            return row
        plain = [name for name in row if is_measure(name) and not taken_apart(name, 0).split]
        evaluated = any(is_measure(name) and taken_apart(name, 0).split in ("val", "test") for name in row)
        phase = self._of_the_title(row, plain)
        if BAR in row:
            full = row[BAR] == row.get(BAR + TOTAL)
            if full and plain and not evaluated and self._evaluated:
                return {f"test/{name}": row[name] for name in plain}
            self._evaluated |= full and evaluated and bool(plain)
        if not phase:
            return row
        return {f"{phase}/{name}" if name in plain else name: value for name, value in row.items()}

    def _of_the_title(self, row: dict[str, float], plain: list[str]) -> str:
        if not self._phase or not plain:
            return ""
        self._left -= 1
        if self._left < 0 or BAR in row or not self._seen.isdisjoint(plain):
            self._phase = ""
        self._seen.update(plain)
        return self._phase
