"""Sources: readers for logs of runs, one file per format; all produce the same records.

A format is a module with ``recognises(path) -> bool``, which looks at the beginning of the content rather than the
name, and ``read(path) -> list[Logged]``, with one entry per run found. A format that keeps whole folders recognizes
folders too. `assembly.assemble` makes a run of each entry.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torchdoctor.errors import SourceError
from torchdoctor.records import DIED, names_text
from torchdoctor.sources import journal, rotated
from torchdoctor.sources.assembly import assemble, example
from torchdoctor.sources.folders import Told, places
from torchdoctor.sources.last_words import last_words
from torchdoctor.sources.logged import Logged, NoLogError, Wish
from torchdoctor.sources.run import Run

FORMATS = (
    "tensorboard",
    "wandb_offline",
    "mlflow_store",
    "trackio_store",
    "sqlite_store",
    "trainer_state",
    "parquet_table",
    "catboost_training",
    "json_lines",
    "json_table",
    "yolo_results",
    "csv_table",
    "text_log",
)
"""Modules of this package, in the order in which they are tried; the last ones accept almost anything."""
TEXTS = ("trainer_state", "catboost_training", "json_lines", "json_table", "yolo_results", "csv_table", "text_log")
"""Text formats: they are not tried on files that begin like another kind, in which words may occur too."""
FOLDERS = ("trainer_state", "tensorboard", "wandb_offline", "mlflow_store", "json_files")
"""Formats that keep whole folders: they are tried on folders too."""
WISHING = ("catboost_training", "json_table", "json_lines", "yolo_results", "csv_table", "parquet_table", "text_log")
"""Formats whose ``read`` also takes what the user says about the file."""
KNOWN = (
    "a journal, TensorBoard events, W&B offline files, MLflow, Trackio, a Hugging Face trainer_state.json, CSV, JSON, "
    "JSON Lines, Parquet, or printed text with a loss in it"
)

NUMBERED = ("MLflow", "W&B")
"""Stores that name files and folders by an id; the run has a name of its own."""
NAMED = 5
"""Most unread logs that a note names."""

_LABELLED = re.compile(r"(?P<place>.+?) \(.+\)")
"""The label of one of several runs at a path."""

_PART = re.compile(r"^part \d+ of \d+$")
"""The name of a run that others of the same file follow or precede, without a name of its own."""

FEW = 9
"""Most lines with a loss that may be quoted in a text that is not a log."""

__all__ = ["FORMATS", "Run", "labels", "locate", "read", "read_all"]


class Format(Protocol):
    """What the module of a format provides."""

    def recognises(self, path: Path) -> bool:
        """Whether the content is of this format."""

    def read(self, path: Path) -> list[Logged]:
        """The runs in a file or folder of this format."""


def read(path: str | Path, *, mapping: Mapping[str, str] | None = None, pattern: str | None = None) -> Run:
    """Read the run at a path: a journal, a log in any known format, or a folder that holds one.

    `mapping` says which column is which vital (``{"loss": "my_loss"}``); `pattern` is a regular expression with named
    groups for reading lines of text. Unusable parts are left out and counted in ``run.skipped``. Of runs that follow
    one another in one file, the last is read.

    >>> read("no/such/run")
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SourceError: no/such/run does not exist. Give a log of a run, or a folder that holds one.
    """
    runs = read_all(path, mapping=mapping, pattern=pattern)
    if len(runs) > 1 and all(_PART.search(str(run.header.get("context", {}).get("run", ""))) for run in runs):
        told = f"this is the last of the {len(runs)} runs in the log; `read_all` and the command `diagnose` give each"
        return replace(runs[-1], remarks=(*runs[-1].remarks, told))
    if len(runs) > 1:
        raise SourceError(
            f"{path} holds {len(runs)} runs: {names_text(labels(runs), 5)}. Give one of them, or use `read_all` "
            "(the command `diagnose` reads all of them)."
        )
    return runs[0]


def read_all(path: str | Path, *, mapping: Mapping[str, str] | None = None, pattern: str | None = None) -> list[Run]:
    """Read every run at a path: a folder or a store may hold several. A label names one of them."""
    place = Path(path)
    wish = Wish(dict(mapping or {}), pattern)
    try:
        if not place.exists():
            if labelled := _LABELLED.fullmatch(str(place)):
                found = read_all(labelled["place"], mapping=mapping, pattern=pattern)
                found = [run for run, label in zip(found, labels(found), strict=True) if label == str(place)]
                if found:
                    return found
            raise SourceError(f"{place} does not exist. Give a log of a run, or a folder that holds one.")
        if place.is_dir():
            return _of_folder(place, wish)
        if not place.is_file():
            raise SourceError(f"{place} is neither a file nor a folder. Give a log of a run.")
        return _of_file(place, wish)
    except OSError as error:
        raise SourceError(f"cannot read {place}: {error.strerror or error}.") from error


def locate(path: str | Path) -> list[Path]:
    """The logs at a path, without reading them: `read_all` of each gives `read_all` of the path."""
    place = Path(path)
    try:
        return [found.path for found in places(place, _format_of, _Reader(Wish()).tells)] if place.is_dir() else [place]
    except OSError:
        return [place]


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each of several runs: its path, plus its name in the log if the path is not enough.

    One path may hold several runs, and some stores name files and folders by ids that nobody knows.
    """
    shared = Counter(run.path for run in runs)
    return [_label(run, alone=shared[run.path] == 1) for run in runs]


def _label(run: Run, *, alone: bool) -> str:
    context = run.header.get("context", {})
    name, path = str(context.get("run", "")), str(run.path)
    known = alone and (context.get("source") not in NUMBERED or name in run.path.name)
    return path if known or not name else f"{path} ({name})"


def _of_folder(folder: Path, wish: Wish) -> list[Run]:
    runs: list[Run] = []
    refused: list[SourceError] = []
    unread: list[Path] = []
    reader = _Reader(wish)
    for place in places(folder, _format_of, reader.tells):
        unread += place.beside
        try:
            read = reader.runs(place.path, place.format)
        except SourceError as error:
            refused.append(error)
            unread += [] if isinstance(error, NoLogError) else [place.path]
        else:
            runs += _with_note(read, folder, unread)
            unread = []
    if runs:
        return [*runs[:-1], *_with_note(runs[-1:], folder, unread)]
    if refused:
        raise refused[0]
    raise SourceError(f"the folder {folder} holds no log that can be read. Known formats: {KNOWN}.")


def _with_note(runs: list[Run], folder: Path, unread: Sequence[Path]) -> list[Run]:
    """The runs, with a note on the first one about what was not read."""
    if not runs or not unread:
        return runs
    names = names_text([str(path.relative_to(folder)) for path in unread], NAMED)
    return [replace(runs[0], remarks=(*runs[0].remarks, f"also here, not read: {names}")), *runs[1:]]


class _Reader:
    """Reads each file of a folder once, even if it is examined before it is chosen."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self._known: dict[Path, list[Run] | SourceError] = {}

    def runs(self, place: Path, name: str) -> list[Run]:
        """The runs at a place."""
        if place not in self._known:
            try:
                self._known[place] = _read_as(name, place, self.wish)
            except SourceError as error:
                self._known[place] = error
            except OSError as error:
                self._known[place] = SourceError(f"cannot read {place}: {error.strerror or error}.")
        found = self._known[place]
        if isinstance(found, SourceError):
            raise found
        return found

    def tells(self, place: Path, name: str) -> Told:
        """What a file holds."""
        try:
            runs = self.runs(place, name)
        except NoLogError:
            return "nothing"
        except SourceError:
            return "damage"
        judged = [run for run in runs if _is_judged(run)]
        return "nothing" if not judged else "run" if any(map(_is_plain, judged)) else "numbers"


def _is_judged(run: Run) -> bool:
    """Whether a run has the main measures: a loss, a metric or a reward."""
    columns = run.header.get("context", {}).get("columns")
    measures = ("loss", "accuracy", "reward")
    return columns is None or any(name.endswith(measures) or name.startswith(("val_", "train_")) for name in columns)


def _is_plain(run: Run) -> bool:
    """Whether this is clearly a log of a run: it counts steps, is long enough, or has values that data tables lack."""
    context = run.header.get("context", {})
    if context.get("clock") != "row" or (context.get("source") == "printed text" and run.step >= FEW):
        return True
    return len({"loss", "val_loss", "lr", "grad_norm"} & {*context.get("columns", ())}) > 1


def _of_file(file: Path, wish: Wish) -> list[Run]:
    if file.stat().st_size == 0:
        raise SourceError(f"{file} is empty. Was the run killed as it started?")
    if wish.pattern is not None:
        return _read_as("text_log", file, wish)
    name = _format_of(file)
    others = _module("text_log").names_in(file) if name is None else []
    if not set(others).isdisjoint(wish.mapping.values()):
        name = "text_log"
    if name is None:
        from torchdoctor.sources.json_table import document_of, is_json_lines
        from torchdoctor.sources.opening import looks_like

        if looks_like(file).startswith("JSON") and not is_json_lines(file):
            document_of(file)  # its error says where the document breaks
        told = (
            f" Its numbers are named {names_text(others, NAMED)}: if one is the loss, use {example(others)}."
            if others
            else ""
        )
        if said := last_words(file):
            told += f" It ends with an error: {said.rstrip('.')}."
        raise SourceError(
            f"{file} is not a log that can be read: it looks like {looks_like(file)}.{told} Known formats: {KNOWN}."
        )
    return _read_as(name, file, wish)


def _format_of(place: Path) -> str | None:
    """The format of a file or folder; None if unknown."""
    if place.is_dir():
        return next((name for name in FOLDERS if _is_kept_as(name, place)), None)
    if journal.recognises(place):
        return "journal"
    from torchdoctor.sources.opening import kind_by_mark

    barred = TEXTS if kind_by_mark(place) else ()
    return next((name for name in FORMATS if name not in barred and _module(name).recognises(place)), None)


def _is_kept_as(name: str, folder: Path) -> bool:
    try:
        return bool(_module(name).recognises(folder))
    except OSError:  # part of the folder may be inaccessible
        return False


def _read_as(name: str, place: Path, wish: Wish) -> list[Run]:
    if name == "journal":
        return [journal.read(place)]
    module = _module(name)

    def logged(path: Path) -> list[Logged]:
        found: list[Logged] = module.read(path, wish) if name in WISHING else module.read(path)
        return found

    found = logged(place)
    if name in TEXTS:
        found = rotated.whole(found, rotated.parts(place), logged)
    runs = [assemble(item, wish) for item in found]
    said = last_words(place) if name == "text_log" else ""
    return [*runs[:-1], *(_with_words(run, said) for run in runs[-1:])]


def _with_words(run: Run, said: str) -> Run:
    """A run with a remark about the error at the end of its log."""
    return replace(run, remarks=(*run.remarks, DIED + said)) if said else run


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")
