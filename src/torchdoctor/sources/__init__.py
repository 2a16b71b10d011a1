"""Sources: logs of finished runs, one file a format, all read into the same records.

A format is a module with ``recognises(path) -> bool``, which looks at the content and not at the name, and
``read(path) -> Run``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torchdoctor.errors import SourceError
from torchdoctor.sources import journal
from torchdoctor.sources.run import Run


class Format(Protocol):
    """What a module of a format offers."""

    def recognises(self, path: Path) -> bool:
        """Whether the content is of this format."""

    def read(self, path: Path) -> Run:
        """The run in a file of this format."""


FORMATS: tuple[Format, ...] = (journal,)

__all__ = ["FORMATS", "Run", "read"]


def read(path: str | Path) -> Run:
    """Read a run from a journal: its folder or its file.

    The records are checked while they are read: what no chart could use is left out and counted in ``run.skipped``.

    >>> read("no/such/run")
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SourceError: no/such/run does not exist. Give a journal folder or a journal.jsonl file.
    """
    place = Path(path)
    try:
        file = _file_of(place)
        if file.stat().st_size == 0:
            raise SourceError(f"{file} is empty: a journal begins with a header. Was the run killed as it started?")
        for source in FORMATS:
            if source.recognises(file):
                return source.read(file)
    except OSError as error:
        raise SourceError(f"cannot read {place}: {error.strerror or error}.") from error
    raise SourceError(
        f"{file} is not a run that can be read: no line of it is a journal record. "
        "Give a journal folder or a journal.jsonl file."
    )


def _file_of(place: Path) -> Path:
    """The file to read: the path itself, or the journal in that folder (of the lowest rank there is)."""
    if not place.exists():
        raise SourceError(f"{place} does not exist. Give a journal folder or a journal.jsonl file.")
    if place.is_dir():
        ranks = sorted(place.glob("journal.rank*.jsonl"), key=lambda file: (len(file.name), file.name))
        for file in (place / "journal.jsonl", *ranks):
            if file.is_file():
                return file
        inside = sorted(file.parent for file in place.glob("*/journal.jsonl"))
        hint = (
            f"There is one in {inside[-1]}, for example."
            if inside
            else "Give the folder that a run was told to write to."
        )
        raise SourceError(f"the folder {place} holds no journal.jsonl. {hint}")
    if not place.is_file():
        raise SourceError(f"{place} is neither a file nor a folder. Give a journal folder or a journal.jsonl file.")
    return place
