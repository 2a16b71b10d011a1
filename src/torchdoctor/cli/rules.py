"""``torchdoctor rules``: everything that can be found."""

from __future__ import annotations

import click

FORMATS = ("full", "concise", "json", "jsonl", "markdown")


@click.command()
@click.option("--format", "form", type=click.Choice(FORMATS), default="full", show_default=True, help="How to print.")
@click.option(
    "--kind",
    type=click.Choice(["finding", "cause", "action", "check", "all"]),
    default="finding",
    show_default=True,
    help="What to list.",
)
def rules(form: str, kind: str) -> None:
    """List what can be found, a line each.

    \b
    Severities: info      it healed alone, or is good to know
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
    console.print(Text("\n`torchdoctor explain NAME` says more of each.", "dim"))
