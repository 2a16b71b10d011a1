"""Where runs are: journals below a folder, or any other logs there, and whether they have changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from torchdoctor.journal.place import NAME

DEPTH = 4
"""How many levels below the given folder are searched."""
ENTRIES = 10_000
"""Most folder entries that one search reads."""


def runs_in(path: Path) -> list[Path]:
    """What to follow at a path: each journal on its own; for anything else, the file or the whole folder.

    >>> runs_in(Path("no/such/run"))
    []
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        return []
    own = _journal_in(path)
    if own is not None:
        return [own]
    budget = [ENTRIES]
    deeper = list(_below(path, DEPTH, budget))
    return deeper if deeper else [path] if fingerprint(path) else []


def _below(folder: Path, depth: int, budget: list[int]) -> Iterator[Path]:
    """The journals in the folders below; links are not followed."""
    if depth == 0:
        return
    for child in _folders(folder, budget):
        own = _journal_in(child)
        if own is not None:
            yield own
        else:
            yield from _below(child, depth - 1, budget)


def _folders(folder: Path, budget: list[int]) -> list[Path]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                budget[0] -= 1
                if budget[0] < 0:
                    break
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    found.append(Path(entry.path))
    except OSError:
        return []
    return sorted(found)


def _journal_in(folder: Path) -> Path | None:
    """The journal of a folder, of the lowest rank present."""
    if (folder / NAME).is_file():
        return folder / NAME
    ranks = sorted(folder.glob("journal.rank*.jsonl"), key=lambda file: (len(file.name), file.name))
    return ranks[0] if ranks else None


def fingerprint(path: Path) -> frozenset[tuple[str, int, int]]:
    """Sizes and times of a log's files, which change when it does."""
    found = set()
    depth = len(path.parts) + DEPTH
    for folder, inside, names in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        if len(Path(folder).parts) >= depth:
            inside.clear()
        for name in names:
            try:
                known = os.stat(f"{folder}/{name}")  # noqa: PTH116  thousands of files: a Path each would cost more
            except OSError:
                continue
            found.add((f"{folder}/{name}", known.st_size, known.st_mtime_ns))
        if len(found) >= ENTRIES:
            break
    return frozenset(found)


def modified(path: Path) -> float:
    """When a file was last written."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
