"""``torchdoctor activations``: the outputs of every module, with remarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchdoctor.cli.material import as_json, draw, exit_code, fails, load, names_a_model, shows

PICTURE = "activations.png"


@click.command(short_help="Show each module's output on a batch, and what is unusual.")
@names_a_model
@click.option("--eval", "evaluating", is_flag=True, help="Use eval mode: no dropout, running statistics.")
@shows(PICTURE)
@fails
def activations(form: str, output: Path | None, no_plot: bool, fail_on: str, evaluating: bool, **given: Any) -> None:
    """Show the distribution of every module's output on a batch, with a verdict and a picture.

    \b
    torchdoctor activations --model package.module:factory --data sample.pt
    torchdoctor activations --model package.module:factory --checkpoint model.pt --data sample.npz
    """
    from torchdoctor.checks.activation_statistics import activation_statistics
    from torchdoctor.reports.plots import activation_figure
    from torchdoctor.reports.statistics_text import activation_text

    material = load(given, needs_loss=False)
    found = activation_statistics(material.model, material.loader or material.batch, training=not evaluating)
    told = found.to_dict()
    click.echo(as_json(told) if form == "json" else activation_text(told))
    if not no_plot:
        draw(activation_figure(told), output, PICTURE)
    click.get_current_context().exit(exit_code(found.severity, fail_on))
