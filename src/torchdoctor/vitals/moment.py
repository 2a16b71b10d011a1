"""A moment of a loop: by the host's clock and, where the device works on its own, in the order of the device's work."""

from __future__ import annotations

import time

import torch


class Moment:
    """Now; `until` a later one is the time that passed, as far as the device had nothing to do in it.

    A copy from ordinary memory, and an index that is made on the host, wait until the device has done all that it was
    given before. That is work that goes on, not a wait for whatever is copied. Nor does a loop wait whose device has
    still work to do when the later moment comes.
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
        """Seconds; None where the device has not come so far.

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
