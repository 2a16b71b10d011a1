"""The checksum of TensorFlow's record files (CRC-32C), for many records of the same length at once.

The checksum is linear: it is the exclusive or of the contributions of each byte at its distance from the end. With one
table per distance it takes a few look-ups, for one record as for a hundred thousand.

>>> hex(crc32c(b"123456789"))
'0xe3069283'
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Checks = NDArray[np.uint32]

BLOCK = 1024
"""Bytes processed at once; as many tables of a kilobyte each are kept."""
_POLYNOMIAL = 0x82F63B78
_START = 0xFFFFFFFF


@cache
def tables() -> Checks:
    """The contribution of each byte value, by distance from the end."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), first >> np.uint32(1))
    found = np.empty((BLOCK, 256), dtype=np.uint32)
    found[0] = first
    for distance in range(1, BLOCK):
        before = found[distance - 1]
        found[distance] = before >> np.uint32(8) ^ first[before & 0xFF]
    found.flags.writeable = False
    return found


def crc32c(data: bytes) -> int:
    """The checksum of some bytes."""
    state = _START
    for begin in range(0, len(data), BLOCK):
        block = np.frombuffer(data[begin : begin + BLOCK], dtype=np.uint8).copy()
        size = len(block)
        head = min(size, 4)
        block[:head] ^= np.frombuffer(state.to_bytes(4, "little"), dtype=np.uint8)[:head]
        distances = np.arange(size - 1, -1, -1)
        state = (state >> 8 * size) ^ int(np.bitwise_xor.reduce(tables()[distances, block]))
    return state ^ _START


def contributions(rows: Bytes, places: NDArray[np.int64], length: int) -> Checks:
    """What the bytes at some places contribute to the checksum of each row's first `length` bytes."""
    found = np.zeros(len(rows), dtype=np.uint32)
    known = tables()
    for place in places.tolist():
        found ^= known[length - 1 - place].take(rows[:, place])
    return found


def masked(check: int) -> int:
    """A checksum as stored in record files.

    >>> hex(masked(crc32c(b"123456789")))
    '0xc78ab0e5'
    """
    return ((check >> 15 | check << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_all(checks: Checks) -> Checks:
    """Many checksums as stored in record files."""
    return (checks >> np.uint32(15) | checks << np.uint32(17)) + np.uint32(0xA282EAD8)
