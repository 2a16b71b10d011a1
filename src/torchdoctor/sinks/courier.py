"""Couriers: each sink has its own thread, so it slows down neither the loop nor other sinks.

The loop hands over findings and continues: it never waits, and nothing is raised. A sink that hangs loses only its own
messages; one that fails three times in a row is switched off, and the report says so. A forked child (a data loader's
worker) sends nothing. Measured values are not queued: a sink that wants them gets the latest.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from torchdoctor.records import Record
from torchdoctor.reports.report import Report
from torchdoctor.sinks.sink import Sink, reason

QUEUE_LIMIT = 1000
"""Most findings that wait for a sink; a very sick run has one every few hundred steps."""
GATHER_SECONDS = 1.0
"""How long a sink waits for related findings: one fault often causes several within a few steps."""
PAUSES = (5.0, 300.0)
"""Seconds after the first and the second failure in a row; the third switches the sink off."""
CLOSE_SECONDS = 5.0
"""How long the end of a run waits for all sinks together."""
MEASURED = frozenset({"vitals", "validation", "tensors", "modules", "groups", "facts", "context"})
"""Records that do not wake sinks."""
SHOWN = frozenset({"vitals", "validation"})
"""Records of which sinks that want them get the latest."""

Trouble = tuple[str, str]
"""The label of a sink, and the problem to mention in the report."""

log = logging.getLogger("torchdoctor")


class Couriers:
    """The sinks of a run."""

    def __init__(self) -> None:
        self._couriers: list[_Courier] = []
        self._latest: dict[str, Record] = {}
        self._troubles: deque[Trouble] = deque()
        # Weak: an abandoned run's messages are sent when it is collected or at exit, whichever comes first.
        self._finish = weakref.finalize(self, _close, self._couriers, None, CLOSE_SECONDS)

    def add(self, sink: Sink, label: str) -> None:
        """Add a sink; its label may be logged."""
        self._couriers.append(_Courier(sink, label, self._latest, self._troubles))

    def take(self, record: Record, found: Sequence[Record]) -> Sequence[Trouble]:
        """Hand over a record and its consequences; returns the sinks that gave up since, with the reason."""
        kind = record["type"]
        if kind in SHOWN:
            self._latest[kind] = record
        if found or kind not in MEASURED:
            news = found if kind in MEASURED else (record, *found)
            for courier in self._couriers:
                courier.put(news)
        return self.troubles() if self._troubles else ()

    def troubles(self) -> Sequence[Trouble]:
        """Sinks that gave up since the last call, with the reason."""
        return [self._troubles.popleft() for _ in range(len(self._troubles))]

    def close(self, report: Report | None, timeout: float = CLOSE_SECONDS) -> None:
        """Send waiting messages and the last report; returns after `timeout` seconds even if a sink does not answer."""
        if self._finish.detach() is not None:
            _close(self._couriers, report, timeout)


def _close(couriers: Sequence[_Courier], report: Report | None, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for courier in couriers:
        courier.stop(report)
    for courier in couriers:
        courier.join(max(deadline - time.monotonic(), 0.0))


_open_couriers: weakref.WeakSet[_Courier] = weakref.WeakSet()


def _forked() -> None:
    """In a forked child: leave the parent's messages to the parent."""
    for courier in list(_open_couriers):
        courier.closing = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Courier:
    """One sink, its thread and its queue."""

    def __init__(self, sink: Sink, label: str, latest: dict[str, Record], troubles: deque[Trouble]) -> None:
        self.closing = False
        self._label = label
        self._troubles = troubles
        self._sink = sink
        self._interval = float(getattr(sink, "interval", 0.0))
        self._latest = latest if getattr(sink, "vitals", False) else None
        self._shown: dict[str, Record] = {}
        self._queue: SimpleQueue[Sequence[Record]] = SimpleQueue()
        self._stopping = threading.Event()
        self._report: Report | None = None
        self._failures = 0
        self._reason = ""
        self._dropped = 0
        self._pid = os.getpid()
        _open_couriers.add(self)
        self._thread = threading.Thread(target=self._run, name="torchdoctor-sink", daemon=True)
        self._thread.start()

    def put(self, records: Sequence[Record]) -> None:
        """Queue some records for the sink."""
        if self.closing:
            return
        if self._queue.qsize() < QUEUE_LIMIT:
            self._queue.put(records)
        else:
            self._dropped += 1

    def stop(self, report: Report | None) -> None:
        """Have the thread send waiting messages and the report, and end."""
        if os.getpid() != self._pid or self.closing:
            return
        self.closing = True
        self._report = report
        self._stopping.set()
        self._queue.put(())

    def join(self, timeout: float) -> None:
        """Wait for the thread, up to a time limit."""
        if os.getpid() != self._pid or self._thread is threading.current_thread():
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._complain("had not answered when the run ended: its last messages may be lost")

    # ── on the thread ────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stopping.is_set():
            records = self._waiting(wait=not self._failures)
            if records:
                self._stopping.wait(GATHER_SECONDS)
            if self._stopping.is_set():
                self._finish(records)
                return
            self._deliver([*records, *self._waiting(wait=False)])
            if self._failures > len(PAUSES):
                self._give_up()
                return
            self._stopping.wait(PAUSES[self._failures - 1] if self._failures else self._interval)
        self._finish([])

    def _waiting(self, *, wait: bool) -> list[Record]:
        """Queued records; with `wait`, at least one, or the latest values if the sink wants them."""
        records: list[Record] = []
        try:
            if wait:
                records += self._queue.get(timeout=None if self._latest is None else max(self._interval, 1.0))
            while True:
                records += self._queue.get_nowait()
        except Empty:
            pass
        if self._latest is not None:
            latest = self._latest.copy()
            records += [record for kind, record in latest.items() if record is not self._shown.get(kind)]
            self._shown = latest
        return records

    def _deliver(self, records: list[Record]) -> None:
        if not records and not self._failures:
            return
        try:
            self._sink.take(records)
            self._failures = 0
        except Exception as error:  # noqa: BLE001  a sink may raise anything
            self._failures += 1
            self._reason = reason(error)
            log.debug("%s failed: %s", self._label, self._reason)

    def _give_up(self) -> None:
        self.closing = True
        self._complain(f"was switched off: it failed {self._failures} times ({self._reason})")
        self._end(None)

    def _finish(self, records: list[Record]) -> None:
        """Try once more to send waiting messages, even after failures, then end."""
        failures = self._failures
        self._deliver([*records, *self._waiting(wait=False)])
        if not self._end(self._report) or self._failures > failures:
            self._complain(f"did not accept the last messages of the run ({self._reason})")
        elif self._dropped:
            self._complain(f"was too slow: {self._dropped} of its messages were dropped")

    def _complain(self, text: str) -> None:
        self._troubles.append((self._label, f"{self._label} {text}."))

    def _end(self, report: Report | None) -> bool:
        try:
            self._sink.close(report)
        except Exception as error:  # noqa: BLE001
            self._reason = reason(error)
            return False
        return True
