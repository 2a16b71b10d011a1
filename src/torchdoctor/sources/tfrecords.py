"""TensorFlow's record files: where the records are, a window of the file at a time.

A record is its length (8 bytes), a checksum of the length (4), its data, and a checksum of the data (4). A length is
believed when its checksum is right and then only skipped over, never allocated. Where one is wrong, the next right one
is searched for, so that a damaged place costs what is damaged.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.crc32c import contributions, crc32c, masked, masked_all

HEADER, FOOTER = 12, 4
PADDING = 8
WINDOW = 8 * 2**20
"""Bytes read together; a longer record holds no scalars and is skipped."""
LENGTH_LIMIT = 2**32
"""A length beyond this is damage, whatever its checksum says."""
_SEARCHED = 2**12
_KNOWN_LIMIT = 100_000
_CYCLE_LIMIT = 100
"""Records in the longest cycle of lengths that is searched for: a loop that logs the same scalars at every step."""
_CYCLE_TRIED = 1000
"""Number of records read one by one before that."""
_HEADER = struct.Struct("<QI")


@dataclass(frozen=True)
class Window:
    """A part of a file, and the whole records in it."""

    data: bytes
    """With padding, so that a record can be read in words."""
    starts: NDArray[np.int64]
    """Where each record's data begins."""
    lengths: NDArray[np.int64]
    first: int
    """The number of the first record, counted from 0 over the file."""


@dataclass
class RecordFile:
    """One pass over a file; what was left out is known when it ends."""

    path: Path
    skipped: int = 0
    """Damaged places."""
    first_skipped: int | None = None
    """The number of the record at the first of them, counted from 1."""
    torn: bool = False
    """Whether the last record is cut off."""
    _known: dict[int, int] = field(default_factory=dict)
    """Lengths seen so far, and their checksums."""

    def windows(self) -> Iterator[Window]:
        """The records of the file, in order."""
        first = 0
        with self.path.open("rb") as file:
            rest = b""
            while chunk := file.read(WINDOW):
                data = rest + chunk
                positions, after = self._scan(data, first)
                if positions:
                    bounds = np.append(np.frombuffer(positions, dtype=np.int64), after)
                    starts, lengths = bounds[:-1] + HEADER, np.diff(bounds) - HEADER - FOOTER
                    if self.skipped:  # then damaged bytes may lie between two records
                        lengths = np.array([_HEADER.unpack_from(data, place)[0] for place in positions], dtype=np.int64)
                    yield Window(data + bytes(PADDING), starts, lengths, first)
                first += len(positions)
                rest = data[after:]
                if len(rest) >= WINDOW:
                    rest = self._leap(file, rest)
        self.torn |= bool(rest)

    def damaged(self, record: int) -> None:
        """Count a place that could not be read."""
        self.skipped += 1
        if self.first_skipped is None:
            self.first_skipped = record + 1

    def _scan(self, data: bytes, first: int) -> tuple[array[int], int]:
        """Where the whole records begin, and where the first incomplete one begins."""
        positions = array("q")
        position, last = 0, len(data) - HEADER
        unpack, known, found = _HEADER.unpack_from, self._known, positions.append
        size, due = len(data), _CYCLE_TRIED
        while position <= last:
            length, check = unpack(data, position)
            if known.get(length) != check and not self._believed(length, check):
                self.damaged(first + len(positions))
                position = _next_header(data, position + 1)
                continue
            after = position + length + HEADER + FOOTER
            if after > size:
                break
            found(position)
            position = after
            if len(positions) == due and not self.skipped:
                position = _leap_over_cycles(data, positions, position)
                due = len(positions) + _CYCLE_TRIED
        return positions, position

    def _believed(self, length: int, check: int) -> bool:
        if length >= LENGTH_LIMIT or masked(crc32c(length.to_bytes(8, "little"))) != check:
            return False
        if len(self._known) < _KNOWN_LIMIT:
            self._known[length] = check
        return True

    def _leap(self, file: BinaryIO, rest: bytes) -> bytes:
        """Skip a record that is longer than a window; returns the rest."""
        length, _ = _HEADER.unpack_from(rest, 0)
        missing = length + HEADER + FOOTER - len(rest)
        if file.tell() + missing > os.fstat(file.fileno()).st_size:
            self.torn = True
        file.seek(missing, os.SEEK_CUR)
        return b""


def _leap_over_cycles(data: bytes, positions: array[int], after: int) -> int:
    """Where the lengths of the last records repeat, add the records that continue so; returns where the next begins."""
    bounds = np.array([*positions[-2 * _CYCLE_LIMIT :], after], dtype=np.int64)
    recent: NDArray[np.int64] = bounds[1:] - bounds[:-1]
    for size in range(1, len(recent) // 2 + 1):
        if np.array_equal(recent[-size:], recent[-2 * size : -size]):
            break
    else:
        return after
    stride = int(recent[-size:].sum())
    most = (len(data) - after) // stride
    if not most:
        return after
    places: NDArray[np.int64] = np.cumsum(recent[-size:]) - recent[-size:]
    for place in places.tolist():
        length, check = _HEADER.unpack_from(data, after - stride + place)
        lengths = np.ndarray((most,), "<u8", buffer=data, offset=after + place, strides=(stride,))
        checks = np.ndarray((most,), "<u4", buffer=data, offset=after + place + 8, strides=(stride,))
        other = np.flatnonzero((lengths != length) | (checks != check))
        most = int(other[0]) if other.size else most
    cycles = np.arange(after, after + most * stride, stride, dtype=np.int64)
    positions.frombytes((cycles[:, None] + places).tobytes())
    return after + most * stride


def _next_header(data: bytes, begin: int) -> int:
    """The next place where a length has its right checksum; near the end of the data if there is none."""
    last = len(data) - HEADER
    span = _SEARCHED
    while begin <= last:
        part = np.frombuffer(data, dtype=np.uint8, count=min(span + HEADER, len(data) - begin), offset=begin)
        empty = part == 0
        places = len(part) - HEADER + 1
        # a record of 16 MB or more is not a scalar: five of the eight bytes of a length are zero
        candidates = np.flatnonzero(np.logical_and.reduce([empty[place : place + places] for place in range(3, 8)]))
        if candidates.size:
            rows = part[candidates[:, None] + np.arange(HEADER)]
            checks = masked_all(contributions(rows, np.arange(3), 8) ^ np.uint32(crc32c(bytes(8))))
            right = np.flatnonzero(checks == rows[:, 8:].copy().view("<u4")[:, 0])
            if right.size:
                return begin + int(candidates[right[0]])
        begin += places
        span = min(2 * span, WINDOW)
    return max(begin, last + 1)
