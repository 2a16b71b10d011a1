"""Parses one TensorBoard event: which scalars it holds and where, and its hyper-parameters.

Numbers come as ``simple_value`` (TensorFlow 1, PyTorch) or as a tensor of one element (TensorFlow 2, Keras, JAX), as a
list or as raw content. Hyper-parameters come from the hparams plugin, and from the arguments that the Hugging Face
trainer writes as text. Images, histograms, graphs and other texts are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.wire import BYTES, FIXED32, FIXED64, VARINT, Field, fields, signed, text, varint

Rows = NDArray[np.uint8]

TEXT_LIMIT = 2**20
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_HALF, _BFLOAT = 19, 14
_PLACED = {
    **{1: "<f4", 2: "<f8", _HALF: "<f2", _BFLOAT: "bfloat16", 10: "u1"},
    **{3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 17: "<u2", 22: "<u4", 23: "<u8"},
}
"""Layout of a tensor's content, by the number of its type."""
_LISTS = {5: ("<f4", FIXED32), 6: ("<f8", FIXED64)}
_COUNTED = frozenset({7, 10, 11, 13, 16, 17})
"""Fields of a tensor that list integers (13: half-precision numbers, as their bits)."""
_ARGUMENTS = frozenset({"args/text_summary", "args"})
"""Tags under which the Hugging Face trainer writes its arguments."""


@dataclass(frozen=True)
class Scalar:
    """A value in a record: at a place, or a constant."""

    tag: str
    place: int = 0
    kind: str = ""
    constant: float = 0.0


@dataclass(frozen=True)
class Shape:
    """A parsed event."""

    wall_time: int | None = None
    """Position of its time."""
    step: tuple[int, int] | None = None
    """Position of its step; None: step 0."""
    scalars: tuple[Scalar, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    def same(self, length: int) -> NDArray[np.uint8]:
        """The bits that another event of this length must share with this one to have the same shape."""
        mask = np.full(length, 0xFF, dtype=np.uint8)
        if self.wall_time is not None:
            mask[self.wall_time : self.wall_time + 8] = 0
        if self.step:
            mask[slice(*self.step)] = 0x80  # whether more bytes follow
        for scalar in self.scalars:
            if scalar.kind:
                mask[scalar.place : scalar.place + _width(scalar.kind)] = 0
        return mask

    def steps(self, rows: Rows) -> NDArray[np.int64]:
        """The step of each row."""
        found = np.zeros(len(rows), dtype=np.uint64)
        if self.step:
            for place in range(*self.step):
                found |= (rows[:, place] & 0x7F).astype(np.uint64) << np.uint64(7 * (place - self.step[0]))
        return found.view(np.int64)

    def wall_times(self, rows: Rows) -> NDArray[np.float64]:
        """The time of each row, in seconds."""
        return numbers(rows, self.wall_time, "<f8") if self.wall_time is not None else np.zeros(len(rows))


def shape_of(record: bytes) -> Shape | None:
    """A parsed event; None if the bytes are not an event."""
    wall_time: int | None = None
    step: tuple[int, int] | None = None
    found: list[Scalar] = []
    config: dict[str, Any] = {}
    try:
        for item in fields(record, 0, len(record)):
            if item.number == _WALL_TIME and item.kind == FIXED64:
                wall_time = item.start
            elif item.number == _STEP and item.kind == VARINT:
                step = (item.start, item.stop)
            elif item.number == _SUMMARY and item.kind == BYTES:
                for value in fields(record, item.start, item.stop):
                    if value.number == 1 and value.kind == BYTES:
                        _take_value(record, value, found, config)
    except ValueError:
        return None
    return Shape(wall_time, step, tuple(found), config)


def _take_value(record: bytes, value: Field, found: list[Scalar], config: dict[str, Any]) -> None:
    """One value of a summary: a tag with a number, or with hyper-parameters; others are ignored."""
    tag, plugin, content = "", "", None
    scalar: Scalar | None = None
    tensor: Field | None = None
    for item in fields(record, value.start, value.stop):
        if item.number == 1 and item.kind == BYTES:
            tag = text(record, item)
        elif item.number == 2 and item.kind == FIXED32:
            scalar = Scalar("", item.start, "<f4")
        elif item.number == 8 and item.kind == BYTES:
            tensor = item
        elif item.number == 9 and item.kind == BYTES:
            plugin, content = _plugin(record, item)
    if plugin == "hparams" and content:
        config.update(_hyper_parameters(record, content))
    elif tensor and tag in _ARGUMENTS:
        config.update(_arguments(record, tensor))
    elif tensor and plugin in ("", "scalars"):
        scalar = _tensor(record, tensor)
    if scalar:
        found.append(Scalar(tag, scalar.place, scalar.kind, scalar.constant))


def _plugin(record: bytes, metadata: Field) -> tuple[str, Field | None]:
    name, content = "", None
    for item in fields(record, metadata.start, metadata.stop):
        if item.number == 1 and item.kind == BYTES:
            for part in fields(record, item.start, item.stop):
                if part.number == 1 and part.kind == BYTES:
                    name = text(record, part)
                elif part.number == 2 and part.kind == BYTES:
                    content = part
    return name, content


def _tensor(record: bytes, tensor: Field) -> Scalar | None:
    """The number in a tensor of one element."""
    kind = 1
    elements = 1
    listed: list[Field] = []
    for item in fields(record, tensor.start, tensor.stop):
        if item.number == 1 and item.kind == VARINT:
            kind = varint(record, item.start, item.stop)
        elif item.number == 2 and item.kind == BYTES:
            elements = _elements(record, item)
        else:
            listed.append(item)
    if elements != 1 or kind not in _PLACED:
        return None
    for item in listed:
        size = item.stop - item.start
        if item.number == 4 and item.kind == BYTES and size == _width(_PLACED[kind]):
            return Scalar("", item.start, _PLACED[kind])
        if item.number in _LISTS:
            layout, alone = _LISTS[item.number]
            if item.kind in (BYTES, alone) and size == _width(layout):
                return Scalar("", item.start, layout)
        elif item.number in _COUNTED and item.kind in (VARINT, BYTES) and _is_one_number(record, item):
            return Scalar("", constant=_whole(varint(record, item.start, item.stop), kind))
    return None


def _is_one_number(record: bytes, item: Field) -> bool:
    return sum(byte < 0x80 for byte in record[item.start : item.stop]) == 1 and record[item.stop - 1] < 0x80


def _elements(record: bytes, shape: Field) -> int:
    found = 1
    for dimension in fields(record, shape.start, shape.stop):
        if dimension.number == 2 and dimension.kind == BYTES:
            sizes = [item for item in fields(record, dimension.start, dimension.stop) if item.number == 1]
            found *= min(varint(record, sizes[-1].start, sizes[-1].stop), 2) if sizes else 0
    return found


def _whole(value: int, kind: int) -> float:
    """A number from a list of integers; half-precision numbers are listed as their bits."""
    if kind == _HALF:
        return float(np.array([value & 0xFFFF], dtype=np.uint16).view(np.float16)[0])
    if kind == _BFLOAT:
        return float(np.array([(value & 0xFFFF) << 16], dtype=np.uint32).view(np.float32)[0])
    return float(signed(value))


def _hyper_parameters(record: bytes, content: Field) -> dict[str, Any]:
    """The values that the hparams plugin stores at the start of a session."""
    found: dict[str, Any] = {}
    for item in fields(record, content.start, content.stop):
        if item.number != 3 or item.kind != BYTES:
            continue
        for entry in fields(record, item.start, item.stop):
            if entry.number == 1 and entry.kind == BYTES:
                key, value = "", None
                for part in fields(record, entry.start, entry.stop):
                    if part.number == 1 and part.kind == BYTES:
                        key = text(record, part)
                    elif part.number == 2 and part.kind == BYTES:
                        value = _json_value(record, part)
                if key and value is not None:
                    found[key] = value
    return found


def _json_value(record: bytes, value: Field) -> Any:
    for item in fields(record, value.start, value.stop):
        if item.number == 2 and item.kind == FIXED64:
            return float(np.frombuffer(record, "<f8", 1, item.start)[0])
        if item.number == 3 and item.kind == BYTES:
            return text(record, item)
        if item.number == 4 and item.kind == VARINT:
            return bool(varint(record, item.start, item.stop))
    return None


def _arguments(record: bytes, tensor: Field) -> dict[str, Any]:
    """The arguments of a trainer, written as text."""
    for item in fields(record, tensor.start, tensor.stop):
        if item.number == 8 and item.kind == BYTES and item.stop - item.start <= TEXT_LIMIT:
            try:
                found = json.loads(text(record, item))
            except (ValueError, RecursionError):
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def _width(kind: str) -> int:
    return 2 if kind == "bfloat16" else np.dtype(kind).itemsize


def numbers(rows: Rows, place: int, kind: str) -> NDArray[np.float64]:
    """The number at a place of each row."""
    content = np.ascontiguousarray(rows[:, place : place + _width(kind)])
    if kind == "bfloat16":  # the upper half of a float32
        return (content.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)[:, 0].astype(np.float64)
    with np.errstate(invalid="ignore"):
        return content.view(kind)[:, 0].astype(np.float64)
