"""Which runs a folder holds: the best log of each, however deep it lies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

Recognise = Callable[[Path], str | None]
"""The format of a file or folder, None where it has none that is known."""
Place = tuple[Path, str]

DEPTH = 8
ENTRIES = 200_000
"""Files and folders that are looked at."""
SUFFIXES = frozenset({".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".log", ".txt", ".out", ".parquet", ".db"})
SUFFIXES |= {".sqlite", ".sqlite3", ".wandb", ".gz", ".err"}
CONFIGURATION = frozenset({"config.json", "tokenizer.json", "package.json", "args.json", "vocab.json"})
WEAK = ("text_log", "json_table")
"""Formats that almost anything has: taken where a folder holds nothing better, however deep."""


def places(folder: Path, recognise: Recognise) -> list[Place]:
    """The logs in a folder, in order of their names; of several logs in one place those of the best format.

    `recognise` is asked about files, and about folders that a format keeps as a whole.
    """
    return list(_Search(recognise).visit(folder, DEPTH))


def journal_in(folder: Path) -> Path | None:
    """The journal in a folder, of the lowest rank there is; None where there is none."""
    ranks = sorted(folder.glob("journal.rank*.jsonl"), key=lambda file: (len(file.name), file.name))
    return next((file for file in (folder / "journal.jsonl", *ranks) if file.is_file()), None)


class _Search:
    def __init__(self, recognise: Recognise) -> None:
        self.recognise = recognise
        self.left = ENTRIES

    def visit(self, folder: Path, depth: int) -> Iterator[Place]:
        """The logs in a folder; one inside it that may not be read is passed over."""
        try:
            yield from self._visit(folder, depth)
        except OSError:
            if depth == DEPTH:
                raise

    def _visit(self, folder: Path, depth: int) -> Iterator[Place]:
        journal = journal_in(folder)
        if journal is not None:
            yield journal, "journal"
            return
        whole = self.recognise(folder)
        if whole is not None:
            yield folder, whole
            return
        files, folders = self._entries(folder)
        found = self._files(files)
        if found and found[0][1] not in WEAK:
            yield from found
            return
        deeper = [place for inner in folders if depth > 0 for place in self.visit(inner, depth - 1)]
        strong = [place for place in deeper if place[1] not in WEAK]
        yield from strong or found or deeper

    def _entries(self, folder: Path) -> tuple[list[Path], list[Path]]:
        files, folders = [], []
        for entry in sorted(folder.iterdir(), key=_in_order):
            self.left -= 1
            if self.left < 0:
                break
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if not entry.is_symlink():
                    folders.append(entry)
            elif entry.suffix.lower() in SUFFIXES or "." not in entry.name:
                files.append(entry)
        return files, folders

    def _files(self, files: list[Path]) -> list[Place]:
        """The logs among some files, of the best format that there is."""
        found: list[Place] = []
        for file in files:
            name = self._recognised(file) if file.name not in CONFIGURATION else None
            if name is not None:
                found.append((file, name))
        strong = [place for place in found if place[1] not in WEAK]
        found = strong or found
        first = found[0][1] if found else ""
        return [place for place in found if place[1] == first]

    def _recognised(self, file: Path) -> str | None:
        try:
            return self.recognise(file) if file.is_file() and file.stat().st_size else None
        except OSError:
            return None


def _in_order(path: Path) -> list[tuple[int, str]]:
    """version_2 before version_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", path.name)]
