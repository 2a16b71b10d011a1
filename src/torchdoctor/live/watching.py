"""The three ways to watch: on a screen that is redrawn, line by line, or on a page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from torchdoctor.live import screen
from torchdoctor.live.gate import is_loopback
from torchdoctor.live.lines import Teller
from torchdoctor.live.server import Board, serve
from torchdoctor.live.ward import POLL, Ward

Say = Callable[[str], object]
"""Prints a line."""


def once(ward: Ward) -> bool:
    """Show the current state; returns whether something that was asked for is missing."""
    follow(ward, lambda: not ward.more)
    console = _console()
    sights = ward.sights()
    console.print(screen.render(sights, console, left_out=ward.left_out, height=sys.maxsize), soft_wrap=True)
    return any(sight.state in ("waiting", "unreadable") for sight in sights)


def in_a_terminal(ward: Ward, say: Say) -> None:
    """Until Ctrl-C: a view that is redrawn when something has changed, or one line per finding."""
    console = _console()
    if not console.is_terminal or console.is_dumb_terminal:
        in_lines(ward, say)
        return
    drawn: object = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def draw() -> bool:
            nonlocal drawn
            now = time.monotonic()
            sights = ward.sights()
            state = (console.size, [(sight.key, sight.version, sight.progress(now)) for sight in sights])
            if state != drawn:
                live.update(screen.render(sights, console, now, ward.left_out), refresh=True)
                drawn = state
            return False

        follow(ward, draw)


def in_lines(ward: Ward, say: Say) -> None:
    """Until Ctrl-C: one line per finding."""
    teller = Teller()

    def tell() -> bool:
        for line in teller.tell(ward.sights(), time.monotonic()):
            say(line)
        return False

    follow(ward, tell)


def on_a_page(ward: Ward, host: str, port: int, say: Say, whisper: Say) -> None:
    """Until Ctrl-C: the page, whose address goes to stderr, and one line per finding."""
    board = Board()
    teller = Teller()
    with serve(board, host, port) as server:
        whisper(f"Open {server.address}\nCtrl-C ends the watch, not the run.")
        if not is_loopback(host):
            whisper("Anyone who can reach this address and has the token can read the page; it is not encrypted.")

        def post() -> bool:
            sights = ward.sights()
            board.post(sights)
            for line in teller.tell(sights, time.monotonic()):
                say(line)
            return False

        follow(ward, post)


def follow(ward: Ward, show: Callable[[], bool]) -> None:
    """Look and show repeatedly, until `show` returns true or Ctrl-C."""
    shown = float("-inf")
    try:
        while True:
            ward.poll()
            if not ward.more or time.monotonic() - shown > POLL:
                shown = time.monotonic()
                if show():
                    return
            if not ward.more:
                time.sleep(POLL)
    except KeyboardInterrupt:
        return


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)
