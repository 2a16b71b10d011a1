"""The journal: everything known about a run, one JSON record per line, appended by a separate thread.

Records are encoded in the training loop (`lines.py`): this is cheaper than in another thread, which would take the
interpreter away from the loop. The thread (`appender.py`) writes whole lines to the file (`place.py`). A full disk, a
deleted folder or a stalled file system can lose records (they are counted, and the journal says so), but never delays a
step.

* A journal is never overwritten. If it exists, a new header is appended, after a newline if the last line is torn;
  `torchdoctor.read` lets the later session replace the steps that it repeats.
* A killed process leaves whole lines and at most one torn line.
* A forked child (a worker of a data loader) writes nothing.
* If another process is writing the journal, this one writes to a numbered folder beside it, such as ``run-2``.
* Non-finite numbers are the strings "NaN", "Infinity" and "-Infinity", so any strict JSON parser can read every line.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from torchdoctor.errors import JournalError
from torchdoctor.journal.appender import BATCH, Appender, log
from torchdoctor.journal.lines import line_of, lines_of
from torchdoctor.journal.place import open_file, place_of, unwritable
from torchdoctor.records import Record
from torchdoctor.stretch import Stretch

QUEUE_LIMIT = 20_000
"""Maximum number of waiting records; at 1,000 steps per second, a stalled disk fills this in 20 seconds."""
CLOSE_SECONDS = 2.0
"""How long closing waits for a disk that does not respond."""
URGENT = frozenset({"header", "symptom", "end"})
"""Records that are written immediately, because they are needed after a crash."""


class Journal:
    """An open journal. `write` never blocks and never raises.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Journal(folder, {"type": "header", "schema": 1}) as journal:
    ...     journal.write({"type": "vitals", "step": 0, "vitals": {"loss": 2.5}})
    >>> print(journal.path.read_text().splitlines()[1])
    {"type": "vitals", "step": 0, "vitals": {"loss": 2.5}}
    """

    def __init__(self, path: str | Path, header: Record, *, rank: int = 0) -> None:
        self._appender = Appender(Path(path), rank, header)
        self.path = self._appender.path
        self.taken = self._appender.taken
        """The journal that was meant, if another process is writing to it."""
        self._queue = self._appender.queue
        # An abandoned journal is flushed when it is garbage-collected or when the interpreter exits.
        self._finish = weakref.finalize(self, self._appender.close, CLOSE_SECONDS)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Records lost so far because the queue was full, or because they could not be encoded or written."""
        return self._appender.overflowed + self._appender.lost

    @property
    def closed(self) -> bool:
        """Whether the journal is closed and writes nothing anymore."""
        return not self._finish.alive

    def write(self, record: Record) -> None:
        """Queue one record. A closed journal, and a journal in a forked child, ignore it."""
        appender, queue = self._appender, self._queue
        if appender.closing:
            return
        waiting = len(queue)
        if waiting >= QUEUE_LIMIT:
            appender.overflowed += 1
            return
        try:
            kind, step = record["type"], record.get("step", appender.last_step)
            queue.append(line_of(record))
            appender.last_step = step
            if kind in URGENT or waiting > BATCH:
                appender.wake()
        except Exception as error:  # noqa: BLE001  nothing is raised into the loop, whatever the record
            appender.lost += 1
            log.debug("a journal record was dropped: %s", error)

    def write_stretch(self, stretch: Stretch) -> None:
        """Queue the records of a stretch of finite numbers."""
        appender, queue = self._appender, self._queue
        if appender.closing:
            return
        waiting = len(queue)
        if waiting + len(stretch) >= QUEUE_LIMIT:
            for record in stretch.records():
                self.write(record)
            return
        try:
            queue.extend(lines_of(stretch))
            appender.last_step = int(stretch.steps[-1])
            if waiting > BATCH:
                appender.wake()
        except Exception as error:  # noqa: BLE001  as above
            appender.lost += len(stretch)
            log.debug("journal records were dropped: %s", error)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write all waiting records and close; returns after `timeout` seconds even if the disk does not respond."""
        if self._finish.detach() is not None:
            self._appender.close(timeout)


def journal_place(given: object) -> Path:
    """The path for a journal, as given by a user.

    >>> journal_place("runs/first").as_posix()
    'runs/first'
    """
    if not isinstance(given, str | os.PathLike) or not (text := os.fspath(given)) or "\0" in str(text):
        raise JournalError(f"journal must be the path of a folder or of a .jsonl file, not {given!r}.")
    return Path(text).expanduser()


def check_writable(place: Path, rank: int) -> None:
    """Raise an error if a journal cannot be written there; no file is left behind."""
    try:
        path = place_of(place, rank)
        fresh = not path.exists()
        os.close(open_file(path))
        if fresh:
            path.unlink()
    except OSError as error:
        raise unwritable(place, error) from error
