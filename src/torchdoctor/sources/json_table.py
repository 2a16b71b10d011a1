"""One JSON document: a list of objects, lists by name (Keras' history), or either of them at some depth."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.errors import SourceError
from torchdoctor.sources.count_names import counts
from torchdoctor.sources.csv_table import tag_of
from torchdoctor.sources.json_lines import NOT_JSON, as_number, measured
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.opening import ZEROS, beginning, text_of
from torchdoctor.sources.python_literals import as_json, is_printed
from torchdoctor.sources.table import Table, flat
from torchdoctor.sources.tidy import Tidy, layout
from torchdoctor.sources.words import SPLITS, is_measure, words_of

SIZE_LIMIT = 32 * 2**20
"""Characters of the largest document that is read: as objects it takes many times as much memory."""
DEPTH = 5
SHORTEST = 3
"""Fewest numbers in a list that are a curve by themselves."""
AXES = (("x", "y"), ("steps", "values"), ("step", "value"), ("iterations", "values"))
"""Names of pairs of lists that form one curve."""
SPLIT_FRAME = {"columns", "index", "data"}
"""The keys of a DataFrame that pandas wrote with orient="split"."""
_DECODER, _SPACE = json.JSONDecoder(), re.compile(r"\s*")
EMPTY = float("nan")
"""Stands for null in lists that end with it."""
Rows = list[dict[str, float]]


def recognises(path: Path) -> bool:
    """Whether it is a JSON document that contains series of numbers."""
    start = beginning(path, 4096).lstrip()
    if start[:1] not in ("{", "["):
        return False
    try:
        return bool(_tables(document_of(path), path))
    except SourceError:
        return False


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The runs in a document: its largest table, or all tables like it."""
    document = document_of(path)
    found = []
    for item in _tidied(document):
        for run, table in item.tables().items():
            found.append(table.logged(path, "JSON", wish, _scalars(document), run))
    if found:
        return found
    for name, rows in _tables(document, path):
        table = Table()
        for row in rows:
            table.add(row)
        table.blank = range(table.rows) if _has_null(document) else ()
        table.emptied = any(value is EMPTY for value in rows[-1].values())
        logged = table.logged(path, "JSON", wish, _scalars(document))
        found.append(replace(logged, name=name))
    return found


def document_of(path: Path) -> Any:
    """The document in a file; an error says where it breaks, or that it is too large."""
    pieces, size = [], 0
    for piece in text_of(path):
        if piece.startswith(f"\n{ZEROS}"):
            continue
        size += len(piece)
        if size > SIZE_LIMIT:
            raise SourceError(f"{path} is a JSON document of more than {SIZE_LIMIT // 2**20} MB: write JSON Lines.")
        pieces.append(piece)
    try:
        text = "".join(pieces)
        return _last_written(as_json(text) if is_printed(text) else text)
    except RecursionError as error:
        raise SourceError(
            f"{path} is JSON that is nested too deeply to be a log, with hundreds of lists or objects inside each "
            "other. Write one object per line, as JSON Lines."
        ) from error
    except NOT_JSON as error:
        place = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise SourceError(f"{path} is not a complete JSON document: it breaks{place}. Was it cut off?") from error


def _last_written(text: str) -> Any:
    """The document in a text; of lists that were appended to the file each time they grew, the last one.

    >>> _last_written('[{"loss": 3}][{"loss": 3}, {"loss": 2}]')
    [{'loss': 3}, {'loss': 2}]
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        sizes, place, found = [0], _start(text, 0), None
        while error.msg == "Extra data" and place < len(text) and min(sizes) >= 0:
            try:
                found, place = _DECODER.raw_decode(text, place)
            except json.JSONDecodeError:
                break
            sizes.append(len(found) if isinstance(found, list) else -1)
            place = _start(text, place)
        if place < len(text) or min(sizes) < 0 or sizes[-1] < max(sizes):
            raise
        return found


def _start(text: str, place: int) -> int:
    """Where the next document begins."""
    found = _SPACE.match(text, place)
    return found.end() if found else place


def is_json_lines(path: Path) -> bool:
    """Whether the first line is a document by itself: then the file is not one document that breaks at line 2."""
    try:
        json.loads(beginning(path, 4096).split("\n")[0])
    except NOT_JSON:
        return False
    return True


def _tables(document: Any, path: Path) -> list[tuple[str, Rows]]:
    """The name and rows of each run."""
    found = [(name, rows) for name, value in _candidates(document) if (rows := _table(value, path))]
    if not found:
        return []
    best = max((rows for _, rows in found), key=_size)
    same = [(name, rows) for name, rows in found if _size(rows) * 20 >= _size(best) and _names(rows) == _names(best)]
    return [(name or path.name, rows) for name, rows in same] if len(same) > 1 else [(path.name, best)]


def _tidied(document: Any) -> Iterator[Tidy]:
    """The first list in a document whose objects hold a single value each."""
    for _, value in _candidates(document):
        objects = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
        columns = layout(list(objects[0])) if objects else None
        if columns is not None:
            tidy = Tidy(columns)
            for item in objects:
                tidy.add(item)
            yield tidy
            return


def _size(rows: Rows) -> int:
    return sum(map(len, rows))


def _names(rows: Rows) -> set[str]:
    return {name for row in rows for name in row}


def _candidates(value: Any, name: str = "", depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """Everything in the document that may be a table, the whole first; a table is not searched for others."""
    yield name, value
    if isinstance(value, dict) and depth > 0 and not _table(value, None):
        for key, inner in value.items():
            if isinstance(inner, dict | list):
                yield from _candidates(inner, f"{name}/{key}" if name else str(key), depth - 1)


def _table(value: Any, path: Path | None) -> Rows:
    """The rows of a table, empty if it is not one."""
    if isinstance(value, list):
        return _of_list(value, path)
    if not isinstance(value, dict):
        return []
    if set(value) == SPLIT_FRAME and _is_frame(value["columns"], value["data"]):
        return [measured(dict(zip(value["columns"], row, strict=True))) for row in value["data"]]
    keyed = _of_keys(value)
    columns = {} if keyed else _columns(value)
    return _of_columns(columns) if columns else keyed


def _is_frame(names: Any, rows: Any) -> bool:
    """Whether rows and names belong together, as in a DataFrame written with orient="split"."""
    fitting = isinstance(names, list) and isinstance(rows, list) and bool(rows)
    return fitting and all(isinstance(row, list) and len(row) == len(names) for row in rows)


def _of_list(value: Sequence[Any], path: Path | None) -> Rows:
    if value and all(isinstance(item, list) and len(item) == 3 for item in value):  # TensorBoard's download
        tag = (tag_of(path) if path is not None else None) or "value"
        triples = ([as_number(cell) for cell in item] for item in value)
        return [{"step": step, tag: cell} for _, step, cell in triples if step is not None and cell is not None]
    if path is not None and is_measure(path.stem) and _are_numbers(value):  # losses.json, only a list
        return [{path.stem: number} for item in value if (number := as_number(item)) is not None]
    rows = [measured(item) for item in value if isinstance(item, dict)]
    rows = [row for row in rows if row]
    return rows if len(rows) * 2 > len(value) else []


def _are_numbers(value: Sequence[Any]) -> bool:
    return len(value) >= SHORTEST and not any(isinstance(item, list | dict) for item in value) and _is_series(value)


def _of_keys(value: Mapping[str, Any]) -> Rows:
    """Rows stored under their numbers: {"0": {"loss": ..}, "1": ..} or {"epoch_1": ..}."""
    rows: Rows = []
    for key, inner in value.items():
        words = words_of(key)
        number = as_number(words[-1]) if words else None
        if number is None or not isinstance(inner, dict):
            return []
        name = words[0] if len(words) == 2 and counts(words[0]) else "row"
        row = measured(inner)
        if not row:
            return []
        rows.append({"step" if name == "row" and not any(map(counts, row)) else name: number, **row})
    return rows


def _columns(value: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Lists of numbers by name; names are joined with the split that they are stored under."""
    found = _by_split(value)
    for key, inner in value.items():
        if isinstance(inner, dict) and inner and all(str(name).isdigit() for name in inner):  # as pandas writes it
            inner = list(inner.values())
        elif isinstance(inner, dict) and (pairs := _pairs(inner)):
            found[str(key)] = pairs
        elif isinstance(inner, dict) and (
            (words_of(key)[:1] or ("",))[0] in SPLITS or any(_pairs(each) for each in inner.values())
        ):
            found.update({f"{key}/{name}": cells for name, cells in _columns(inner).items()})
        if isinstance(inner, list) and inner and _is_series(inner):
            found[str(key)] = inner
    if found:  # values measured at the same time, stored as one object each time
        longest = max(map(len, found.values()))
        for key, inner in value.items():
            if isinstance(inner, list) and len(inner) == longest and all(isinstance(item, dict) for item in inner):
                rows = [measured(item) for item in inner]
                for name in rows[0]:
                    found.setdefault(f"{key}/{name}", [row.get(name) for row in rows])
    return found


def _by_split(value: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Lists of objects, one list per split: {"train": [{"loss": ..}, ..], "val": [{"loss": ..}, ..]}.

    >>> _by_split({"train": [{"loss": 0.9}, {"loss": 0.5}], "val": [{"loss": 1.0}, {"loss": 1.2}]})
    {'train/loss': [0.9, 0.5], 'val/loss': [1.0, 1.2]}
    """
    lists = {
        str(key): [measured(item) for item in inner]
        for key, inner in value.items()
        if (words_of(str(key)) or ("",))[0] in SPLITS
        and isinstance(inner, list)
        and inner
        and all(isinstance(item, dict) for item in inner)
    }
    if len(lists) < 2:
        return {}
    return {f"{key}/{name}": [row.get(name) for row in rows] for key, rows in lists.items() for name in rows[0]}


def _pairs(value: Any) -> list[Any]:
    """A curve stored as the values of its axes: {"x": [..], "y": [..]}."""
    if isinstance(value, dict):
        for steps, values in AXES:
            one, other = value.get(steps), value.get(values)
            if isinstance(one, list) and isinstance(other, list) and one and len(one) == len(other):
                return [list(pair) for pair in zip(one, other, strict=True)]
    return []


def _is_series(cells: Sequence[Any]) -> bool:
    known = len(cells) - _empty_at_the_end(cells)
    return sum(1 for cell in cells if _value(cell) is not None) * 2 > known


def _value(cell: Any) -> tuple[float | None, float] | None:
    """The step, if given, and the value of one entry of a list."""
    if isinstance(cell, list) and len(cell) == 2:
        step, value = as_number(cell[0]), as_number(cell[1])
        return None if step is None or value is None else (step, value)
    value = as_number(cell)
    return None if value is None else (None, value)


def _of_columns(columns: Mapping[str, Sequence[Any]]) -> Rows:
    """Rows from lists; a shorter list was written less often, and is spread over the longest."""
    longest = max(map(len, columns.values()))
    rows: Rows = [{} for _ in range(longest)]
    paired: dict[float, dict[str, float]] = {}
    for name, cells in columns.items():
        for place, cell in enumerate(cells):
            value = _value(cell)
            if value is None:
                continue
            if value[0] is not None:
                paired.setdefault(value[0], {})[name] = value[1]
            else:
                rows[math.ceil((place + 1) * longest / len(cells)) - 1][name] = value[1]
    whole = {name: cells for name, cells in columns.items() if len(cells) == longest and not counts(name)}
    lost = min(map(_empty_at_the_end, whole.values()), default=0)
    if lost >= SHORTEST and not any(rows[place] for place in range(longest - lost, longest)):  # NaN, as null
        rows[longest - lost :] = [dict.fromkeys(whole, EMPTY)] * lost
    return [{"step": step, **row} for step, row in sorted(paired.items())] + [row for row in rows if row]


def _empty_at_the_end(cells: Sequence[Any]) -> int:
    """How many cells of a list are null up to its end.

    >>> _empty_at_the_end([2.0, None, 1.5, None, None])
    2
    """
    return next((place for place, cell in enumerate(reversed(cells)) if cell is not None), len(cells))


def _has_null(value: Any, depth: int = DEPTH) -> bool:
    """Whether null stands anywhere in a document."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(item is None or (depth > 0 and _has_null(item, depth - 1)) for item in inner)


def _scalars(document: Any) -> dict[str, Any]:
    """The values next to the tables: mostly hyper-parameters."""
    if not isinstance(document, dict):
        return {}
    return {name: value for name, value in flat(document) if not isinstance(value, list | dict)}
