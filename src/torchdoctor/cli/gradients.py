"""``torchdoctor gradients``: the gradient of every layer, with remarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchdoctor.cli.material import as_json, draw, exit_code, fails, load, names_a_model, shows, weights_of

PICTURE = "gradient_flow.png"


@click.command(short_help="Show each layer's gradient on a batch, and what is unusual.")
@names_a_model
@click.option("--log-dir", metavar="RUN", help="Show the latest gradients of a recorded run instead.")
@shows(PICTURE)
@fails
def gradients(form: str, output: Path | None, no_plot: bool, fail_on: str, log_dir: str | None, **given: Any) -> None:
    """Show the gradient of every layer on a batch, with a verdict and a picture.

    \b
    torchdoctor gradients --model package.module:factory --data sample.pt
    torchdoctor gradients --model package.module:factory --checkpoint model.pt --data sample.pt --loss mse
    torchdoctor gradients --log-dir runs/today
    """
    from torchdoctor.reports.plots import gradient_figure
    from torchdoctor.reports.statistics_text import gradient_text

    found = _found(log_dir, given)
    told = found.to_dict()
    click.echo(as_json(told) if form == "json" else gradient_text(told))
    if not no_plot:
        draw(gradient_figure(told), output, PICTURE)
    click.get_current_context().exit(exit_code(found.severity, fail_on))


def _found(log_dir: str | None, given: dict[str, Any]) -> Any:
    from torchdoctor.checks.gradient_statistics import gradient_statistics, recorded_gradients

    if log_dir is not None and given["data"] is None:
        return recorded_gradients(log_dir, weights_of(given))
    material = load(given)
    return gradient_statistics(material.model, material.loss_fn, material.loader or material.batch)
