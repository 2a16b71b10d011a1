"""Reads the scalars of a TensorBoard file, thousands of events of the same shape at once.

Almost all events of a log differ only in their time, step and value. Events are grouped by their other bytes; one of
each group is parsed, and the rest are read as columns, checksums included. Unique events are read one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.crc32c import BLOCK, contributions, crc32c, masked, masked_all
from torchdoctor.sources.event_shapes import Rows, Shape, numbers, shape_of
from torchdoctor.sources.tfrecords import FOOTER, RecordFile, Window

Places = NDArray[np.int64]

ROUNDS = 4
"""How many times the remaining events of one length are grouped by shape before each is read by itself."""
SAMPLES = 8
FEW = 4
"""Fewest events of one shape that are read together."""
WORD = 8
MIXING = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Read:
    """The values of one tag in some events."""

    tag: str
    records: NDArray[np.int64]
    """The indexes of the events in the file."""
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


def scalars(file: RecordFile, config: dict[str, Any]) -> Iterator[Read]:
    """All scalars of a file, in any order; hyper-parameters go into `config`."""
    for window in file.windows():
        order = np.argsort(window.lengths, kind="stable")
        cuts = np.flatnonzero(np.diff(window.lengths[order])) + 1
        for group in np.split(order, cuts):
            yield from _of_one_length(file, window, group, config)


def _of_one_length(file: RecordFile, window: Window, group: Places, config: dict[str, Any]) -> Iterator[Read]:
    length = int(window.lengths[group[0]])
    for _ in range(ROUNDS if length <= BLOCK else 0):
        if len(group) < FEW:
            break
        rows = _rows(window, group, length)
        left = np.ones(len(group), dtype=bool)
        for alike in _alike(rows, length):
            shape = shape_of(rows[alike[0], :length].tobytes())
            if shape is not None and len(alike) >= FEW:
                chosen = alike[_fits(rows[alike], shape, length)]
                left[chosen] = False
                fitting = rows if len(chosen) == len(rows) else rows[chosen]
                yield from _columns(file, window.first + group[chosen], fitting[:, : length + FOOTER], shape, config)
        if left.all():
            break
        group = group[left]
    for place in group.tolist():
        start = int(window.starts[place])
        shape = shape_of(window.data[start : start + length])
        if shape is None or shape.scalars or shape.config:  # skip the checksums of images and graphs
            row = np.frombuffer(window.data, dtype=np.uint8, count=length + FOOTER, offset=start)[None, :]
            yield from _columns(file, np.array([window.first + place]), row, shape, config)


def _alike(rows: Rows, length: int) -> list[Places]:
    """Rows that probably have the same bytes apart from time, step and value."""
    samples = (shape_of(rows[place, :length].tobytes()) for place in range(0, len(rows), -(-len(rows) // SAMPLES)))
    masks = Counter(_mask(shape, rows.shape[1], length).tobytes() for shape in samples if shape and shape.scalars)
    if not masks:
        return []
    words, mask = rows.view("<u8"), np.frombuffer(masks.most_common(1)[0][0], dtype="<u8")
    keys = np.zeros(len(rows), dtype=np.uint64)
    for place, bits in enumerate(mask):
        if bits:
            keys = (keys ^ (words[:, place] & bits)) * MIXING
            keys ^= keys >> np.uint64(29)
    if (keys == keys[0]).all():
        return [np.arange(len(rows))]
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def _mask(shape: Shape, width: int, length: int) -> NDArray[np.uint64]:
    """The bits of a row that belong to its shape, in words."""
    mask = np.zeros(width, dtype=np.uint8)
    mask[:length] = shape.same(length)
    return mask.view("<u8")


def _rows(window: Window, group: Places, length: int) -> Rows:
    """The records of a group as rows, followed by their checksums and padding to a full word."""
    width = -(-(length + FOOTER) // WORD) * WORD
    everywhere = np.ndarray((len(window.data) - width + 1,), dtype=f"V{width}", buffer=window.data, strides=(1,))
    return everywhere[window.starts[group]].view(np.uint8).reshape(len(group), width)


def _fits(rows: Rows, shape: Shape, length: int) -> NDArray[np.bool_]:
    """Which rows have the shape of the first."""
    words = rows.view("<u8")
    fits = np.ones(len(rows), dtype=bool)
    for place, bits in enumerate(_mask(shape, rows.shape[1], length)):
        if bits:
            fits &= (words[:, place] & bits) == (words[0, place] & bits)
    return fits


def _columns(
    file: RecordFile, records: Places, rows: Rows, shape: Shape | None, config: dict[str, Any]
) -> Iterator[Read]:
    """What rows of one shape hold, without those whose checksum is wrong."""
    if shape is None:
        file.damaged(int(records[0]))
        return
    right = _checked(rows, shape)
    if not right.all():
        for record in records[~right].tolist():
            file.damaged(record)
        rows, records = rows[right], records[right]
    if not records.size:
        return
    config.update(shape.config)
    steps = shape.steps(rows)
    for scalar in shape.scalars:
        known = np.full(len(rows), scalar.constant)
        yield Read(scalar.tag, records, steps, numbers(rows, scalar.place, scalar.kind) if scalar.kind else known)


def _checked(rows: Rows, shape: Shape) -> NDArray[np.bool_]:
    """Which rows have the checksum that their bytes ask for."""
    length = rows.shape[1] - FOOTER
    stored = np.ascontiguousarray(rows[:, length:]).view("<u4")[:, 0]
    if len(rows) == 1:
        return np.array([int(stored[0]) == masked(crc32c(rows[0, :length].tobytes()))])
    varied = np.flatnonzero(shape.same(length) != 0xFF)
    blank = rows[0, :length].copy()
    blank[varied] = 0
    checks = masked_all(contributions(rows, varied, length) ^ np.uint32(crc32c(blank.tobytes())))
    right: NDArray[np.bool_] = stored == checks
    return right
