"""``torchdoctor diagnose PATH...``: reports on recorded runs."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from torchdoctor.cli import options
from torchdoctor.cli.material import fails
from torchdoctor.cli.piped import as_file
from torchdoctor.errors import SourceError
from torchdoctor.records import INFORMATIVE, SEVERITIES
from torchdoctor.reports.formats import BY_SUFFIX, FORMATS, as_json, write_whole
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import printable
from torchdoctor.settings import CHOICES, Settings


def _names(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for item in given for name in item.split(",") if name.strip())


def _sinks(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if given:
        from torchdoctor.sinks import check_name

        for sink in given:
            check_name(sink)
    return given


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="Output format; default: full.")
@options.output
@fails
@click.option(
    "--select",
    multiple=True,
    callback=_names,
    metavar="NAMES",
    help="Report only these findings: names, codes, a code's letters or patterns ('gradient-*').",
)
@click.option("--ignore", multiple=True, callback=_names, metavar="NAMES", help="Leave these findings out.")
@options.reads_logs
@click.option("--preset", type=click.Choice(CHOICES["preset"]), help="Thresholds to use; default: as configured.")
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use this TOML file instead of the nearest torchdoctor.toml.",
)
@click.option(
    "--send",
    multiple=True,
    callback=_sinks,
    metavar="SINK",
    help="Also send findings to this sink: slack:$SLACK_URL, webhook:URL, tensorboard:DIR, prometheus:FILE.prom, "
    "wandb:PROJECT, trackio:PROJECT, mlflow:RUN_ID ...",
)
def diagnose(paths: tuple[str, ...], form: str | None, output: Path | None, fail_on: str, **given: Any) -> None:
    """Say what is wrong with recorded runs.

    PATH is a log of a run, or a folder with one or several: a journal, TensorBoard events, a W&B offline run, MLflow,
    Trackio, a Hugging Face output folder, CSV, JSON, JSON Lines or Parquet, or what the script printed. The
    log may be gzipped or still growing. - is standard input.

    \b
    torchdoctor diagnose runs/today
    torchdoctor diagnose lightning_logs/version_3/metrics.csv
    torchdoctor diagnose train.log --map loss=total
    torchdoctor diagnose train.log --pattern 'it (?P<step>\\d+) .* L=(?P<loss>\\S+)'

    Exit codes: 0, nothing at or above --fail-on; 1, something found; 2, wrong usage, a run that cannot be read, or
    a sink that fails.
    """
    wish = {"mapping": given.pop("mapping"), "pattern": given.pop("pattern")}
    send = given.pop("send")
    file = given.pop("settings")
    settings, changed = Settings.load(file), {name: value for name, value in given.items() if value}
    if output is not None and form is None:
        _check_output(output, len(paths))
    reports, unreadable = _examined(paths, settings, wish, changed, as_given=file is not None)
    if output is not None and form is None:
        _check_output(output, len(reports))
    if reports:
        _deliver(reports, form, output, several=len(paths) > 1)
    if unreadable + _unsent(reports, send, settings):
        click.get_current_context().exit(2)
    click.get_current_context().exit(1 if any(_fails(report, fail_on) for _, report in reports) else 0)


def _check_output(output: Path, runs: int) -> None:
    if output.suffix.lower() not in BY_SUFFIX:
        raise click.UsageError(
            f"--output {output}: the suffix must be one of {', '.join(BY_SUFFIX)}, or give --format."
        )
    if runs > 1:
        raise click.UsageError("--output takes one run, or several together with --format.")


def _examined(
    paths: tuple[str, ...], settings: Settings, wish: dict[str, Any], changed: dict[str, Any], *, as_given: bool
) -> tuple[list[tuple[str, Report]], int]:
    from rich.console import Console
    from rich.text import Text

    from torchdoctor.offline import as_watched
    from torchdoctor.offline import diagnose as examine
    from torchdoctor.sources import labels, read_all

    console = Console(stderr=True)
    reports: list[tuple[str, Report]] = []
    unreadable = 0
    for path in paths:
        status = console.status(Text(f"Reading {printable(path)}")) if console.is_terminal else nullcontext()
        try:
            with status, as_file(path) as place:
                runs = read_all(place, **wish)
                names = labels(runs) if len(runs) > 1 else [path]
                for name, run in zip(names, runs, strict=True):
                    chosen = settings if as_given else as_watched(run, settings)
                    chosen = replace(chosen, **changed) if changed else chosen
                    reports.append((name, examine(run, settings=chosen if as_given or changed else None)))
        except SourceError as error:
            unreadable += 1
            click.echo(f"Error: {printable(error)}", err=True)
    return reports, unreadable


def _deliver(reports: list[tuple[str, Report]], form: str | None, output: Path | None, *, several: bool) -> None:
    # If several runs were requested but only one could be read, programs still get a list.
    write = partial(as_json, listed=several) if form == "json" else FORMATS[form or "full"]
    if output is not None:
        write_whole(output, write(reports) + "\n" if form else BY_SUFFIX[output.suffix.lower()](reports[0][1]))
        click.echo(f"Wrote {output}", err=True)
    elif form in (None, "full"):
        _show(reports)
    else:
        click.echo(write(reports))


def _unsent(reports: list[tuple[str, Report]], sinks: tuple[str, ...], settings: Settings) -> int:
    if not sinks:
        return 0
    from torchdoctor.sinks import send_all  # imports network code, which is rarely needed

    with redirect_stdout(sys.stderr):  # libraries print messages, and stdout may hold a report as JSON
        troubles = send_all(reports, sinks, settings.sinks_from)
    for trouble in troubles:
        click.echo(f"Error: {printable(trouble)}", err=True)
    return len(troubles)


def _show(reports: list[tuple[str, Report]]) -> None:
    """Show the full text, colored on a terminal."""
    from rich.console import Console

    from torchdoctor.reports import text

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        click.echo(FORMATS["full"](reports))
        return
    for position, (name, report) in enumerate(reports):
        if len(reports) > 1:
            console.print("\n" * bool(position) + printable(name))
        text.show(report, console)


def _fails(report: Report, fail_on: str) -> bool:
    if fail_on == "never":
        return False
    bar = SEVERITIES.index(fail_on)
    return any(SEVERITIES.index(item.severity) >= bar for item in report.symptoms if item.name not in INFORMATIVE)
