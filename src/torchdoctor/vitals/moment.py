"""A point in time of a loop: by the host's clock and, for a CUDA device, in the order of its work."""

from __future__ import annotations

import time

import torch


class Moment:
    """The current time; `until` gives the time to a later moment during which the device was idle.

    A copy from unpinned memory, or an index made on the host, waits until the device has finished its earlier work.
    That is ongoing work, not waiting for the data. If the device is still busy at the later moment, the loop has not
    waited either.
    """

    __slots__ = ("_at", "_event", "_idle")

    def __init__(self, *, cuda: bool = False) -> None:
        self._at = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        self._idle = True
        if cuda:
            self._idle = torch.cuda.current_stream().query()
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def until(self, later: Moment) -> float | None:
        """Seconds until then; None if the device has not got there yet.

        >>> 0 <= Moment().until(Moment()) < 1
        True
        """
        passed, mine, other = later._at - self._at, self._event, later._event
        if mine is None or other is None:
            return passed
        if not other.query():  # type: ignore[no-untyped-call]
            return None
        if not later._idle:
            return 0.0
        return max(0.0, min(passed, float(mine.elapsed_time(other)) / 1e3))
