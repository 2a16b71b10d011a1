"""Options that name what a command works on; `torchdoctor.checks.loading` loads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchdoctor.records import SEVERITIES

if TYPE_CHECKING:
    from torchdoctor.checks.loading import Material
    from torchdoctor.reports.drawing import Figure

Command = Callable[..., Any]
TRUST = (
    "Reading a pickle can run any code that its author put there, with your rights. Use --trust-pickle only for files "
    "that you made, or from people whose programs you would run."
)


def names_a_model(command: Command) -> Command:
    """The options that name a model, weights, data and loss."""
    for option in reversed(
        [
            click.option(
                "--model", metavar="MODULE:FACTORY", help="The factory of the model, or of (model, loss_fn, batch)."
            ),
            click.option(
                "--args",
                "arguments",
                multiple=True,
                metavar="KEY=VALUE",
                help="An argument of the factory; repeatable.",
            ),
            click.option("--checkpoint", metavar="FILE", help="The model's weights: .pt or .safetensors."),
            click.option("--data", metavar="FILE|MODULE:FACTORY", help="One batch or more: .pt, .safetensors, .npz."),
            click.option("--loss", metavar="NAME|MODULE:NAME", help="The loss, such as cross-entropy or mse."),
            click.option("--trust-pickle", is_flag=True, help=TRUST),
        ]
    ):
        command = option(command)
    return command


def _drawable(context: click.Context, option: click.Parameter, place: Path | None) -> Path | None:
    """Refuse a picture that cannot be drawn before anything is computed."""
    from torchdoctor.reports.plots import drawable

    return None if place is None else drawable(place)


def shows(picture: str) -> Callable[[Command], Command]:
    """The options for the output format and the picture."""

    def add(command: Command) -> Command:
        for option in (
            click.option("--no-plot", is_flag=True, help="Draw no picture."),
            click.option(
                "--output",
                type=click.Path(path_type=Path),
                callback=_drawable,
                metavar="FILE",
                help=f"The picture, .png or .html; default: {picture}.",
            ),
            click.option(
                "--format",
                "form",
                type=click.Choice(["full", "json"]),
                default="full",
                show_default=True,
                help="Output format.",
            ),
        ):
            command = option(command)
        return command

    return add


def fails(command: Command) -> Command:
    """The option that decides when the exit code is 1."""
    return click.option(
        "--fail-on",
        type=click.Choice([*SEVERITIES, "never"]),
        default="critical",
        show_default=True,
        help="The lowest severity that makes the exit code 1.",
    )(command)


def load(given: Mapping[str, Any], *, needs_data: bool = True, needs_loss: bool = True) -> Material:
    """Load what the options name; print assumptions and trusted files on stderr."""
    from torchdoctor.checks.loading import load as loaded

    _say_trust(given)
    material = loaded(
        given["model"],
        given["arguments"],
        checkpoint=given["checkpoint"],
        data=given["data"],
        loss=given["loss"],
        trust_pickle=given["trust_pickle"],
        needs_data=needs_data,
        needs_loss=needs_loss,
    )
    for note in material.notes:
        click.echo(f"Note: {note}.", err=True)
    return material


def weights_of(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The weights in the checkpoint; None if none was given."""
    if given["checkpoint"] is None:
        return None
    from torchdoctor.checks.checkpoints import read_weights

    _say_trust(given)
    return read_weights(given["checkpoint"], trust_pickle=given["trust_pickle"])


def _say_trust(given: Mapping[str, Any]) -> None:
    if given["trust_pickle"]:
        files = [given[key] for key in ("model", "checkpoint", "data") if given[key] and ":" not in given[key]]
        click.echo(f"Trusted: {', '.join(files)}. {TRUST}", err=True)


def draw(figure: Figure, output: Path | None, default: str) -> Path:
    """Write a picture and print its path; without matplotlib the default picture is HTML."""
    from torchdoctor.reports.plots import can_draw_png, save

    place = output if output is not None else Path(default)
    if output is None and not can_draw_png():
        place = place.with_suffix(".html")
        click.echo("matplotlib is not installed: an HTML page is written instead of a PNG.", err=True)
    save(figure, place)
    click.echo(f"Wrote {place}", err=True)
    return place


def as_json(found: Mapping[str, Any]) -> str:
    """Strict JSON, in which non-finite numbers are strings."""
    from torchdoctor.journal.lines import encode

    return json.dumps(json.loads(encode(dict(found))), indent=2)


def exit_code(severity: str | None, fail_on: str) -> int:
    """1 if the severity is at or above `fail_on`, else 0."""
    if severity is None or fail_on == "never":
        return 0
    order: tuple[str, ...] = SEVERITIES
    return int(order.index(severity) >= order.index(fail_on))
