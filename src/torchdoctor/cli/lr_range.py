"""``torchdoctor lr-range``: find a learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchdoctor.cli.material import as_json, draw, load, names_a_model, shows

PICTURE = "lr_range.png"
OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad"}


@click.command(short_help="Find a learning rate by short trials.")
@names_a_model
@click.option(
    "--optimizer", type=click.Choice(list(OPTIMIZERS)), help="The optimizer; default: the factory's, or adamw."
)
@click.option(
    "--momentum", type=click.FloatRange(0, 1, max_open=True), default=0.9, show_default=True, help="Momentum of sgd."
)
@click.option(
    "--start",
    type=click.FloatRange(0, min_open=True),
    default=1e-7,
    show_default=True,
    help="First learning rate.",
)
@click.option(
    "--end", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, help="Last learning rate."
)
@click.option("--steps", type=click.IntRange(20, 100_000), default=200, show_default=True, help="Steps of the sweep.")
@click.option(
    "--trials",
    type=click.IntRange(0, 100_000),
    default=100,
    show_default=True,
    help="Steps to try each learning rate that the curve suggests; 0 uses the curve alone.",
)
@shows(PICTURE)
def lr_range(form: str, output: Path | None, no_plot: bool, **given: Any) -> None:
    """Find a learning rate: raise it until the loss rises, then try the candidates from the curve.

    \b
    torchdoctor lr-range --model package.module:factory --data package.module:loader
    torchdoctor lr-range --model package.module:factory --data sample.pt --optimizer sgd

    Exit codes: 0, a learning rate is suggested; 1, the loss fell at none; 2, wrong usage.
    """
    from torchdoctor.checks.lr_range import lr_range as test
    from torchdoctor.reports.plots import lr_range_figure

    material = load(given)
    optimizer = _optimizer(material.model, given) if given["optimizer"] else material.optimizer
    found = test(
        material.model,
        material.loss_fn,
        material.loader or material.batch,
        optimizer,
        start=given["start"],
        end=given["end"],
        steps=given["steps"],
        trials=given["trials"],
    )
    click.echo(as_json(found.to_dict()) if form == "json" else str(found))
    if not no_plot:
        draw(lr_range_figure(found.to_dict()), output, PICTURE)
    click.get_current_context().exit(0 if found.suggestion is not None else 1)


def _optimizer(model: Any, given: dict[str, Any]) -> Any:
    from torchdoctor.checks.lr_range import optimizer_named

    more = {"momentum": given["momentum"]} if given["optimizer"] == "sgd" else {}
    return optimizer_named(OPTIMIZERS[given["optimizer"]], model, **more)
