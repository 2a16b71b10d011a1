"""Records as strict JSON, one per line.

>>> encode({"type": "vitals", "step": 3, "vitals": {"loss": float("nan"), "grad_norm": 1.5}})
'{"type": "vitals", "step": 3, "vitals": {"loss": "NaN", "grad_norm": 1.5}}'
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import chain
from json.encoder import encode_basestring_ascii
from typing import Any

from torchdoctor.records import Record
from torchdoctor.stretch import Stretch


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


def line_of(record: Record) -> bytes:
    """One record as a line of the journal."""
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


def lines_of(stretch: Stretch) -> list[bytes]:
    """The same as `line_of` for each step of a stretch of finite numbers, all at once."""
    names = (encode_basestring_ascii(name).replace("%", "%%") for name in stretch.columns)
    form = '{"type": "vitals", "step": %d, "vitals": {' + ", ".join(f"{name}: %r" for name in names) + "}}\n"
    columns = [stretch.steps.tolist(), *(values.tolist() for values in stretch.columns.values())]
    return (form * len(stretch) % tuple(chain.from_iterable(zip(*columns, strict=True)))).encode().splitlines(True)
