"""``torchdoctor rules``: lists everything that can be found."""

from __future__ import annotations

import click

from torchdoctor.errors import did_you_mean

FORMATS = ("full", "concise", "json", "jsonl", "markdown")
OF_RUNS = ("github", "sarif", "html")
"""Formats for findings of a run or a model; a list has none."""


def _listed(ctx: click.Context, option: click.Parameter, form: str) -> str:
    if form in FORMATS:
        return form
    why = "is for findings of a run." if form in OF_RUNS else f"is not a format. {did_you_mean(form, FORMATS)}"
    raise click.BadParameter(f"{form!r} {why} Formats of a list: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")


@click.command()
@click.option(
    "--format",
    "form",
    default="full",
    show_default=True,
    callback=_listed,
    metavar=f"[{'|'.join(FORMATS)}]",
    help="Output format.",
)
@click.option(
    "--kind",
    type=click.Choice(["finding", "cause", "action", "check", "all"]),
    default="finding",
    show_default=True,
    help="What to list.",
)
def rules(form: str, kind: str) -> None:
    """List everything that can be found, one line each.

    \b
    Severities: info      it recovered by itself, or is good to know
                warning   it hurts the run, or is about to
                critical  the run is lost unless something changes
    """
    from rich.console import Console
    from rich.text import Text

    from torchdoctor.reports import catalogue

    chosen = [entry for entry in catalogue.entries() if kind in (entry.kind, "all")]
    if form != "full":
        click.echo(catalogue.LISTS[form](chosen))
        return
    console = Console(highlight=False)
    width = max(len(entry.name) for entry in chosen)
    for entry in chosen:
        mark = f"{entry.code or entry.kind:<7}"
        console.print(
            Text.assemble((mark, "cyan"), (f"{entry.name:<{width + 2}}", "bold"), entry.summary), soft_wrap=True
        )
    console.print(Text("\n`torchdoctor explain NAME` explains each of them.", "dim"))
