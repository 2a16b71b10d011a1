"""The thread that appends waiting lines to a journal, whatever the disk does.

A write that fails is tried again, a file that was deleted or moved is created again, and lost records are counted.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from pathlib import Path
from queue import Empty, SimpleQueue

from torchdoctor.journal.lines import line_of
from torchdoctor.journal.place import identity, open_apart, open_file, place_of, unwritable, write_all
from torchdoctor.records import Record

BATCH = 1000
"""Records that are written in one batch."""
FLUSH_SECONDS = 0.3
log = logging.getLogger("torchdoctor")


class Appender:
    """The writing thread: an open file, the bytes still to be written, and the count of lost records."""

    def __init__(self, place: Path, rank: int, header: Record) -> None:
        self.queue: deque[bytes] = deque()
        self.overflowed = 0
        self.lost = 0
        self.last_step = -1
        self.closing = False
        self._noted = 0
        self._header = line_of({"type": "header", **header})
        self._pending = b""
        self._extra = 0  # pending lines that are not records: a header, a note on lost records
        self._mid_line = False
        self._failing = False
        self._pid = os.getpid()
        self._calls: SimpleQueue[None] = SimpleQueue()  # not an Event: this is safe inside a signal handler
        self._stopping = threading.Event()
        try:
            meant = place_of(place, rank)
            self.path, self._file = open_apart(meant)
            self.taken = None if self.path == meant else meant
            self._identity = identity(os.fstat(self._file))
            write_all(self._file, self._header)
        except OSError as error:
            raise unwritable(place, error) from error
        _open_appenders.add(self)
        self._thread = threading.Thread(target=self._run, name="torchdoctor-journal", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread write now instead of within 0.3 seconds."""
        if self._calls.empty():
            self._calls.put(None)

    def close(self, timeout: float) -> None:
        """Let the thread write all waiting records and stop."""
        if os.getpid() != self._pid:
            return
        self.closing = True
        self._stopping.set()
        self._calls.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while True:
                stopping = self._stopping.is_set()
                written = self._drain()
                if stopping:
                    return
                if written:
                    self._wait()
                else:
                    self._stopping.wait(FLUSH_SECONDS)  # an immediate retry would fail again
        finally:
            self.lost += len(self.queue) + self._pending.count(b"\n") - self._extra
            os.close(self._file)

    def _wait(self) -> None:
        try:
            self._calls.get(timeout=FLUSH_SECONDS)
        except Empty:
            return

    def _drain(self) -> bool:
        """Write all waiting records; False if writing failed."""
        while True:
            if not self._pending:
                self._pending = self._next_batch()
            if not self._pending:
                return True
            if not self._append():
                return False

    def _next_batch(self) -> bytes:
        lines = [self.queue.popleft() for _ in range(min(len(self.queue), BATCH))]
        dropped = self.overflowed + self.lost
        if lines and dropped > self._noted:
            count, step = dropped - self._noted, self.last_step
            text = f"the journal lost {count} records around step {step}: they could not be written in time"
            lines.append(line_of({"type": "note", "step": step, "text": text}))
            self._extra += 1
            self._noted = dropped
        return b"".join(lines)

    def _append(self) -> bool:
        try:
            self._follow()
            while self._pending:
                count = os.write(self._file, self._pending)
                self._mid_line = not self._pending[:count].endswith(b"\n")
                self._pending = self._pending[count:]
        except OSError as error:
            if not self._failing:
                log.warning(
                    "the journal %s cannot be written at the moment: %s; trying again",
                    self.path,
                    error.strerror or error,
                )
            self._failing = True
            return False
        self._extra = 0
        self._failing = False
        return True

    def _follow(self) -> None:
        """Reopen the path if the open file was deleted or moved, because records written to it would be lost."""
        try:
            if identity(self.path.stat()) == self._identity:
                return
        except FileNotFoundError:
            pass
        except OSError:
            return  # unknown: keep using the open file
        fresh = open_file(self.path)
        os.close(self._file)
        self._file, self._identity = fresh, identity(os.fstat(fresh))
        if self._mid_line:
            self._pending = self._pending.partition(b"\n")[2]
            self._mid_line = False
            self.lost += 1
        self._pending = self._header + self._pending
        self._extra += 1


_open_appenders: weakref.WeakSet[Appender] = weakref.WeakSet()


def _forked() -> None:
    """Stop a forked child from writing into its parent's journals."""
    for appender in list(_open_appenders):
        appender.closing = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
