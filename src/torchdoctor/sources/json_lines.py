"""JSON Lines: one object a line, numbers at any depth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from torchdoctor.sources.cells import number
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.opening import beginning, ends_cleanly, lines
from torchdoctor.sources.phases import is_phase_column, named_in_phase, phase_of
from torchdoctor.sources.table import Table, flat
from torchdoctor.sources.tidy import Tidy, layout

PROBE, PROBE_SIZE = 50, 2**22
"""Lines, and characters, that are looked at."""
CONFIGURATION = frozenset({"config", "args", "hparams", "hyperparameters", "params", "settings", "cfg"})
HUGE = 10**300
NOT_JSON = (ValueError, RecursionError, OverflowError, TypeError, KeyError)


def recognises(path: Path) -> bool:
    """Whether most of the first lines are objects, two or more, and some of them hold numbers."""
    if not beginning(path, 4096).lstrip().startswith("{"):
        return False
    found, size = [], 0
    for _, line in islice(lines(path), PROBE):
        size += len(line)
        if size > PROBE_SIZE:
            break
        if line.strip():
            found.append(loaded(line))
    objects = [item for item in found if isinstance(item, dict)]
    return len(objects) > 1 and len(objects) * 2 > len(found) and any(measured(item) for item in objects)


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The run in a file of JSON Lines."""
    table, config = Table(), {}
    tidy: Tidy | None = None
    unread, last = 0, 0
    for line, text in table.whole(path):
        if not text.strip():
            continue
        item = loaded(text)
        last = line
        if isinstance(item, dict):
            config.update(configured(item))
            if tidy is None and not table.rows and (found := layout(list(item))) is not None:
                tidy = Tidy(found)
            if tidy is not None:
                tidy.add(item)
                continue
            row = measured(item)
            if row:
                table.add(row)
        else:
            unread = line
            table.skip(line)
    if unread == last and unread and not ends_cleanly(path):
        table.tear()
    tidied = tidy.tables(table) if tidy is not None else {}
    if tidied:
        return [each.logged(path, "JSON Lines", wish, config, run) for run, each in tidied.items()]
    return [table.logged(path, "JSON Lines", wish, config)]


def loaded(text: str) -> Any:
    """A line as data; None where it is no JSON."""
    try:
        return json.loads(text)
    except NOT_JSON:
        return None


def configured(item: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters in an object that has some under a name of their own."""
    return {
        name: value
        for key, inner in item.items()
        if key in CONFIGURATION and isinstance(inner, dict)
        for name, value in flat(inner)
    }


def measured(item: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an object by name; where it says of what phase it is, the names say so too.

    >>> measured({"mode": "val", "epoch": 2, "loss": "NaN", "note": "x", "ok": True})
    {'epoch': 2.0, 'val/loss': nan}
    """
    if _are_plain(tuple(item)) and all(type(value) is float for value in item.values() if type(value) is not int):
        return {name: float(value) for name, value in item.items() if type(value) is float or abs(value) < HUGE}
    phase = next((value for key, value in item.items() if is_phase_column(key) and phase_of(value)), "")
    found: dict[str, float] = {}
    for name, value in flat({key: inner for key, inner in item.items() if key not in CONFIGURATION}):
        read = as_number(value)
        if read is not None:
            found[named_in_phase(name, phase) if phase else name] = read
    return found


@lru_cache(maxsize=256)
def _are_plain(names: tuple[str, ...]) -> bool:
    """Whether nothing among these names says something of the others."""
    return not any(name in CONFIGURATION or is_phase_column(name) for name in names)


def as_number(value: object) -> float | None:
    """A number that is written as one or as text; None for all else."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) < HUGE else None
    return number(value) if isinstance(value, str) and len(value) < 64 else None
