"""``torchdoctor explain NAME``: what a finding, a cause, an action or a check means."""

from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command()
@click.argument("name")
@click.option(
    "--format",
    "form",
    type=click.Choice(["full", "markdown", "json"]),
    default="full",
    show_default=True,
    help="Output format; full is formatted in a terminal and Markdown elsewhere.",
)
def explain(name: str, form: str) -> None:
    """Explain a finding, a cause, an action or a check.

    NAME is a finding (gradient-explosion or GR01), a cause (lr-too-high), an action (scale-lr) or a check of a check-up
    (gradient-flow or CK03).
    """
    from rich.console import Console

    from torchdoctor.reports import catalogue

    entry = catalogue.find(name)
    console = Console()
    if form == "json":
        click.echo(json.dumps(asdict(entry), indent=2))
        return
    if form == "markdown" or not console.is_terminal:
        click.echo(entry.page)
        return
    from rich.markdown import Markdown

    console.print(Markdown(entry.page, code_theme="ansi_dark"), width=min(console.width, 100))
