"""Protocol-buffer messages without a schema: which fields are in a span of bytes, and where.

Nothing is copied and nothing is trusted: a length that leads out of its message is a `ValueError`.

>>> message = bytes([0x08, 0x96, 0x01, 0x12, 0x02]) + b"hi"
>>> [(field.number, field.kind, message[field.start : field.stop]) for field in fields(message, 0, len(message))]
[(1, 0, b'\\x96\\x01'), (2, 2, b'hi')]
>>> varint(message, 1, 3)
150
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_VARINT_LENGTH = 10


class Field(NamedTuple):
    """One field: its number, its kind, and where its payload is."""

    number: int
    kind: int
    start: int
    stop: int


def fields(data: bytes, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message in a span of bytes, in order."""
    position = start
    while position < stop:
        key = data[position]
        position += 1
        if key >= 0x80:
            begin = position - 1
            position = _end_of_varint(data, begin, stop)
            key = varint(data, begin, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            begin, position = position, _end_of_varint(data, position, stop)
        elif kind == BYTES:
            if position < stop and data[position] < 0x80:  # most are short
                begin = position + 1
                position = begin + data[position]
            else:
                begin = _end_of_varint(data, position, stop)
                position = begin + varint(data, position, begin)
        elif kind in _FIXED:
            begin, position = position, position + _FIXED[kind]
        else:
            raise ValueError(f"no kind of field has the number {kind}")
        if position > stop:
            raise ValueError("a field is longer than its message")
        yield Field(number, kind, begin, position)


def varint(data: bytes, start: int, stop: int) -> int:
    """The number in a variable-length field, as an unsigned one."""
    value = 0
    for place in range(start, stop):
        value |= (data[place] & 0x7F) << (7 * (place - start))
    return value & 0xFFFF_FFFF_FFFF_FFFF


def signed(value: int) -> int:
    """The number that a negative one was written as.

    >>> signed(2**64 - 3)
    -3
    """
    return value - 2**64 if value >= 2**63 else value


def text(data: bytes, field: Field) -> str:
    """A field's payload as text; what is no text is replaced."""
    return data[field.start : field.stop].decode("utf-8", "replace")


def _end_of_varint(data: bytes, start: int, stop: int) -> int:
    for place in range(start, min(start + _VARINT_LENGTH, stop)):
        if data[place] < 0x80:
            return place + 1
    raise ValueError("a number does not end")
