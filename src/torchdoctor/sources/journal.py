"""Our own journal, read back: hostile or damaged lines are left out and counted, nothing of them reaches the chart.

The file is read twice: once by `read`, which checks every line and learns where sessions begin, and once by whoever
iterates the run. A file that was opened again by a later session (a resumed or restarted run) is one run: the later
session replaces the steps that it repeats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from torchdoctor.records import Record
from torchdoctor.sources.run import Run

LINE_LIMIT = 16 * 2**20
"""Bytes of the longest line that is parsed; a record of a hundred thousand tensors fits."""
STEP_LIMIT = 10**12
NOTHING = -2
NAMES_LIMIT = 1000
"""Different vitals in one run: each costs the chart tens of kilobytes."""
NAME_LENGTH = 256
ROW_LIMIT = 200_000
"""Tensors in one row: the chart keeps 64 rows of a vital."""
TEXT_LIMIT = 10_000
REMARKS_LIMIT = 1000
"""Notes, origins and contexts in one session: the chart keeps them all."""
PROBE = 1000
"""Lines that are tried before a file is taken for something else than a journal."""
NON_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
NUMERIC_FIELDS = ("value", "limit", "confidence", "probability")
MEASURED = frozenset({"vitals", "validation", "tensors"})
KNOWN = MEASURED | {"header", "context", "groups", "origin", "symptom", "diagnosis", "phase", "note", "end"}


def recognises(path: Path) -> bool:
    """Whether one of the first lines is a record of ours."""
    return any(record["type"] in KNOWN for record in _records(path, _Reading(), lines=PROBE))


def read(path: Path) -> Run:
    """Check a journal and say what is in it."""
    reading = _Reading()
    sessions: list[_Session] = [_Session()]
    header: Record = {}
    for record in _records(path, reading):
        kind = record["type"]
        if kind == "header":
            header = record
            sessions.append(_Session())
        elif kind == "vitals":
            session = sessions[-1]
            session.first_step = record["step"] if session.first_step is None else session.first_step
            session.last_step = record["step"]
    cuts = _cuts(sessions)
    return Run(
        path=path,
        header=header,
        step=max(min(session.last_step, cut - 1) for session, cut in zip(sessions, cuts, strict=True)),
        skipped=reading.skipped,
        first_skipped=reading.first_skipped,
        torn=reading.torn,
        sessions=max(1, len(sessions) - 1),
        open=partial(_replay, path, cuts),
    )


@dataclass(slots=True)
class _Session:
    """From one header to the next."""

    first_step: int | None = None
    last_step: int = -1


def _cuts(sessions: list[_Session]) -> list[int]:
    """For each session the step from which a later one has the say; `NOTHING` where that is all of it."""
    cuts: list[int] = []
    cut = STEP_LIMIT
    for session in reversed(sessions):
        replaced = cuts and (session.first_step is None or session.first_step >= cut)
        cuts.append(NOTHING if replaced else cut)
        if session.first_step is not None:
            cut = min(cut, session.first_step)
    return cuts[::-1]


def _replay(path: Path, cuts: list[int]) -> Iterator[Record]:
    """The records of a run, each session up to the step from which a later one has the say."""
    session = 0
    last = len(cuts) - 1
    for record in _records(path, _Reading()):
        if record["type"] == "header":
            session += 1
        if session >= last or (record["step"] < cuts[session] and record["type"] != "end"):
            yield record


def _records(path: Path, reading: _Reading, lines: int | None = None) -> Iterator[Record]:
    with path.open("rb") as file:
        for number, line in enumerate(islice(_lines(file), lines), 1):
            record = reading.accept(number, line)
            if record is not None:
                yield record


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, of which none is longer than the limit: the rest of a longer one is passed over."""
    while line := file.readline(LINE_LIMIT + 1):
        if len(line) > LINE_LIMIT and not line.endswith(b"\n"):
            line = b"\x00\n"  # no JSON: counted like any other unreadable line
            while (rest := file.readline(2**16)) and not rest.endswith(b"\n"):
                pass
        yield line


@dataclass(slots=True)
class _Reading:
    """One pass over a file: what was left out, and what a record must agree with."""

    skipped: int = 0
    first_skipped: int | None = None
    torn: bool = False
    _names: set[str] = field(default_factory=set)
    _latest: dict[str, int] = field(default_factory=dict)
    _remarks: int = 0

    def accept(self, number: int, line: bytes) -> Record | None:
        """The record of a line, None if there is none."""
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            return None
        try:
            record = json.loads(line.decode(), object_pairs_hook=_unambiguous)
            if self._fits(record):
                return record  # type: ignore[no-any-return]
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            if not line.endswith(b"\n"):
                self.torn = True
                return None
        self.skipped += 1
        if self.first_skipped is None:
            self.first_skipped = number
        return None

    def _fits(self, record: Any) -> bool:
        """Whether a record has the shape that its type promises; restores its numbers on the way."""
        kind = record["type"] if isinstance(record, dict) and "type" in record else None
        if not isinstance(kind, str):
            return False
        if kind == "header":
            self._latest.clear()
            self._remarks = 0
            record.setdefault("step", -1)
        if not _is_step(record.get("step")):
            return False
        if kind in MEASURED:
            return self._measures(kind, record)
        if kind in REMARKS:
            self._remarks += kind != "groups"  # of which only the latest is kept
            return self._remarks <= REMARKS_LIMIT and REMARKS[kind](record)
        for name in NUMERIC_FIELDS:
            if name in record:
                record[name] = _restored(record[name])
        return True  # of other types, and of those that later versions add, nothing enters a chart

    def _measures(self, kind: str, record: dict[str, Any]) -> bool:
        vitals = record["vitals"]
        if not isinstance(vitals, dict) or record["step"] < self._latest.get(kind, -1):
            return False
        number = _row if kind == "tensors" else _number
        record["vitals"] = {name: number(value) for name, value in vitals.items()}
        if not self._names.issuperset(vitals):
            if len(self._names) + len(vitals) > NAMES_LIMIT or max(map(len, vitals)) > NAME_LENGTH:
                return False
            self._names.update(vitals)
        self._latest[kind] = record["step"]
        return True


def _fits_context(record: dict[str, Any]) -> bool:
    record["context"] = _restored(record.get("context", {}))
    return isinstance(record["context"], dict) and _are(str, record.get("tensors", []))


def _fits_groups(record: dict[str, Any]) -> bool:
    record["groups"] = _restored(record["groups"])
    return _are(dict, record["groups"])


def _fits_note(record: dict[str, Any]) -> bool:
    return isinstance(record["text"], str) and len(record["text"]) <= TEXT_LIMIT


def _fits_origin(record: dict[str, Any]) -> bool:
    return all(isinstance(record[key], str) and len(record[key]) <= TEXT_LIMIT for key in ("module", "kind"))


REMARKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "header": _fits_context,
    "context": _fits_context,
    "groups": _fits_groups,
    "note": _fits_note,
    "origin": _fits_origin,
}


def _are(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _is_step(value: object) -> bool:
    return type(value) is int and -1 <= value < STEP_LIMIT


def _number(value: object) -> float:
    if type(value) is float:
        return value
    if type(value) is int or (isinstance(value, str) and value in NON_FINITE):
        return float(value)
    raise TypeError(f"not a number: {value!r:.40}")


def _row(values: object) -> list[float | None]:
    if not isinstance(values, list) or len(values) > ROW_LIMIT:
        raise TypeError("not a list of numbers")
    return [None if value is None else _number(value) for value in values]


def _restored(value: Any) -> Any:
    """Non-finite numbers for their names, wherever they are."""
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return float(value) if isinstance(value, str) and value in NON_FINITE else value
