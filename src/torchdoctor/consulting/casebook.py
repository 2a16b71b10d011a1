"""The casebook: what was tried and what it did, one JSON record per line; a crash loses at most one line.

A consultation opens a case, and its outcome closes it. An unfinished interview is kept as a draft.

>>> import tempfile
>>> book = Casebook(Path(tempfile.mkdtemp()) / "casebook.jsonl")
>>> case = book.open_case(project="nets", complaints=["nan"], cause="lr-too-high", action="scale-lr", code="lr *= 0.5")
>>> book.close_case(case.id, "nothing", by="answer")
>>> [(item.action, item.outcome) for item in book.cases()]
[('scale-lr', 'nothing')]
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from torchdoctor.consulting.question import ConsultError
from torchdoctor.journal.lines import encode

Outcome = Literal["helped", "nothing", "worse", "not-tried"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
IN_VAIN = ("nothing", "worse")
WITHIN_NOISE, STILL_THERE = "within the noise", "still there"
"""Phrases in a comparison's note for a loss that did not move, and for findings that did not vanish."""
TEXTS = ("opened", "project", "run", "cause", "action", "code")
LINE_LIMIT = 2**20
LINES_LIMIT = 100_000


@dataclass(frozen=True)
class Case:
    """One proposed change and its outcome."""

    id: str
    opened: str
    project: str = ""
    run: str = ""
    complaints: tuple[str, ...] = ()
    cause: str = ""
    action: str = ""
    code: str = ""
    outcome: Outcome | None = None
    """None if not known yet."""
    by: str = ""
    """Where the outcome comes from: "answer" or "comparison"."""
    note: str = ""

    @property
    def at_noise_floor(self) -> bool:
        """Whether it did not move the loss and there was nothing left to fix; a plateau is something to fix."""
        moved = self.outcome != "nothing" or WITHIN_NOISE not in self.note
        return not (moved or STILL_THERE in self.note or "plateau" in self.complaints)

    @property
    def against(self) -> str:
        """The cause it was meant for, as the end of a sentence; empty if no cause was known."""
        return f" against {self.cause}" if self.cause else ""

    @property
    def day(self) -> str:
        """The day it was opened."""
        return self.opened[:10]

    def concerns(self, project: str, complaints: Sequence[str]) -> bool:
        """Whether it shares the project and at least one complaint."""
        return self.project == project and bool(set(self.complaints) & set(complaints))


@dataclass(frozen=True)
class Draft:
    """An unfinished interview."""

    left: str
    project: str
    run: str
    answers: Mapping[str, Any] = field(default_factory=dict)


class Casebook:
    """A file of cases; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def open_case(self, *, project: str, complaints: Sequence[str], **known: str) -> Case:
        """Record what will be tried."""
        case = Case(id=secrets.token_hex(4), opened=_now(), project=project, complaints=tuple(complaints), **known)  # type: ignore[arg-type]
        told = {name: getattr(case, name) for name in ("id", *TEXTS)}
        self._append({"type": "case", **told, "complaints": list(complaints)})
        return case

    def close_case(self, case: str, outcome: str, *, by: str, note: str = "") -> None:
        """Record what the change did."""
        if outcome not in OUTCOMES:
            raise ConsultError(f"an outcome is one of {', '.join(OUTCOMES)}, not {outcome!r}.")
        self._append({"type": "outcome", "id": case, "outcome": outcome, "by": by, "note": note, "at": _now()})

    def keep_draft(self, project: str, run: str, answers: Mapping[str, Any]) -> None:
        """Save the answers so far."""
        self._append({"type": "draft", "left": _now(), "project": project, "run": run, "answers": dict(answers)})

    def end_draft(self, project: str) -> None:
        """Discard the draft: the interview is finished, or no longer wanted."""
        if self.draft(project) is not None:
            self._append({"type": "draft", "left": _now(), "project": project, "run": "", "answers": {}})

    def cases(self) -> tuple[Case, ...]:
        """All cases, oldest first, each with its latest outcome."""
        found: dict[str, Case] = {}
        for record in self._records():
            name = str(record.get("id", ""))
            if record["type"] == "case":
                texts: dict[str, Any] = {key: str(record.get(key, "")) for key in TEXTS}
                complaints = record.get("complaints")
                named = tuple(str(item) for item in complaints) if isinstance(complaints, list) else ()
                found[name] = Case(id=name, complaints=named, **texts)
            elif record["type"] == "outcome" and name in found and record.get("outcome") in OUTCOMES:
                found[name] = replace(
                    found[name], outcome=record["outcome"], by=str(record.get("by")), note=str(record.get("note", ""))
                )
        return tuple(found.values())

    def open_cases(self, project: str) -> tuple[Case, ...]:
        """Cases of a project whose outcome is not known, or that were not tried yet."""
        return tuple(item for item in self.cases() if item.project == project and item.outcome in (None, "not-tried"))

    def draft(self, project: str) -> Draft | None:
        """The latest unfinished interview of a project; None if it was finished or discarded since."""
        latest = None
        for record in self._records():
            if record["type"] == "draft" and record.get("project") == project:
                answers = record.get("answers")
                told = Draft(str(record.get("left", "")), project, str(record.get("run", "")), answers or {})
                latest = told if isinstance(answers, dict) and answers else None
        return latest

    def _records(self) -> Iterator[Mapping[str, Any]]:
        if self.path is None or not self.path.exists():
            return
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT), b"")):
                    if number >= LINES_LIMIT:
                        return
                    with contextlib.suppress(ValueError, RecursionError):
                        record = json.loads(line.decode())
                        if isinstance(record, dict) and isinstance(record.get("type"), str):
                            yield record
        except OSError as error:
            raise ConsultError(f"cannot read the casebook {self.path}: {error.strerror or error}.") from error

    def _append(self, record: Mapping[str, Any]) -> None:
        """Append one line in one write; start a new line if the file ends in an incomplete one."""
        if self.path is None:
            return
        line = encode(dict(record)).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            try:
                _lock(file)
                size = os.fstat(file).st_size
                os.lseek(file, max(size - 1, 0), os.SEEK_SET)
                torn = size > 0 and os.read(file, 1) != b"\n"
                os.write(file, b"\n" + line if torn else line)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise ConsultError(
                f"cannot write the casebook {self.path}: {error.strerror or error}. "
                "Give --casebook FILE or --no-casebook."
            ) from error


def default_place() -> Path:
    """Where the casebook is kept: the user's data folder."""
    try:
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError as error:
        raise ConsultError(
            "there is no home directory for the casebook. Give --casebook FILE or --no-casebook."
        ) from error
    return home / "torchdoctor" / "casebook.jsonl"


def project_of(folder: Path) -> str:
    """The name of a project: the nearest parent folder with a git repository, or the folder itself."""
    place = folder.resolve()
    for parent in (place, *place.parents):
        if (parent / ".git").exists():
            return str(parent)
    return str(place)


def _lock(file: int) -> None:
    try:
        import fcntl
    except ImportError:  # without fcntl, rely on appending each line in one write
        return
    fcntl.flock(file, fcntl.LOCK_EX)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
