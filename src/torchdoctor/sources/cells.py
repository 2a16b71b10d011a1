"""Reads numbers in cells and words, as people and programs write them.

>>> number("3.5e-4"), number(" 1,024 "), number("12 %"), number("0,25", comma=True), number("n/a")
(0.00035, 1024.0, 12.0, 0.25, None)
>>> number("tensor(0.53, device='cuda:0')"), number("250 ms"), number("1.5GiB")
(0.53, 0.25, 1610612736.0)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ABSENT = frozenset({"", "none", "null", "na", "n/a", "-", "--", "nil", "?", "<na>", "undefined"})
UNITS = {
    **{"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "min": 60.0, "h": 3600.0},
    **{"%": 1.0, "x": 1.0, "k": 1e3, "gib": 2.0**30, "gb": 1e9, "g": 2.0**30, "mib": 2.0**20, "mb": 1e6, "m": 2.0**20},
    **{"kib": 1024.0, "kb": 1e3, "b": 1.0, "bytes": 1.0},
}
"""The factor for each unit: results are in seconds and bytes."""
LENGTH = 400
"""Most characters of a cell that may be a number with something around it."""

_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\Z")
_WRAPPED = re.compile(r"(?:tensor|array|(?:np\.|numpy\.)?float\d*|Parameter|Array|DeviceArray)\(\[?\s*([^,\])]+)")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?\Z")
_THOUSANDS_DOTS = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+(?:,\d+)?\Z")
_UNIT = re.compile(r"([-+]?[\d.,]+(?:[eE][-+]?\d+)?)\s*([a-zA-Zµ%]+)\Z")
_ODD = re.compile(r"[-+]?(?:1\.#(?:IND|QNAN|SNAN|INF)0*|nan\((?:ind|snan)\))\Z")
_NON_FINITE = re.compile(r"[-+]?(?:nan|inf|infinity)\Z", re.IGNORECASE)


def number(text: str, comma: bool = False) -> float | None:
    """The number in a cell, None if there is none; `comma` if the cell uses a decimal comma."""
    text = text.strip()
    if _PLAIN.match(text) or _NON_FINITE.match(text):
        return float(text)
    if _ODD.match(text):
        return odd_number(text)
    if len(text) > LENGTH or text.lower() in ABSENT:
        return None
    wrapped = _WRAPPED.match(text) or re.match(r"\[\s*([^,\]]+)\s*\]\Z", text)
    if wrapped:
        return number(wrapped[1], comma)
    if "," in text and (written := _with_commas(text, comma)) is not None:
        return written
    united = _UNIT.match(text)
    if united and united[2].lower() in UNITS:
        value = number(united[1], comma)
        return None if value is None else value * UNITS[united[2].lower()]
    return None


def odd_number(text: str) -> float:
    """The value of what C on Windows prints for NaN and infinity.

    >>> odd_number("-1.#IND"), odd_number("1.#INF00"), odd_number("-nan(ind)")
    (nan, inf, nan)
    """
    return float("-inf" if text.startswith("-") else "inf") if "INF" in text.upper() else float("nan")


def _with_commas(text: str, comma: bool) -> float | None:
    if comma and _THOUSANDS_DOTS.match(text):
        return float(text.replace(".", "").replace(",", "."))
    if not comma and _THOUSANDS.match(text):
        return float(text.replace(",", ""))
    decimal = text.replace(",", ".", 1)
    return float(decimal) if _PLAIN.match(decimal) else None


def column(cells: Sequence[str], comma: bool = False) -> tuple[NDArray[np.float64], NDArray[np.bool_], int]:
    """The numbers in many cells, which cells hold one, and how many hold something else.

    >>> values, there, others = column(["1.5", "", "nan", "best"])
    >>> values.tolist(), there.tolist(), others
    ([1.5, 0.0, nan, 0.0], [True, False, True, False], 1)
    """
    try:
        return np.array(cells, dtype=np.float64), np.ones(len(cells), dtype=bool), 0
    except ValueError:
        pass
    values = np.zeros(len(cells))
    there = np.zeros(len(cells), dtype=bool)
    others = 0
    for place, cell in enumerate(cells):
        value = number(cell, comma)
        if value is not None:
            values[place], there[place] = value, True
        elif cell.strip().lower() not in ABSENT:
            others += 1
    return values, there, others
