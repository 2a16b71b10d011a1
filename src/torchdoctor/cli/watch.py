"""``torchdoctor watch RUN...``: watches runs while they train, in the terminal or on a page."""

from __future__ import annotations

import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from torchdoctor.cli.piped import not_piped
from torchdoctor.settings import Settings


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", callback=not_piped)
@click.option("--web", is_flag=True, help="Serve a page instead, for this computer only, with a token.")
@click.option("--once", is_flag=True, help="Show the current state and stop.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page; default: a free one.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address of the page. On another one, anyone with the token can read the page, unencrypted.",
)
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use this TOML file instead of the nearest torchdoctor.toml.",
)
def watch(runs: tuple[str, ...], web: bool, once: bool, port: int, host: str, settings: Path | None) -> None:
    """Watch runs while they train.

    RUN is a journal folder or file, a folder with several runs (new ones are added), or any log that `diagnose`
    reads. It need not exist yet. Nothing is written to it.

    Without a terminal, each finding is printed on a line. Ctrl-C ends the watch, never the run.
    """
    from torchdoctor.live import watching
    from torchdoctor.live.ward import Ward

    if once and web:
        raise click.UsageError("--once shows the current state in the terminal: leave out --web.")
    ward = Ward(runs, Settings.load(settings))
    if once:
        missing = watching.once(ward)
        click.get_current_context().exit(2 if missing else 0)
    with suppress(ValueError):  # outside the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: the cursor comes back
    if web:
        watching.on_a_page(ward, host, port, click.echo, partial(click.echo, err=True))
    else:
        watching.in_a_terminal(ward, click.echo)
