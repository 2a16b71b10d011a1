"""Reads Training Doctor's own journal; hostile or damaged lines are left out and counted, and never reach the chart.

`read` checks every line and finds where sessions begin. Iterating over the run reads the file again, unless it is small
enough to be kept in memory. A file that a later session opened again (a resumed or restarted run) is one run: the later
session replaces the steps that it repeats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from torchdoctor.records import Record
from torchdoctor.sources.alike_lines import alike_from
from torchdoctor.sources.opening import chunks
from torchdoctor.sources.run import Piece, Run
from torchdoctor.stretch import Stretch

LINE_LIMIT = 16 * 2**20
"""Bytes of the longest line that is parsed; a record of a hundred thousand tensors fits."""
UNREADABLE = b"\x00"
"""Replaces a longer line: it is not JSON, so it is counted like any other unreadable line."""
STEP_LIMIT = 10**12
NOTHING = -2
NAMES_LIMIT = 1000
"""Most vitals in one run: each costs the chart tens of kilobytes."""
NAME_LENGTH = 256
ROW_LIMIT = 200_000
"""Most tensors in one row: the chart keeps 64 rows of a vital."""
TEXT_LIMIT = 10_000
REMARKS_LIMIT = 1000
"""Most notes, origins and contexts in one session: the chart keeps all of them."""
BLOCK = 2**21
"""Bytes read at a time."""
KEPT = 192 * 2**20
"""Bytes of memory up to which checked records are kept, so that the file is not read twice."""
INFLATION = 8
"""Approximate bytes of memory per byte of a line that was parsed on its own."""
NON_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
NUMERIC_FIELDS = ("value", "limit", "confidence", "probability")
MEASURED = frozenset({"vitals", "validation", "tensors", "modules"})
KNOWN = MEASURED | {"header", "context", "groups", "origin", "symptom", "diagnosis", "phase", "note", "end"}


def recognises(path: Path) -> bool:
    """Whether one of the first lines is a journal record."""
    if b'"type"' not in next(_blocks(path), b""):
        return False
    pieces = _pieces(path, Reading(), blocks=1)
    return any(isinstance(piece, Stretch) or piece["type"] in KNOWN for piece in pieces)


def read(path: Path) -> Run:
    """Check a journal and return its run."""
    reading = Reading()
    sessions: list[_Session] = [_Session()]
    header: Record = {}
    kept: list[Piece] | None = []
    for piece in _pieces(path, reading):
        if kept is not None:
            kept.append(piece)
            if reading.memory > KEPT:
                kept = None
        if isinstance(piece, Stretch):
            sessions[-1].saw(int(piece.steps[0]), int(piece.steps[-1]))
        elif piece["type"] == "header":
            header = piece
            sessions.append(_Session())
        elif piece["type"] == "vitals":
            sessions[-1].saw(piece["step"], piece["step"])
    cuts = _cuts(sessions)
    return Run(
        path=path,
        header=header,
        step=max(min(session.last_step, cut - 1) for session, cut in zip(sessions, cuts, strict=True)),
        skipped=reading.skipped,
        first_skipped=reading.first_skipped,
        torn=reading.torn,
        sessions=max(1, len(sessions) - 1),
        open=partial(_replay, path, kept, cuts),
    )


@dataclass(slots=True)
class _Session:
    """The lines from one header to the next."""

    first_step: int | None = None
    last_step: int = -1

    def saw(self, first: int, last: int) -> None:
        """Add steps to the session."""
        self.first_step = first if self.first_step is None else self.first_step
        self.last_step = last


def _cuts(sessions: list[_Session]) -> list[int]:
    """For each session the step from which a later one replaces it; `NOTHING` if that is all of it."""
    cuts: list[int] = []
    cut = STEP_LIMIT
    for session in reversed(sessions):
        replaced = cuts and (session.first_step is None or session.first_step >= cut)
        cuts.append(NOTHING if replaced else cut)
        if session.first_step is not None:
            cut = min(cut, session.first_step)
    return cuts[::-1]


def _replay(path: Path, kept: list[Piece] | None, cuts: list[int]) -> Iterator[Piece]:
    """The records of a run, each session up to the step from which a later one replaces it."""
    session = 0
    last = len(cuts) - 1
    for piece in kept if kept is not None else _pieces(path, Reading()):
        if isinstance(piece, Stretch):
            size = len(piece) if session >= last else int(np.searchsorted(piece.steps, cuts[session]))
            if size:
                yield piece if size == len(piece) else piece[:size]
            continue
        if piece["type"] == "header":
            session += 1
        if session >= last or (piece["step"] < cuts[session] and piece["type"] != "end"):
            yield piece


def _pieces(path: Path, reading: Reading, blocks: int | None = None) -> Iterator[Piece]:
    """The records in the lines of a file."""
    for text in islice(_blocks(path), blocks):
        yield from reading.pieces(text)


def _blocks(path: Path) -> Iterator[bytes]:
    """Several thousand lines at a time; the last line may be incomplete.

    A line longer than the limit is replaced by a marker that it is unreadable.
    """
    rest, overlong = b"", False
    for block in chunks(path, BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            first = block.find(b"\n")
            yield UNREADABLE + block[first:end] if overlong else rest + block[:end]
            rest, overlong = block[end:], False
        elif not overlong:
            rest += block
            overlong = len(rest) > LINE_LIMIT
    if rest:
        yield UNREADABLE + b"\n" if overlong else rest


@dataclass(slots=True)
class Reading:
    """One pass over a file: what was left out, and what later records must agree with."""

    skipped: int = 0
    first_skipped: int | None = None
    torn: bool = False
    memory: int = 0
    """Approximate bytes of memory used by what was read so far."""
    _line: int = 0
    _names: set[str] = field(default_factory=set)
    _facts: set[str] = field(default_factory=set)
    _latest: dict[str, int] = field(default_factory=dict)
    _remarks: int = 0

    def pieces(self, text: bytes) -> Iterator[Piece]:
        """The records in the next whole lines, many at once if they are alike."""
        position = 0
        while position < len(text):
            stretch, end = alike_from(text, position)
            if stretch is not None and self.accept_all(stretch):
                self._line += len(stretch)
                position = end
                yield stretch
                continue
            end = text.find(b"\n", position) + 1 or len(text)
            self._line += 1
            record = self.accept(self._line, text[position:end])
            position = end
            if record is not None:
                yield record

    def accept_all(self, stretch: Stretch) -> bool:
        """Whether these steps may follow what was read; if not, their lines must be read one by one."""
        if stretch.steps[0] < self._latest.get("vitals", -1) or not self._knows(stretch.columns):
            return False
        self._latest["vitals"] = int(stretch.steps[-1])
        self.memory += 8 * len(stretch) * (1 + len(stretch.columns))
        return True

    def accept(self, number: int, line: bytes) -> Record | None:
        """The record in a line, None if there is none."""
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            return None
        self.memory += INFLATION * len(line)
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
        """Whether a record has the shape that its type requires; restores its numbers on the way."""
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
        if kind == "facts":
            return self._states(record)
        if kind in REMARKS:
            self._remarks += kind != "groups"  # only the latest groups are kept
            return self._remarks <= REMARKS_LIMIT and REMARKS[kind](record)
        for name in NUMERIC_FIELDS:
            if name in record:
                record[name] = _restored(record[name])
        return True  # records of other types, including those of later versions, do not enter a chart

    def _measures(self, kind: str, record: dict[str, Any]) -> bool:
        vitals = record["vitals"]
        if not isinstance(vitals, dict) or record["step"] < self._latest.get(kind, -1):
            return False
        number = _row if kind in ("tensors", "modules") else _number
        record["vitals"] = {name: number(value) for name, value in vitals.items()}
        if not self._knows(vitals):
            return False
        self._latest[kind] = record["step"]
        return True

    def _states(self, record: dict[str, Any]) -> bool:
        """Whether facts are a dict with few enough keys; the causes must check the values."""
        facts = record["facts"] = _restored(record["facts"])
        if not isinstance(facts, dict) or not _are(str, facts.get("modules.names", [])):
            return False
        self._facts.update(facts)
        return len(self._facts) <= NAMES_LIMIT

    def _knows(self, vitals: Mapping[str, Any]) -> bool:
        """Whether there is room for these names."""
        if not self._names.issuperset(vitals):
            if len(self._names) + len(vitals) > NAMES_LIMIT or max(map(len, vitals)) > NAME_LENGTH:
                return False
            self._names.update(vitals)
        return True


SHAPES: dict[str, type] = {"model": dict, "optimizer": list, "dropout": list, "precision": list, "input_shape": list}
"""Types in a context that causes and reports rely on."""


def _fits_context(record: dict[str, Any]) -> bool:
    context = record["context"] = _restored(record.get("context", {}))
    if not isinstance(context, dict) or not _are(dict, context.get("optimizer") or []):
        return False
    shaped = all(isinstance(context.get(key) or shape(), shape) for key, shape in SHAPES.items())
    return shaped and _are(str, record.get("tensors", []))


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
    """Replace the names of non-finite numbers by the numbers, at any depth."""
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return float(value) if isinstance(value, str) and value in NON_FINITE else value
