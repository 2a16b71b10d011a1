"""LevelDB log files, as Weights & Biases writes them: records in blocks of 32 KiB, each with a checksum.

A damaged record costs the rest of its block. A record spread over blocks is joined, up to a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = 32 * 1024
HEADER = 7
RECORD_LIMIT = 64 * 2**20
"""Bytes of the longest record that is joined."""
_BEGINNING = b":W&B"
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_CHECKED = [zlib.crc32(bytes([kind])) for kind in range(_LAST + 1)]


def begins_like_one(path: Path) -> bool:
    """Whether a file begins like W&B's log files."""
    with path.open("rb") as file:
        return file.read(HEADER).startswith(_BEGINNING)


@dataclass
class LogFile:
    """One pass over a file; what was left out is known when it ends."""

    path: Path
    skipped: int = 0
    """Damaged places."""
    first_skipped: int | None = None
    """The number of the record at the first of them, counted from 1."""
    lost: int = 0
    """Bytes that could not be read: the rest of blocks with damage."""
    torn: bool = False
    """Whether the last record is cut off."""
    _whole: int = 0
    """Number of whole records, and
    """
    _size: int = 0
    """the sum of their bytes."""

    @property
    def lost_records(self) -> int:
        """The approximate number of lost records, if they were as long as the others."""
        return max(1, round(self.lost / max(1.0, self._size / max(1, self._whole)))) if self.lost else 0

    def records(self) -> Iterator[bytes]:
        """The whole records, in order."""
        parts: list[bytes] = []
        size = 0
        with self.path.open("rb") as file:
            start = HEADER  # the file's own header
            while block := file.read(BLOCK):
                for kind, data in self._fragments(block, start):
                    if kind in (_FULL, _FIRST):
                        if parts:
                            self.damaged(self._whole + 1)
                        parts, size = [], 0
                    elif not parts:
                        continue  # its beginning was damaged
                    size += len(data)
                    if size <= RECORD_LIMIT:
                        parts.append(data)
                    if kind in (_FULL, _LAST):
                        if size <= RECORD_LIMIT:
                            yield b"".join(parts) if len(parts) > 1 else data
                        else:
                            self.damaged(self._whole + 1)
                        self._whole, self._size = self._whole + 1, self._size + size + HEADER
                        parts = []
                start = 0
        self.torn |= bool(parts)

    def damaged(self, record: int) -> None:
        """Count a place that could not be read."""
        self.skipped += 1
        if self.first_skipped is None:
            self.first_skipped = record

    def _fragments(self, block: bytes, start: int) -> Iterator[tuple[int, bytes]]:
        """The pieces of records in a block."""
        last = len(block) - HEADER
        while start <= last:
            check = int.from_bytes(block[start : start + 4], "little")
            length = int.from_bytes(block[start + 4 : start + 6], "little")
            kind = block[start + 6]
            begin, stop = start + HEADER, start + HEADER + length
            if not kind and not length and not any(block[start:]):
                return  # allocated in advance, and empty
            if stop > len(block) < BLOCK:
                self.torn = True
                return
            data = block[begin:stop]
            if stop > len(block) or not _FULL <= kind <= _LAST or zlib.crc32(data, _CHECKED[kind]) != check:
                self.damaged(self._whole + 1)
                self.lost += len(block) - start
                return
            yield kind, data
            start = stop
        if len(block) < BLOCK and start < len(block):
            self.torn = True
