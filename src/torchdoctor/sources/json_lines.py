"""JSON Lines: one object per line, with numbers at any depth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from torchdoctor.records import names_text
from torchdoctor.sources.cells import number
from torchdoctor.sources.count_names import counts
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.opening import beginning, ends_cleanly, lines
from torchdoctor.sources.phases import is_phase_column, is_run, named_in_phase, phase_of
from torchdoctor.sources.several import runs_of
from torchdoctor.sources.table import Table, flat
from torchdoctor.sources.tidy import Tidy, layout

PROBE, PROBE_SIZE = 50, 2**22
"""Lines, and characters, that are examined."""
CONFIGURATION = frozenset({"config", "args", "hparams", "hyperparameters", "params", "settings", "cfg"})
HUGE = 10**300
NOT_JSON = (ValueError, RecursionError, OverflowError, TypeError, KeyError)


def recognises(path: Path) -> bool:
    """Whether at least two and more than half of the first lines are objects, and some of them hold numbers."""
    if not beginning(path, 4096).lstrip().startswith("{"):
        return False
    found = [loaded(line) for _, line in _first(path)]
    objects = [item for item in found if isinstance(item, dict)]
    return len(objects) > 1 and len(objects) * 2 > len(found) and any(measured(item) for item in objects)


def _first(path: Path) -> Iterator[tuple[int, str]]:
    """The first lines that are not empty."""
    size = 0
    for place, line in islice(lines(path), PROBE):
        size += len(line)
        if size > PROBE_SIZE:
            break
        if line.strip():
            yield place, line


def _remarks_on_names(path: Path) -> list[str]:
    """A note on names given twice in the first lines."""
    for line, text in _first(path):
        names = repeated(text)
        if names:
            return [f"{names_text(names)} is given twice in one object, as in line {line}: the later value is used"]
    return []


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The run in a file of JSON Lines."""
    table, config = Table(), {}
    tidy: Tidy | None = None
    unread, last = 0, 0
    nulls: list[int] = []
    for line, text in table.whole(path):
        if not text.strip():
            continue
        item = loaded(text)
        last = line
        if isinstance(item, dict) and not _is_beyond(item):
            config.update(configured(item))
            if tidy is None and not table.rows and (found := layout(list(item))) is not None:
                tidy = Tidy(found)
            if tidy is not None:
                tidy.add(item)
                continue
            row = {**measured(item), **_named(item, table)}
            if row:
                nulls += [table.rows] if "null" in text and None in dict(flat(item)).values() else []
                table.add(row)
        else:
            unread = line
            table.skip(line)
    if unread == last and unread and not ends_cleanly(path):
        table.tear()
    table.notes += _remarks_on_names(path)
    tidied = tidy.tables(table) if tidy is not None else {}
    if tidied:
        return [each.logged(path, "JSON Lines", wish, config, run) for run, each in tidied.items()]
    table.blank = nulls
    parts = runs_of(table, wish.mapping.values() if wish is not None else ())
    return [part.logged(path, "JSON Lines", wish, config, name) for name, part in parts]


def _named(item: Mapping[str, Any], table: Table) -> dict[str, float]:
    """Numbers that stand for the names of an object's run."""
    words = {name: value for name, value in item.items() if isinstance(value, str) and is_run(name)}
    return {name: float(table.coded(name, [word])[0]) for name, word in words.items() if number(word) is None}


def loaded(text: str) -> Any:
    """A line as data; None if it is not JSON."""
    try:
        return json.loads(text)
    except NOT_JSON:
        return None


def repeated(text: str) -> list[str]:
    """The names that an object in a line gives more than once: JSON silently keeps the last.

    >>> repeated('{"step": 1, "loss": 2.5, "loss": 3.5}')
    ['loss']
    """
    found: list[str] = []

    def paired(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        found.extend(name for name in dict.fromkeys(names) if names.count(name) > 1 and name not in found)
        return dict(pairs)

    try:
        json.loads(text, object_pairs_hook=paired)
    except NOT_JSON:
        return []
    return found


def _is_beyond(item: Mapping[str, Any]) -> bool:
    """Whether a count in an object is too large to be a step.

    >>> _is_beyond({"step": 10**400, "loss": 2.0}), _is_beyond({"step": 3, "loss": 2.0})
    (True, False)
    """
    return any(type(value) is int and abs(value) >= HUGE and counts(name) for name, value in item.items())


def configured(item: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that an object holds under a name such as "config"."""
    return {
        name: value
        for key, inner in item.items()
        if key in CONFIGURATION and isinstance(inner, dict)
        for name, value in flat(inner)
    }


def measured(item: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an object by name; if the object names its phase, the names include it.

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
    """Whether none of these names marks a phase or a configuration."""
    return not any(name in CONFIGURATION or is_phase_column(name) for name in names)


def as_number(value: object) -> float | None:
    """A number, given as a number or as text; None for anything else."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) < HUGE else None
    return number(value) if isinstance(value, str) and len(value) < 64 else None
