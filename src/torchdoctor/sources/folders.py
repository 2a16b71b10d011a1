"""Finds the runs in a folder: the best log of each, at any depth, and other logs of the same runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torchdoctor.sources.rotated import parts
from torchdoctor.sources.stems import NO_LOGS, SUFFIXES, stem

DEPTH = 8
ENTRIES = 200_000
"""Most files and folders that are examined."""
GLANCE, NEAR = 500, 2
"""The same limit, and the depth, if the run is already found: only to say what else is there."""
PROBED = 16 * 2**20
"""Bytes of the largest file that is read only for that."""
NO_LOG = frozenset({"config.json", "tokenizer.json", "package.json", "args.json", "vocab.json", "journal.jsonl"})
_PROSE = re.compile(r"(?i)(?:readme|licen[cs]e|changelog|requirements|notice|contributing|cmakelists)\b")
"""Beginnings of the names of files for people; a loss in these belongs to some other run."""
UNUSUAL = 100
"""Files per folder that are examined although their suffixes are unusual for logs."""
WEAK = ("text_log", "json_table")
"""Formats that almost any file matches: used only if a folder holds nothing better at any depth."""
_PART = re.compile(r"(.+)\.\d{1,3}(?:\.gz)?\Z")
"""An older part of a log that was rotated."""
_KEPT = re.compile(r"runs|checkpoint-\d+|(?:offline-|dry)?run-.*|latest-run|\d+|artifacts")
"""Folders in which a format that keeps whole folders stores its other files."""

Recognise = Callable[[Path], str | None]
"""Returns the format of a file or folder, None if unknown."""
Told = Literal["run", "numbers", "damage", "nothing"]
"""What a file of a known format turns out to hold: a run with its steps, measures without a step count, damaged data,
or nothing by which a run can be judged."""


@dataclass(frozen=True)
class Place:
    """A log."""

    path: Path
    format: str
    beside: tuple[Path, ...] = ()
    """Other logs of the same run in the same folder or below it, which are not read."""

    @property
    def is_weak(self) -> bool:
        """Whether its format matches almost any file."""
        return self.format in WEAK


Probe = Callable[[Path, str], Told]
"""Reads a file of a known format, and returns what it holds."""


def places(folder: Path, recognise: Recognise, probe: Probe) -> list[Place]:
    """The logs in a folder, in order of their names; of several logs of one run, the one in the best format.

    `recognise` is called for files, and for folders that a format keeps as a whole; `probe` if names and formats do not
    decide what to read.
    """
    return list(_Search(recognise, probe, ENTRIES).visit(folder, DEPTH))


def journal_in(folder: Path) -> Path | None:
    """The journal in a folder, of the lowest rank present; None if there is none."""
    ranks = sorted(folder.glob("journal.rank*.jsonl"), key=lambda file: (len(file.name), file.name))
    return next((file for file in (folder / "journal.jsonl", *ranks) if file.is_file()), None)


def sorted_out(found: Sequence[Place], probe: Probe) -> tuple[list[Place], list[Place]]:
    """Which logs in one folder are read, and which only repeat the same runs.

    Logs of the same format are separate runs. A log of another format repeats one of these if its name is similar or
    says nothing; if the names tell several runs apart, it is a run of its own.

    >>> formats = {".csv": "csv_table", ".jsonl": "json_lines"}
    >>> def sort(*names):
    ...     places = [Place(Path(name), formats.get(Path(name).suffix, "text_log")) for name in names]
    ...     return tuple([place.path.name for place in part] for part in sorted_out(places, lambda *_: "run"))
    >>> sort("metrics.csv", "train.log"), sort("a.csv", "a.log", "b.csv")
    ((['metrics.csv'], ['train.log']), (['a.csv', 'b.csv'], ['a.log']))
    >>> sort("adam.csv", "nohup.out", "sgd.log"), sort("exp3.log", "metrics.jsonl")
    ((['adam.csv', 'sgd.log'], ['nohup.out']), (['metrics.jsonl'], ['exp3.log']))
    """
    if len({place.format for place in found}) < 2:
        return list(found), []
    told = {place: probe(place.path, place.format) for place in found}
    usable = sorted(
        (place for place in found if told[place] in ("run", "numbers")), key=lambda place: _rank(told, place)
    )
    if not usable:
        return list(found), []
    groups: dict[tuple[str, ...], list[Place]] = {}
    for place in usable:
        groups.setdefault(stem(Path(place.path.name)), []).append(place)
    main = usable[0].format
    chosen = [place for place in usable if place.format == main]
    if sum(map(bool, groups)) > 1:
        for words, group in groups.items():
            first = group[0]
            if first.format != main and told[first] == "run" and (words or not first.is_weak):
                chosen += [place for place in group if place.format == first.format]
    again = [place for place in found if place not in chosen and told[place] != "nothing"]
    return [place for place in found if place in chosen], again


def _rank(told: dict[Place, Told], place: Place) -> tuple[bool, bool]:
    return told[place] != "run", place.is_weak


class _Search:
    def __init__(self, recognise: Recognise, probe: Probe, left: int) -> None:
        self.recognise = recognise
        self.probe = probe
        self.left = left

    def visit(self, folder: Path, depth: int) -> Iterator[Place]:
        """The logs in a folder; unreadable folders inside it are skipped."""
        try:
            yield from self._visit(folder, depth)
        except OSError:
            if depth == DEPTH:
                raise

    def _visit(self, folder: Path, depth: int) -> Iterator[Place]:
        own = self._whole(folder)
        files, unusual, folders = self._entries(folder)
        found = self._files(files)
        if own is not None:
            yield self._with(own, self._others(own, found, folders, depth))
            return
        besides = [place for place in self._files(unusual) if self._is_run(place)]
        if besides and not self._any_log(found):
            found, besides = besides, []
        chosen, again = sorted_out(found, self.probe)
        again += besides
        here = chosen if not folders or self._any_log(chosen) else []
        if any(not place.is_weak for place in here):
            further, once_more = _told_apart(folder, here, self._glance(folders, depth))
            yield from self._noted([*here, *further], [*again, *once_more])
            return
        deeper = self._below(folders, depth)
        strong = [place for place in deeper if not place.is_weak]
        rest = [place for place in deeper if place.is_weak]
        if strong and (not (here or rest) or self._any_log(strong)):
            yield from self._noted(strong, [*here, *again, *rest])
        elif here:
            further, once_more = _told_apart(folder, here, rest)
            yield from self._noted([*here, *further], [*again, *once_more])
        else:
            yield from rest or strong or chosen

    def _whole(self, folder: Path) -> Place | None:
        """The journal of a folder, or the folder itself if a format keeps it as a whole."""
        journal = journal_in(folder)
        if journal is not None:
            return Place(journal, "journal")
        whole = self.recognise(folder)
        return Place(folder, whole) if whole is not None else None

    def _below(self, folders: Iterable[Path], depth: int) -> list[Place]:
        return [place for inner in folders if depth > 0 for place in self.visit(inner, depth - 1)]

    def _glance(self, folders: Iterable[Path], depth: int) -> list[Place]:
        """Logs below a folder whose run is already found; limited, because it may be a data set."""
        return _Search(self.recognise, self.probe, GLANCE)._below(folders, min(depth, NEAR))

    def _others(self, own: Place, found: Iterable[Place], folders: Iterable[Path], depth: int) -> list[Place]:
        """Logs in and below a folder that the folder's own log does not include."""
        covered = {own.format, *(("json_table", "json_lines") if own.format == "json_files" else ())}
        below = self._glance([inner for inner in folders if not _KEPT.fullmatch(inner.name)], depth)
        return [
            place
            for place in [*found, *below]
            if place.format not in covered or (place.format in ("journal", "trainer_state") and place in below)
        ]

    def _noted(self, chosen: Sequence[Place], again: Sequence[Place]) -> Iterator[Place]:
        """Logs to read; the first one lists those that are not read."""
        for number, place in enumerate(chosen):
            yield self._with(place, again) if not number else place

    def _with(self, place: Place, again: Iterable[Place]) -> Place:
        others = [path for other in again if self._is_log(other) for path in (other.path, *other.beside)]
        return replace(place, beside=(*place.beside, *others)) if others else place

    def _any_log(self, found: Iterable[Place]) -> bool:
        return any(self._is_log(place) for place in found)

    def _is_log(self, place: Place) -> bool:
        """Whether a place of a known format holds a log, possibly a damaged one."""
        if place.format == "text_log" or place.path.is_dir() or place.path.stat().st_size > PROBED:
            return True
        return self.probe(place.path, place.format) != "nothing"

    def _is_run(self, place: Place) -> bool:
        """Whether a file whose name is unusual for a log is clearly one."""
        if place.path.stat().st_size > PROBED:
            return not place.is_weak
        return self.probe(place.path, place.format) == "run"

    def _entries(self, folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
        """The files with names of logs, those with unusual names, and the folders."""
        files: list[Path] = []
        unusual: list[Path] = []
        folders: list[Path] = []
        rotated = set()
        for entry in sorted(folder.iterdir(), key=_in_order):
            self.left -= 1
            if self.left < 0:
                break
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if not entry.is_symlink():
                    folders.append(entry)
                continue
            if part := _PART.match(entry.name):
                rotated.add(part[1])
            suffix = entry.suffix.lower()
            if suffix in SUFFIXES or "." not in entry.name:
                files.append(entry)
            elif suffix not in NO_LOGS and len(unusual) < UNUSUAL and not entry.name.endswith("~"):
                unusual.append(entry)
        read = {part for file in files if file.name in rotated for part in parts(file)}  # read as parts of their log
        return [file for file in files if file not in read], [file for file in unusual if file not in read], folders

    def _files(self, files: Iterable[Path]) -> list[Place]:
        """The logs among some files."""
        named = (file for file in files if file.name not in NO_LOG and not _PROSE.match(file.name))
        return [Place(file, name) for file in named if (name := self._recognised(file)) is not None]

    def _recognised(self, file: Path) -> str | None:
        try:
            return self.recognise(file) if file.is_file() and file.stat().st_size else None
        except OSError:
            return None


def _told_apart(folder: Path, here: Sequence[Place], below: Sequence[Place]) -> tuple[list[Place], list[Place]]:
    """Logs below a folder: those of other runs, if its names tell several apart, and those of the runs in it."""
    names = {stem(Path(place.path.name)) for place in here}
    if sum(map(bool, names)) < 2:
        return [], list(below)
    words = {place: stem(place.path.relative_to(folder)) for place in below}
    further = [place for place in below if words[place] not in names and (words[place] or not place.is_weak)]
    return further, [place for place in below if place not in further]


def _in_order(path: Path) -> list[tuple[int, str]]:
    """version_2 before version_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", path.name)]
