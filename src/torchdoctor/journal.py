"""The journal: everything known about a run, one JSON record per line, appended by a separate thread.

Records are encoded in the training loop: this is cheaper than in another thread, which would take the interpreter away
from the loop. The thread writes whole lines. A full disk, a deleted folder or a stalled file system can lose records
(they are counted, and the journal says so), but never delays a step.

* A journal is never overwritten. If it exists, a new header is appended, after a newline if the last line is torn;
  `torchdoctor.read` lets the later session replace the steps that it repeats.
* A killed process leaves whole lines and at most one torn line.
* A forked child (a worker of a data loader) writes nothing.
* If another process is writing the journal, this one writes to a numbered folder beside it, such as ``run-2``.
* Non-finite numbers are the strings "NaN", "Infinity" and "-Infinity", so any strict JSON parser can read every line.

>>> encode({"type": "vitals", "step": 3, "vitals": {"loss": float("nan"), "grad_norm": 1.5}})
'{"type": "vitals", "step": 3, "vitals": {"loss": "NaN", "grad_norm": 1.5}}'
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import stat
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from itertools import chain
from json.encoder import encode_basestring_ascii
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from torchdoctor.errors import JournalError
from torchdoctor.records import Record
from torchdoctor.stretch import Stretch

NAME = "journal.jsonl"
"""File name of the journal in its folder; other ranks write ``journal.rank3.jsonl``."""
QUEUE_LIMIT = 20_000
"""Maximum number of waiting records; at 1,000 steps per second, a stalled disk fills this in 20 seconds."""
BATCH = 1000
"""Records that are written in one batch."""
FLUSH_SECONDS = 0.3
MOST_BESIDE = 1000
"""Maximum number of journals beside each other that different processes write at once."""
CLOSE_SECONDS = 2.0
"""How long closing waits for a disk that does not respond."""
URGENT = frozenset({"header", "symptom", "end"})
"""Records that are written immediately, because they are needed after a crash."""

log = logging.getLogger("torchdoctor")


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
        self._appender = _Appender(Path(path), rank, header)
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
            queue.append(_line(record))
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
            queue.extend(_lines(stretch))
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


_open_appenders: weakref.WeakSet[_Appender] = weakref.WeakSet()


def _forked() -> None:
    """Stop a forked child from writing into its parent's journals."""
    for appender in list(_open_appenders):
        appender.closing = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Appender:
    """The writing thread: an open file, the bytes still to be written, and the count of lost records."""

    def __init__(self, place: Path, rank: int, header: Record) -> None:
        self.queue: deque[bytes] = deque()
        self.overflowed = 0
        self.lost = 0
        self.last_step = -1
        self.closing = False
        self._noted = 0
        self._header = _line({"type": "header", **header})
        self._pending = b""
        self._extra = 0  # pending lines that are not records: a header, a note on lost records
        self._mid_line = False
        self._failing = False
        self._pid = os.getpid()
        self._calls: SimpleQueue[None] = SimpleQueue()  # not an Event: this is safe inside a signal handler
        self._stopping = threading.Event()
        try:
            meant = _place(place, rank)
            self.path, self._file = _open_apart(meant)
            self.taken = None if self.path == meant else meant
            self._identity = _identity(os.fstat(self._file))
            _write_all(self._file, self._header)
        except OSError as error:
            raise _unwritable(place, error) from error
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
            lines.append(_line({"type": "note", "step": step, "text": text}))
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
            if _identity(self.path.stat()) == self._identity:
                return
        except FileNotFoundError:
            pass
        except OSError:
            return  # unknown: keep using the open file
        fresh = _open(self.path)
        os.close(self._file)
        self._file, self._identity = fresh, _identity(os.fstat(fresh))
        if self._mid_line:
            self._pending = self._pending.partition(b"\n")[2]
            self._mid_line = False
            self.lost += 1
        self._pending = self._header + self._pending
        self._extra += 1


def encode(record: object) -> str:
    """One record as strict JSON on one line; numpy scalars and arrays become numbers and lists."""
    try:
        return _ENCODER.encode(record)
    except ValueError:  # a non-finite number: rare, so only such records are converted
        return _ENCODER.encode(_finite(record))


def _convert(value: object) -> object:
    """Convert numpy scalars and arrays to numbers, and everything else (a dtype, device or path) to text."""
    if isinstance(value, Mapping):
        return dict(value)
    as_list = getattr(value, "tolist", None)
    return as_list() if callable(as_list) else str(value)


_ENCODER = json.JSONEncoder(allow_nan=False, default=_convert)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        )
    if isinstance(value, Mapping):
        return {str(_finite(key)): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    return _finite(_convert(value))


def _line(record: Record) -> bytes:
    text = _vitals(record) if record["type"] == "vitals" and len(record) == 3 else ""
    return f"{text or encode(record)}\n".encode()


def _vitals(record: Record) -> str:
    """The same as `encode` for a vitals record, twice as fast; empty if a value is not a plain finite number."""
    numbers = []
    for name, value in record["vitals"].items():
        if type(value) is not float or value - value != 0.0:
            return ""
        numbers.append(f"{encode_basestring_ascii(name)}: {value!r}")
    return f'{{"type": "vitals", "step": {record["step"]}, "vitals": {{{", ".join(numbers)}}}}}'


def _lines(stretch: Stretch) -> list[bytes]:
    """The same as `_line` for each step of a stretch of finite numbers, all at once."""
    names = (encode_basestring_ascii(name).replace("%", "%%") for name in stretch.columns)
    form = '{"type": "vitals", "step": %d, "vitals": {' + ", ".join(f"{name}: %r" for name in names) + "}}\n"
    columns = [stretch.steps.tolist(), *(values.tolist() for values in stretch.columns.values())]
    return (form * len(stretch) % tuple(chain.from_iterable(zip(*columns, strict=True)))).encode().splitlines(True)


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
        path = _place(place, rank)
        fresh = not path.exists()
        os.close(_open(path))
        if fresh:
            path.unlink()
    except OSError as error:
        raise _unwritable(place, error) from error


def _unwritable(place: Path, error: OSError) -> JournalError:
    why = error.strerror or error
    return JournalError(f"cannot write the journal {place}: {why}. Give a writable folder or .jsonl file.")


def _place(path: Path, rank: int) -> Path:
    """The journal file of a rank: in the given folder, or next to the given .jsonl file."""
    if path.suffix != ".jsonl" and path.is_file():
        raise OSError(errno.ENOTDIR, "it is a file whose name does not end in .jsonl")
    if path.suffix != ".jsonl" or path.is_dir():
        path = path / NAME
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}.jsonl")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_apart(path: Path) -> tuple[Path, int]:
    """A journal that no other process is writing, and its file descriptor: this one, or one in a numbered place.

    A folder holds one run, so that of another process gets a folder beside it.
    """
    in_folder = (path.name == NAME or path.match("journal.rank*.jsonl")) and bool(path.parent.name)
    for number in range(1, MOST_BESIDE):
        place = path
        if number > 1 and in_folder:
            place = path.parent.with_name(f"{path.parent.name}-{number}") / path.name
        elif number > 1:
            place = path.with_name(f"{path.stem}.{number}{path.suffix}")
        file = _open(place)
        if _lock(file):
            return place, file
        os.close(file)
    return path, _open(path)


def _lock(file: int) -> bool:
    """Lock a file until this process closes it; False if another process has locked it.

    Journals of the same process are not kept apart: in a notebook, a Doctor may be left over from the cell's last run.
    """
    try:
        import fcntl  # not on Windows, where all write to one file

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):  # not every file system has locks
        return True
    return True


def _open(path: Path) -> int:
    """The journal's file descriptor, at the start of a line; unbuffered, so that a fork cannot write twice."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0), 0o600)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if found.st_size:
            _check_journal(file)
            os.lseek(file, -1, os.SEEK_END)
            if os.read(file, 1) != b"\n":
                _write_all(file, b"\n")
    except OSError:
        os.close(file)
        raise
    return file


def _check_journal(file: int) -> None:
    """Raise an error unless the file begins like a journal: other .jsonl files, such as data sets, stay untouched."""
    if not os.read(file, 64).startswith(b'{"type": "header"'):
        raise OSError(errno.EEXIST, "the file exists and is not a journal")


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
