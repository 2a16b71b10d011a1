"""The numbers in a row that a logger stored as JSON.

>>> numbers({"loss": 2.5, "note": "hi", "eval": {"loss": "NaN"}, "hist": {"_type": "histogram", "count": 3}})
{'loss': 2.5, 'eval/loss': nan}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torchdoctor.sources.cells import number
from torchdoctor.sources.table import flat

LENGTH = 40
_NUMBER = re.compile(r"[-+]?(?:\.?\d[\d.eE+-]*|nan|inf|infinity)\Z", re.IGNORECASE)
"""Text that may be a number and nothing else: no unit, no date."""


def numbers(row: Mapping[str, Any], without: Iterable[str] = ()) -> dict[str, float]:
    """The numbers in a row, by name; nested names are joined; images, tables and histograms are left out."""
    left_out = frozenset(without)
    found: dict[str, float] = {}
    for name, value in row.items():
        if name in left_out:
            continue
        if isinstance(value, dict):
            plain = value if "_type" not in value else {}
            leaves = flat({name: plain})
        else:
            leaves = iter([(name, value)])
        for path, leaf in leaves:
            given = number_of(leaf)
            if given is not None:
                found[path] = given
    return found


def number_of(value: object) -> float | None:
    """A value as a number, None if it is not one; some loggers write numbers as text.

    >>> number_of(3), number_of("Infinity"), number_of("2.5e-3"), number_of("adam"), number_of(10**400)
    (3.0, inf, 0.0025, None, inf)
    """
    if type(value) is float:
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return number(value) if isinstance(value, str) and len(value) <= LENGTH and _NUMBER.match(value) else None
