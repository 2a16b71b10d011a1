"""Logs that were rotated: `train.log` continues `train.log.1`, which continues `train.log.2`.

A program that renames its log when it is full, or each night, splits one run; a program that renames it at every start
keeps runs separate. The steps tell: a part is joined only if its last step comes right before the first one here.

>>> part = Logged(Path("a.log.1"), "a", "printed text", {"loss": Points.of([0, 10, 20], [3.0, float("nan"), 2.0])})
>>> rest = Logged(Path("a.log"), "a", "printed text", {"loss": Points.of([30, 40], [1.5, 1.4])})
>>> whole([rest], [Path("a.log.1")], lambda path: [part])[0].points["loss"].steps.tolist()
[0, 10, 20, 30, 40]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchdoctor.errors import SourceError
from torchdoctor.records import names_text
from torchdoctor.sources.logged import Logged, Points

PARTS = 1000
"""Most parts of one log."""
HOLE = 3
"""Multiple of the usual distance of records that may lie between two parts: a validation, or a lost line."""

Read = Callable[[Path], Sequence[Logged]]


def parts(path: Path) -> list[Path]:
    """The older parts of a log that lie next to it, the latest first."""
    found: list[Path] = []
    for number in range(1, PARTS):
        names = (path.with_name(f"{path.name}.{number}{end}") for end in ("", ".gz"))
        part = next((name for name in names if name.is_file()), None)
        if part is None:
            break
        found.append(part)
    return found


def whole(logged: Sequence[Logged], older: Sequence[Path], read: Read) -> list[Logged]:
    """The run in a log and its older parts, if they continue each other; notes name the others."""
    if not older or len(logged) != 1:
        return [*logged]
    (run,) = logged
    joined = 0
    for path in older:
        part = _only(path, read)
        if part is None or not _goes_on(part, run):
            break
        run = _joined(part, run)
        joined += 1
    said = []
    if joined:
        said.append(f"the log was rotated; its older parts were read too: {_names(older[:joined])}")
    if older[joined:]:
        said.append(f"also here, not read: {_names(older[joined:])}")
    return [replace(run, notes=(*said, *run.notes))]


def _names(paths: Iterable[Path]) -> str:
    return names_text([path.name for path in paths], 5)


def _only(path: Path, read: Read) -> Logged | None:
    """The run in a part, if it can be read and is the only one in it."""
    try:
        found = read(path)
    except (SourceError, OSError):
        return None
    return found[0] if len(found) == 1 else None


def _goes_on(part: Logged, rest: Logged) -> bool:
    """Whether the first record of the rest comes right after the last of a part, in their longest series."""
    shared = part.points.keys() & rest.points.keys()
    if not shared or part.clock != rest.clock or part.clock == "row":
        return False
    name = max(shared, key=lambda name: (len(part.points[name]) + len(rest.points[name]), name))
    one, other = part.points[name].steps, rest.points[name].steps
    apart = np.abs(np.concatenate([np.diff(one), np.diff(other)]))
    usual = float(np.median(apart)) if len(apart) else 1.0
    return 0 < int(other[0]) - int(one[-1]) <= HOLE * max(usual, 1.0)


def _joined(part: Logged, rest: Logged) -> Logged:
    points = dict(part.points)
    for name, series in rest.points.items():
        before = points.get(name)
        points[name] = series if before is None else _after(before, series)
    return replace(
        rest,
        points=points,
        config={**part.config, **rest.config},
        context={**part.context, **rest.context},
        notes=tuple(dict.fromkeys((*part.notes, *rest.notes))),
        skipped=part.skipped + rest.skipped,
        first_skipped=part.first_skipped if part.skipped else rest.first_skipped,
    )


def _after(one: Points, other: Points) -> Points:
    return Points(np.concatenate([one.steps, other.steps]), np.concatenate([one.values, other.values]))
