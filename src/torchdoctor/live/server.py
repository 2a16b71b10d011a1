"""The page's server: for this computer only unless told otherwise, read-only, and limited in its connections."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from torchdoctor.errors import TorchDoctorError
from torchdoctor.journal.lines import encode
from torchdoctor.live.gate import HEADERS, Gate
from torchdoctor.live.page_data import detail, public, summary
from torchdoctor.live.sight import Sight
from torchdoctor.reports.verdict import HEALTH_WORDS

CONNECTIONS = 64
STREAMS = 16
"""Most pages that are kept up to date at once."""
PATIENCE = 10.0
"""Seconds that a client may take to send its request, or to receive an answer."""
HEARTBEAT = 15.0
"""Seconds after which an empty line is sent, to notice pages that were closed."""
PAGES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
MOVED = b"""<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">
<title>Training Doctor</title><a href="/">Continue</a></html>"""
"""Removes the token from the address. After a redirect, a browser coming from another site would omit the cookie."""
REFUSED = b"Not allowed. Open the address that `torchdoctor watch --web` printed, with its token.\n"


class Board:
    """The current state of all runs, for threads that wait for changes."""

    def __init__(self) -> None:
        self._sights: tuple[Sight, ...] = ()
        self._state: object = None
        self._version = 0
        self._changed = threading.Condition()
        self.closed = False

    def post(self, sights: Sequence[Sight]) -> None:
        """Publish the current state."""
        state = [(sight.key, sight.version, sight.state) for sight in sights]
        if state == self._state:
            return
        with self._changed:
            self._sights, self._state = tuple(sights), state
            self._version += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Release all waiting threads."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wait(self, known: int, seconds: float) -> tuple[int, tuple[Sight, ...]]:
        """The latest version and its state, as soon as it differs from the known one."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._version != known, seconds)
            return self._version, self._sights


def _worth_showing(sight: Sight) -> tuple[bool, int, float]:
    """Sort key of the run shown by default: of the running ones the sickest, else the sickest that was heard last.

    New steps of another run do not change the choice, or the page would jump from run to run.
    """
    running = sight.state == "running"
    return running, list(HEALTH_WORDS).index(sight.report.health), 0.0 if running else sight.heard


def _listed(sight: Sight) -> tuple[int, bool]:
    """Sort key of the list: the sickest first, then running ones; runs without any steps come last."""
    known = sight.report.step >= 0
    return -list(HEALTH_WORDS).index(sight.report.health) if known else 1, sight.state != "running"


def message(sights: Sequence[Sight], sent: dict[str, int], chosen: str) -> dict[str, Any] | None:
    """What a page does not know yet: changed rows, and the chosen run in full; None if nothing changed."""
    changed = [sight for sight in sights if sent.get(sight.key) != sight.version]
    if not changed and len(sent) == len(sights):
        return None
    now = time.monotonic()
    sent.clear()
    sent.update((sight.key, sight.version) for sight in sights)
    found = next((sight for sight in sights if public(sight.key) == chosen), None)
    if found is None and sights:
        found = max(sights, key=_worth_showing)
    return {
        "order": [public(sight.key) for sight in sorted(sights, key=_listed)],
        "runs": [summary(sight, now) for sight in changed],
        "run": detail(found) if found in changed else None,
    }


class Server(ThreadingHTTPServer):
    """Serves the page of one board."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, board: Board, host: str, port: int) -> None:
        self.board = board
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self.streams = threading.BoundedSemaphore(STREAMS)
        super().__init__((host, port), Handler)
        self.gate = Gate(host, self.server_address[1])

    def server_bind(self) -> None:
        """Bind without a name server lookup of our own name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def address(self) -> str:
        """The address to open."""
        host = self.server_name if self.server_name not in ("0.0.0.0", "::") else socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/?token={self.gate.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a request, if there is room."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a request in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away or do not speak HTTP."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    server_version = "torchdoctor"
    sys_version = ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Serve the page, its files, and the stream of changes."""
        place = urlsplit(self.path)
        asked = parse_qs(place.query, max_num_fields=8)
        gate = self.server.gate
        if not gate.knows_host(self.headers):
            self._answer(403, REFUSED)
        elif place.path == "/" and gate.knows_token(asked.get("token", [""])[0]):
            self._answer(200, MOVED, "text/html; charset=utf-8", {"Set-Cookie": gate.cookie})
        elif not gate.knows_cookie(self.headers):
            self._answer(403, REFUSED)
        elif place.path in PAGES:
            name, kind = PAGES[place.path]
            self._answer(200, asset(name), kind)
        elif place.path == "/events" and self.command == "GET":
            self._stream(asked.get("run", [""])[0])
        else:
            self._answer(404, b"There is nothing here.\n")

    def do_HEAD(self) -> None:
        """The same without a body; no other methods are supported."""
        self.do_GET()

    def _answer(
        self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        """Add the headers of every answer, including the base class's errors."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _stream(self, chosen: str) -> None:
        server = self.server
        if not server.streams.acquire(blocking=False):
            self._answer(503, b"Too many pages are open.\n", headers={"Retry-After": "10"})
            return
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.end_headers()
            self._tell(chosen)
        except OSError:  # the client went away, or did not receive in time
            return
        finally:
            server.streams.release()

    def _tell(self, chosen: str) -> None:
        version, sent = -1, dict[str, int]()
        board = self.server.board
        while not board.closed:
            version, sights = board.wait(version, HEARTBEAT)
            told = message(sights, sent, chosen)
            self.wfile.write(b":\n\n" if told is None else f"data: {encode(told)}\n\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a request may hold the token."""


@cache
def asset(name: str) -> bytes:
    """A file next to this one."""
    return files("torchdoctor.live").joinpath(name).read_bytes()


@contextmanager
def serve(board: Board, host: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    """Run a server in its own thread until the block ends."""
    try:
        server = Server(board, host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TorchDoctorError(
            f"cannot serve a page at {host}:{port}: {reason}. Give an address of this machine and a free port."
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="torchdoctor-page", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        board.close()
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
