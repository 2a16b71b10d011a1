"""``torchdoctor explain NAME``: what a finding, a cause, an action or a check means."""

from __future__ import annotations

import click


@click.command()
@click.argument("name")
def explain(name: str) -> None:
    """Say what a finding, a cause, an action or a check means.

    NAME is a finding (gradient-explosion or GR01), a cause (lr-too-high), an action (scale-lr) or a check of a check-up
    (gradient-flow or CK03).
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
