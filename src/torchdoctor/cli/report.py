"""``torchdoctor report RUN``: a page to read or to send to a colleague."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from torchdoctor.cli import options
from torchdoctor.cli.piped import as_file
from torchdoctor.reports.formats import BY_SUFFIX, FORMATS, write_whole
from torchdoctor.reports.places import report_places, run_names


@click.command(short_help="Write a run's report: one HTML file with its curves.")
@click.argument("run", metavar="RUN")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to this file: .html, .md, .txt or .json; default: a page next to the journal, or named after the run.",
)
@click.option(
    "--format", "form", type=click.Choice(list(FORMATS)), help="Print in this format instead of writing a page."
)
@options.reads_logs
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
def report(run: str, output: Path | None, form: str | None, show: bool, **wish: Any) -> None:
    """Write a run's report: one HTML file with its curves, findings, causes and changes.

    RUN is a journal folder, any log that `diagnose` reads, or - for standard input; in a folder with several runs
    each gets a page. The page makes no network requests. The command prints its path.
    """
    from torchdoctor.offline import diagnose
    from torchdoctor.sources import read_all

    with as_file(run) as source:
        runs = read_all(source, **wish)
        if output is not None and form is None and output.suffix.lower() not in BY_SUFFIX:
            raise click.UsageError(f"--output {output}: the suffix must be one of {', '.join(BY_SUFFIX)}.")
        if output is not None and len(runs) > 1:
            raise click.UsageError(
                f"{run} holds {len(runs)} runs and --output takes one: name a run, or leave --output out."
            )
        names = run_names(
            [item.path for item in runs], [str(item.header.get("context", {}).get("run", "")) for item in runs]
        )
        named = [(name, replace(diagnose(item), run=name)) for name, item in zip(names, runs, strict=True)]
    if form is not None and output is None:
        click.echo(FORMATS[form](named))
        return
    places = [output] if output is not None else report_places([item.path for item in runs])
    for place, (name, made) in zip(places, named, strict=True):
        if form is None:
            made.save(place)
        else:
            write_whole(place, FORMATS[form]([(name, made)]) + "\n")
        click.echo(place)
        if show:
            click.launch(str(place))
