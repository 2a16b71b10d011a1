"""Trackio: the SQLite database of a project, or in old versions one database with all projects.

A row of its table ``metrics`` holds the metrics of one call as JSON.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.sources.json_numbers import numbers
from torchdoctor.sources.logged import Logged
from torchdoctor.sources.sqlite_store import Store, columns, opened
from torchdoctor.sources.table import Table, flat

FORMAT = "Trackio"
RUNS_LIMIT = 10_000
STEP = "_step"
_NEEDED = frozenset({"run_name", "metrics", "timestamp"})
_IDENTITY = ("project_name", "run_id", "run_name")
"""Columns that distinguish runs, if the version has them."""


def recognises(path: Path) -> bool:
    """Whether a file is a Trackio database."""
    return columns(path, "metrics") >= _NEEDED


def read(path: Path) -> list[Logged]:
    """The runs of a project, or of all projects of an old version."""
    with opened(path) as store:
        names = [name for name in _IDENTITY if name in store.columns("metrics")]
        query = f"SELECT {', '.join(names)} FROM metrics GROUP BY {', '.join(names)} ORDER BY min(rowid)"
        runs = store.rows(f"{query} LIMIT {RUNS_LIMIT}")
        return [_run(store, path, dict(zip(names, run, strict=True))) for run in runs]


def _run(store: Store, path: Path, identity: dict[str, Any]) -> Logged:
    with_step = "step" in store.columns("metrics")
    same, values = _matching(identity)
    query = f"SELECT {'step' if with_step else 'NULL'}, metrics FROM metrics WHERE {same}"
    rows = store.rows(query, values, "timestamp, rowid")
    table = Table()
    for number, (step, metrics) in enumerate(rows, 1):
        row = _json(metrics)
        if row is None:
            table.skip(number)
        else:
            table.add({STEP: step if isinstance(step, int) else table.rows, **numbers(row)})
    if store.damage:
        table.notes.append(f"the database is damaged ({store.damage}): only the undamaged part was read")
    found = table.logged(path, FORMAT, config=_config(store, identity))
    points = {name: points for name, points in found.points.items() if name != STEP}
    project = identity.get("project_name")
    name = str(identity["run_name"])
    return replace(found, name=f"{project}/{name}" if project else name, points=points)


def _config(store: Store, identity: dict[str, Any]) -> dict[str, Any]:
    there = store.columns("configs")
    same, values = _matching({name: value for name, value in identity.items() if name in there})
    if not same or "config" not in there:
        return {}
    found: dict[str, Any] = {}
    for (text,) in store.rows(f"SELECT config FROM configs WHERE {same}", values, "rowid"):
        found.update(_json(text) or {})
    return {name: value for name, value in flat(found) if not name.startswith("_")}


def _matching(identity: dict[str, Any]) -> tuple[str, list[Any]]:
    """A condition for the rows of a run, and its values: names are fixed, values are never part of the query."""
    return " AND ".join(f"{name} IS ?" for name in identity), list(identity.values())


def _json(text: object) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
