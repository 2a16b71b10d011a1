"""``torchdoctor compare RUN...``: two to thousands of runs side by side."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchdoctor.cli import options
from torchdoctor.cli.piped import not_piped
from torchdoctor.reports.comparison_formats import BY_SUFFIX, FORMATS, WIDTH, answer, full
from torchdoctor.reports.formats import write_whole
from torchdoctor.reports.wording import printable

if TYPE_CHECKING:
    from torchdoctor.comparing import Comparison
    from torchdoctor.comparing.reading import Progress

WHICH = {"none": False, "all": True, None: None}
MANY = 8
"""Most processes, if the user does not say how many."""


@click.command(short_help="Compare runs: the best, the fastest, and what explains it.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", callback=not_piped)
@click.option(
    "--by", "metric", metavar="NAME", help="Rank by this metric; default: the validation loss, or else the loss."
)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="Output format; default: full.")
@options.output
@click.option(
    "--quick", "examine", flag_value="none", help="Compare only curves and settings, without diagnoses: much faster."
)
@click.option(
    "--all", "examine", flag_value="all", help="Diagnose every run; default: only a sample if there are more than 500."
)
@click.option("--sql", metavar="QUERY", help="Run a query on the tables runs, findings and curves (needs DuckDB).")
@click.option(
    "--jobs", type=click.IntRange(1, 64), metavar="N", help="Number of reading processes; default: one per core."
)
def compare(
    runs: tuple[str, ...],
    metric: str | None,
    form: str | None,
    output: Path | None,
    examine: str | None,
    sql: str | None,
    jobs: int | None,
) -> None:
    """Compare runs: which was best and fastest, where they diverge, and which setting explains it.

    RUN is a journal, any log that can be read, or a folder of them. Runs that differ only by seed count as
    repetitions of the same settings.

    Exit codes: 0; 2, wrong usage or a run that cannot be read.
    """
    from torchdoctor.comparing import compare as compare_all

    if output is not None and form is None and sql is None and output.suffix.lower() not in BY_SUFFIX:
        raise click.UsageError(
            f"--output {output}: the suffix must be one of {', '.join(BY_SUFFIX)}, or give --format."
        )
    processes = jobs or min(MANY, os.cpu_count() or 1)
    with _progress() as progress:
        found = compare_all(runs, metric=metric, examine=WHICH[examine], processes=processes, progress=progress)
    content = _told(found, form, output, sql)
    if output is None:
        click.echo(content)
    else:
        write_whole(output, content if content.endswith("\n") else f"{content}\n")
        click.echo(f"Wrote {output}", err=True)
    for error in found.unreadable:
        click.echo(f"Error: {printable(error)}", err=True)
    click.get_current_context().exit(2 if found.unreadable else 0)


def _told(found: Comparison, form: str | None, output: Path | None, sql: str | None) -> str:
    if sql is not None:
        from torchdoctor.comparing.query import query

        asked = query(found, sql)
        suffix = {".json": "json", ".md": "markdown"}.get(output.suffix.lower(), "full") if output else "full"
        return answer(asked.columns, asked.rows, form or suffix)
    if output is not None and form is None:
        return BY_SUFFIX[output.suffix.lower()](found.to_dict(), found.curves)
    if form in (None, "full") and output is None:
        return full(found.to_dict(), max(shutil.get_terminal_size((WIDTH, 24)).columns, 60))
    return FORMATS[form or "full"](found.to_dict())


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """Show the progress of reading on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status("Reading") as status:
        yield lambda done, total: status.update(f"Read {done:,} of {total:,}")
