"""Weights & Biases without its server: ``.wandb`` files, their folders, and the histories of old versions.

A ``.wandb`` file is a LevelDB log of protocol-buffer records. W&B offers no reader for it; this one reads the history
and the configuration. The files of one resumed run are one run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchdoctor.errors import SourceError
from torchdoctor.sources import plain_yaml
from torchdoctor.sources.json_numbers import numbers
from torchdoctor.sources.leveldb_log import LogFile, begins_like_one
from torchdoctor.sources.logged import Logged
from torchdoctor.sources.table import Table, flat
from torchdoctor.sources.wire import BYTES, VARINT, Field, fields, text, varint

FORMAT = "W&B"
_HISTORY, _CONFIG, _RUN = 2, 5, 17
_RUN_CONFIG, _DISPLAY_NAME = 4, 8
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16
_NAMED = (_KEY << 3 | BYTES, _NESTED_KEY << 3 | BYTES)
_VALUED = bytes([(_VALUE_JSON << 3 | BYTES) & 0x7F | 0x80, _VALUE_JSON >> 4])
STEP = "_step"
_CLOCKS = ("_runtime", "_timestamp", "_wandb")
_RUN_FOLDERS = ("offline-run-*", "run-*", "dryrun-*")
_HISTORY_NAME = "wandb-history.jsonl"
_LINE_LIMIT = 2**20


def recognises(path: Path) -> bool:
    """Whether a file is a ``.wandb`` file or an old history, or a folder holds folders of such runs."""
    if path.is_dir():
        return any(True for _ in _files_below(path))
    return begins_like_one(path) or _is_history(path)


def read(path: Path) -> list[Logged]:
    """The run in a file, or all runs of a folder ``wandb``."""
    runs: dict[str, _Run] = {}
    for file in _files_below(path) if path.is_dir() else [path]:
        run = runs.setdefault(_identity(file), _Run(file))
        run.path, run.table.torn = file, False
        if begins_like_one(file):
            _read_log(file, run)
        else:
            _read_history(file, run)
    if runs and all(run.table.skipped and not run.table.rows for run in runs.values()):
        raise SourceError(f"{path} is damaged: none of its values can be read.")
    return [_logged(run) for run in runs.values()]


def _identity(file: Path) -> str:
    """What a resumed run keeps: the end of the names of its file and of its folder."""
    folder = file.parent.parent if file.parent.name == "files" else file.parent
    return (file.stem if file.suffix == ".wandb" else folder.name).rpartition("-")[2]


def _files_below(folder: Path) -> Iterator[Path]:
    """The logs of the run folders in a folder, oldest first: their names begin with the date."""
    places = {place for pattern in _RUN_FOLDERS for place in folder.glob(pattern)}
    for place in sorted(places, key=lambda place: place.name.removeprefix("offline-")):
        if place.is_dir() and not place.is_symlink():
            logs = [file for file in sorted(place.glob("*.wandb")) if begins_like_one(file)]
            old = [file for file in (place / "files" / _HISTORY_NAME, place / _HISTORY_NAME) if file.is_file()]
            yield from logs or old[:1]


@dataclass
class _Run:
    """What was gathered of a run."""

    path: Path
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    table: Table = field(default_factory=Table)
    unit: str = "line"
    """What its file consists of."""


def _logged(run: _Run) -> Logged:
    found = run.table.logged(run.path, FORMAT, config=dict(flat(run.config)))
    points = {name: points for name, points in found.points.items() if name != STEP}
    return replace(found, name=run.name, points=points, unit=run.unit)


def _read_log(path: Path, run: _Run) -> None:
    run.name, run.unit = run.name or path.stem, "record"
    file = LogFile(path)
    for number, record in enumerate(file.records(), 1):
        try:
            for item in fields(record, 0, len(record)):
                if item.kind == BYTES:
                    _take(record, item, run)
        except ValueError:
            file.damaged(number)
    table = run.table
    table.first_skipped = file.first_skipped if table.first_skipped is None else table.first_skipped
    table.skipped += file.skipped
    if file.lost:
        lost = f"about {file.lost_records:,} records ({file.lost:,} bytes)"
        table.notes.append(f"damage in {path.name} cost {lost}: the rest of the damaged block")
    table.torn = file.torn


def _take(record: bytes, item: Field, run: _Run) -> None:
    if item.number == _HISTORY:
        _take_history(record, item, run.table)
    elif item.number == _CONFIG:
        _take_config(record, item, run.config)
    elif item.number == _RUN:
        for part in fields(record, item.start, item.stop):
            if part.kind == BYTES and part.number == _DISPLAY_NAME:
                run.name = text(record, part)
            elif part.kind == BYTES and part.number == _RUN_CONFIG:
                _take_config(record, part, run.config)


def _take_history(record: bytes, item: Field, table: Table) -> None:
    row: dict[str, float] = {STEP: table.rows}
    other: dict[str, Any] = {}
    for part in fields(record, item.start, item.stop):
        if part.number == 1 and part.kind == BYTES:
            plain = _plain(record, part)
            if plain is not None:
                row[plain[0]] = plain[1]
            else:
                path, value = _entry(record, part)
                if path:
                    _put(other, path, value)
        elif part.number == 2 and part.kind == BYTES:
            for number in fields(record, part.start, part.stop):
                if number.number == 1 and number.kind == VARINT:
                    row[STEP] = varint(record, number.start, number.stop)
    if other:
        row.update(numbers(other))
    for name in _CLOCKS:
        row.pop(name, None)
    table.add(row)


def _plain(record: bytes, item: Field) -> tuple[str, float] | None:
    """A short name with a number, like almost all entries, in a tenth of the time; None for anything else."""
    start, stop = item.start, item.stop
    if stop - start < 6 or record[start] not in _NAMED or record[start + 1] >= 0x80:
        return None
    end = start + 2 + record[start + 1]
    if end + 3 >= stop or record[end : end + 2] != _VALUED or record[end + 2] != stop - end - 3 or stop - end > 0x80:
        return None
    try:
        return record[start + 2 : end].decode(), float(record[end + 3 : stop])
    except ValueError:
        return None


def _take_config(record: bytes, item: Field, config: dict[str, Any]) -> None:
    for part in fields(record, item.start, item.stop):
        if part.number == 1 and part.kind == BYTES:
            path, value = _entry(record, part)
            if path and path[0] != "_wandb":
                _put(config, path, value)


def _entry(record: bytes, item: Field) -> tuple[tuple[str, ...], Any]:
    """The path of names of an entry, and its value."""
    path: list[str] = []
    value: Any = None
    for part in fields(record, item.start, item.stop):
        if part.kind == BYTES and part.number in (_KEY, _NESTED_KEY):
            path.append(text(record, part))
        elif part.kind == BYTES and part.number == _VALUE_JSON:
            value = _json(record[part.start : part.stop])
    return tuple(path), value


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _put(row: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        inner = row.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        row = inner
    row[path[-1]] = value


def _is_history(path: Path) -> bool:
    """Whether a file is a history in JSON Lines, as W&B before 0.10 wrote it."""
    with path.open("rb") as file:
        start = file.readline(_LINE_LIMIT)
    row = _json(start) if start.startswith(b"{") else None
    return isinstance(row, dict) and "_step" in row and ("_runtime" in row or "_timestamp" in row)


def _read_history(path: Path, run: _Run) -> None:
    folder = path.parent.parent if path.parent.name == "files" else path.parent
    table = run.table
    run.name = run.name or folder.name
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE_LIMIT):
            number += 1
            row = _json(line)
            if isinstance(row, dict):
                table.add(numbers({STEP: table.rows, **row}, _CLOCKS))
            elif not line.endswith(b"\n"):
                table.torn = True
            elif line.strip():
                table.skip(number)
    for config in (path.parent / "config.yaml", folder / "config.yaml"):
        if config.is_file():
            kept = {
                name.removesuffix("/value"): value
                for name, value in plain_yaml.read(config).items()
                if name.endswith("/value")
            }
            run.config = {name: value for name, value in kept.items() if name != "_wandb"}
            break
