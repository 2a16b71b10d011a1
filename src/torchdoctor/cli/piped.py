"""Logs that come through a pipe: standard input (``-``), or what a shell puts there (``<(ssh machine cat log)``)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory

import click

from torchdoctor.errors import SourceError

STANDARD_INPUT = ("-", "/dev/stdin")


@contextmanager
def as_file(path: str) -> Iterator[str]:
    """A path unchanged; for a pipe, a file with its content, because a log is read more than once."""
    standard = path in STANDARD_INPUT
    if not standard and not Path(path).is_fifo():
        yield path
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / ("standard input" if standard else Path(path).name)
        with file.open("wb") as kept:
            if standard:
                copyfileobj(sys.stdin.buffer, kept)
            else:
                with Path(path).open("rb") as piped:
                    copyfileobj(piped, kept)
        try:
            yield str(file)
        except SourceError as error:
            raise SourceError(str(error).replace(str(file), file.name if standard else path)) from error


def not_piped(ctx: click.Context, argument: click.Parameter, given: tuple[str, ...] | str | None) -> object:
    """Refuse standard input where runs are read more than once, or named in what is written."""
    if set(STANDARD_INPUT) & {*([given] if isinstance(given, str) else given or ())}:
        raise click.BadParameter("standard input is read only by diagnose, report and plot: name a file or a folder.")
    return given
