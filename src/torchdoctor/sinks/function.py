"""Any function as a sink: it is called with one record after another, outside the loop's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from torchdoctor.records import Record
from torchdoctor.reports.report import Report

KEPT = 1000
"""Most records that wait for a function that raises; the oldest are dropped first."""


class Function:
    """Calls a function with every record that is not a step's measurement.

    >>> heard = []
    >>> Function(heard.append).take([{"type": "note", "step": 3, "text": "measured on the host"}])
    >>> heard[0]["text"]
    'measured on the host'
    """

    def __init__(self, function: Callable[[Record], object]) -> None:
        self._function = function
        self._waiting: deque[Record] = deque(maxlen=KEPT)

    def take(self, records: Sequence[Record]) -> None:
        """Call the function; a record for which it raises is passed to it again later."""
        self._waiting.extend(records)
        while self._waiting:
            self._function(self._waiting[0])
            self._waiting.popleft()

    def close(self, report: Report | None) -> None:
        """Nothing to do: the run's end is a record too."""
