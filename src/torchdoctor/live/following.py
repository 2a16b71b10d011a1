"""Follows a journal while it is written: whole lines as they come, whatever happens to the file meanwhile.

* An incomplete last line waits for its rest.
* A file that was truncated, moved away, or deleted and created again is read from its beginning. If its steps continue
  where the old file ended, so does the run; otherwise it is a new run.
* A resumed session replaces the steps that it repeats: the file is read once more, as `torchdoctor.read` would read it.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from torchdoctor.sources.journal import LINE_LIMIT, STEP_LIMIT, UNREADABLE, Reading
from torchdoctor.sources.run import Piece
from torchdoctor.stretch import Stretch

CHUNK = 4 * 2**20
"""Bytes read at once: some tenths of a second's work."""
MARK = 256
"""Bytes at the beginning, and before the current position, by which a file is recognized."""


@dataclass(frozen=True)
class Lines:
    """The result of one look at a file."""

    whole: bytes = b""
    """Complete lines."""
    renewed: bool = False
    """Whether the file is another one than before: the lines are from its beginning."""
    more: bool = False
    """Whether more can be read immediately."""


class Tail:
    """The complete lines of a growing file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log"
    >>> tail = Tail(path)
    >>> tail.read().whole  # the file does not exist yet
    b''
    >>> _ = path.write_bytes(b"one\\ntw")
    >>> tail.read().whole
    b'one\\n'
    >>> _ = path.write_bytes(b"one\\ntwo\\n")
    >>> tail.read().whole
    b'two\\n'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] = ()
        self.rewind()

    def rewind(self) -> None:
        """Start from the beginning next time."""
        self._offset = 0
        self._head = self._before = self._rest = b""
        self._passing = False

    def read(self) -> Lines:
        """New data since the last look; empty if the file does not exist or cannot be read now."""
        try:
            found = self.path.stat()
            signature = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if not stat.S_ISREG(found.st_mode) or (signature == self._seen and self._offset >= found.st_size):
                return Lines()
            with self.path.open("rb") as file:
                renewed = not self._is_same(file)
                if renewed:
                    self.rewind()
                file.seek(self._offset)
                data = file.read(CHUNK)
                self._remember(file, len(data))
        except OSError:
            return Lines()
        self._seen = signature
        return Lines(self._split(data), renewed, more=self._offset < found.st_size)

    def _is_same(self, file: BinaryIO) -> bool:
        """Whether what was read is still there; size and inode are not enough: a new file may have the same ones."""
        if not self._offset:
            return True
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _remember(self, file: BinaryIO, count: int) -> None:
        self._offset += count
        if len(self._head) < MARK:
            file.seek(0)
            self._head = file.read(min(MARK, self._offset))
        file.seek(max(self._offset - MARK, 0))
        self._before = file.read(min(MARK, self._offset))

    def _split(self, data: bytes) -> bytes:
        if self._passing:
            _, newline, data = data.partition(b"\n")
            self._passing = not newline
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > LINE_LIMIT:
            self._rest, self._passing = b"", True
            return whole + newline + UNREADABLE + b"\n"
        return whole + newline


@dataclass(frozen=True)
class News:
    """New records."""

    pieces: tuple[Piece, ...] = ()
    anew: bool = False
    """Whether everything before them is void."""
    more: bool = False
    """Whether more can be read immediately."""


@dataclass
class _Pass:
    """One pass over a file: its position, and what its lines must agree with."""

    reading: Reading = field(default_factory=Reading)
    session: int = 0


class Follower:
    """The records of a growing journal, each once and in order."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._pass = _Pass()
        self._firsts: dict[int, int] = {}
        """The first step of each session of this file, if known from this pass or the one before."""
        self._last = -1
        self._moved = False
        """Whether the file was replaced, and its first step has not been read yet."""

    @property
    def skipped(self) -> int:
        """The number of lines without a usable record."""
        return self._pass.reading.skipped

    def news(self) -> News:
        """Everything new since the last call."""
        found = self._tail.read()
        if found.renewed:
            self._pass, self._firsts, self._moved = _Pass(), {}, True
        pieces = []
        for piece in self._pass.reading.pieces(found.whole):
            if isinstance(piece, Mapping) and piece["type"] == "header":
                self._pass.session += 1
            elif self._is_repetition(piece):
                self._tail.rewind()
                self._pass, self._last = _Pass(), -1
                return News(anew=True, more=True)
            if (counting := self._counting(piece)) is not None:
                pieces.append(counting)
        return News(tuple(pieces), more=found.more)

    def _is_repetition(self, piece: Piece) -> bool:
        """Whether this begins a session that makes earlier records void."""
        if isinstance(piece, Stretch):
            step, end = int(piece.steps[0]), int(piece.steps[-1])
        elif piece["type"] == "vitals":
            step = end = piece["step"]
        else:
            return False
        session = self._pass.session
        last, self._last = self._last, end
        if session in self._firsts:
            return False
        moved, self._moved = self._moved, False
        later = any(known < session for known in self._firsts)
        self._firsts[session] = step
        return later or (moved and step <= last)

    def _counting(self, piece: Piece) -> Piece | None:
        """The part of a piece that no later session replaces."""
        session = self._pass.session
        cut = min((step for known, step in self._firsts.items() if known > session), default=None)
        if cut is None:
            return piece
        if self._firsts.get(session, STEP_LIMIT) >= cut:
            return None
        if isinstance(piece, Stretch):
            size = int(np.searchsorted(piece.steps, cut))
            return piece[:size] if size else None
        return piece if piece["step"] < cut and piece["type"] != "end" else None
