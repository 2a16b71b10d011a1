"""``torchdoctor check module:factory``: the check-up before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchdoctor.cli.material import exit_code, fails, load, names_a_model
from torchdoctor.reports.checkup_formats import BY_SUFFIX, FORMATS
from torchdoctor.reports.formats import write_whole

if TYPE_CHECKING:
    from torchdoctor.reports.checkup import Checkup


def _names(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for item in given for name in item.split(",") if name.strip())


@click.command()
@click.argument("factory", required=False, metavar="[MODULE:FACTORY]")
@names_a_model
@click.option("--quick", is_flag=True, help="Only the fast checks, of a pass or two: a few seconds.")
@click.option(
    "--select", multiple=True, callback=_names, metavar="NAMES", help="Run only these checks: names or codes."
)
@click.option("--ignore", multiple=True, callback=_names, metavar="NAMES", help="Skip these checks.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time limit; default: 60, with --quick 5.",
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB",
    help="Memory limit of a pass over the whole batch; default: 1, for the batch as it is checked.",
)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="Output format; default: full.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to this file; its suffix sets the format (.html, .json, .sarif, .md, .txt).",
)
@fails
def check(
    factory: str | None, form: str | None, output: Path | None, fail_on: str, memory: float | None, **given: Any
) -> None:
    """Check a model, its loss and a batch before training.

    MODULE:FACTORY returns the model, or (model, loss_fn, batch, optimizer); the same as --model.

    Exit codes: 0, nothing failed at or above --fail-on; 1, something did; 2, wrong usage or a model that cannot be
    loaded.

    \b
    torchdoctor check mine.train:make
    torchdoctor check mine.model:Net --args width=128 --data sample.pt --loss cross-entropy --quick
    """
    if output is not None and form is None and output.suffix.lower() not in BY_SUFFIX:
        raise click.UsageError(
            f"--output {output}: the suffix must be one of {', '.join(BY_SUFFIX)}, or give --format."
        )
    if factory is not None:
        given["model"] = factory
    done = _checked(given, memory)
    if output is not None:
        write_whole(output, FORMATS[form](done) + "\n" if form else BY_SUFFIX[output.suffix.lower()](done))
        click.echo(f"Wrote {output}", err=True)
    else:
        _show(done, form)
    click.get_current_context().exit(exit_code(done.severity, fail_on))


def _checked(given: dict[str, Any], memory: float | None) -> Checkup:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from torchdoctor.checks.checkup import BUDGET, QUICK_BUDGET, checkup

    material = load(given)
    console = Console(stderr=True)
    seconds = given["budget"] or (QUICK_BUDGET if given["quick"] else BUDGET)
    click.echo(f"Check-up within {seconds:g} s and {memory or 1:g} GB for a pass; nothing is changed.", err=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("check-up", total=None)

        def progress(name: str, number: int, of: int) -> None:
            bar.update(task, description=f"{name:<26}", completed=number, total=of)

        return checkup(
            material.model,
            material.loss_fn,
            material.batch,
            material.optimizer,
            loader=material.loader,
            quick=given["quick"],
            select=given["select"],
            ignore=given["ignore"],
            budget=given["budget"],
            memory=None if memory is None else round(memory * 1024**3),
            progress=progress,
        )


def _show(done: Checkup, form: str | None) -> None:
    from rich.console import Console

    from torchdoctor.reports import checkup_text

    console = Console(highlight=False, markup=False, emoji=False)
    if form in (None, "full") and console.is_terminal:
        checkup_text.show(done, console)
    else:
        click.echo(FORMATS[form or "full"](done))
