"""``torchdoctor explain NAME``: what a finding, a cause or an action means."""

from __future__ import annotations

import click


@click.command()
@click.argument("name")
def explain(name: str) -> None:
    """Say what a finding, a cause or an action means.

    NAME is a finding (gradient-explosion or GR01), a cause (lr-too-high) or an action (scale-lr).
    """
    from rich.console import Console

    from torchdoctor.reports import catalogue

    page = catalogue.find(name).page
    console = Console()
    if not console.is_terminal:
        click.echo(page)
        return
    from rich.markdown import Markdown

    console.print(Markdown(page, code_theme="ansi_dark"), width=min(console.width, 100))
