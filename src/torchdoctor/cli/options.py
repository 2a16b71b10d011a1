"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]

output = click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to this file; its suffix sets the format, unless --format does (.html, .md, .txt, .json).",
)


def _mapped(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [item.partition("=") for item in given]
    for vital, sign, name in pairs:
        if not (vital.strip() and sign and name.strip()):
            raise click.BadParameter("write it as loss=COLUMN: our name, =, and the name in the log.")
    return {vital.strip(): name.strip() for vital, _, name in pairs}


def reads_logs(command: Command) -> Command:
    """Options for logs whose names or lines are not recognized: `mapping` and `pattern`."""
    mapping = click.option(
        "--map",
        "mapping",
        multiple=True,
        callback=_mapped,
        metavar="NAME=COLUMN",
        help="Name a column of the log: loss=…, val_loss=…, lr=…, grad_norm=…, step=….",
    )
    pattern = click.option(
        "--pattern", metavar="REGEX", help="Read lines of text with these named groups: (?P<step>…), (?P<loss>…)."
    )
    return mapping(pattern(command))
