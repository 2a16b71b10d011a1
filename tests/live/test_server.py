"""The page's server, asked with raw sockets: who may see what, and what nobody gets."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from torchdoctor.errors import TorchDoctorError
from torchdoctor.live import server as server_module
from torchdoctor.live.page_data import public
from torchdoctor.live.server import Board, Server, message, serve
from torchdoctor.live.sight import Sight
from torchdoctor.records import Symptom
from torchdoctor.reports.report import Report

CURVES = {"loss": [(step, 1.0, 2.0, 3.0) for step in range(50)]}
SICK = Report(step=49, symptoms=(Symptom("loss-spike", "LO01", "warning", 0.9, 40, 41),), curves=CURVES)


def sight(version: int = 1, name: str = "runs/a", report: Report = SICK) -> Sight:
    return Sight(name, name, "running", report, latest={"loss": float("nan")}, version=version)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    board = Board()
    board.post([sight()])
    with serve(board) as running:
        yield running


def ask(server: Server, target: str = "/", method: str = "GET", raw: bytes | None = None, **headers: str) -> str:
    """The answer to one request, as it came over the wire; of a stream, its first event."""
    given = {
        "Host": f"127.0.0.1:{server.server_port}",
        **{key.replace("_", "-"): text for key, text in headers.items()},
    }
    head = "".join(f"{key}: {text}\r\n" for key, text in given.items() if text)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as link:
        link.sendall(raw if raw is not None else f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
        answer = b""
        while part := link.recv(65536):
            answer += part
            if b"text/event-stream" in answer and answer.count(b"\n\n") >= 1:
                break
    return answer.decode()


def cookie_of(server: Server) -> str:
    answer = ask(server, f"/?token={server.gate.token}")
    found = re.search(r"Set-Cookie: ([^;\r\n]+); HttpOnly; SameSite=Strict", answer)
    assert found and server.gate.token not in found[1]
    return found[1]


def test_the_token_opens_the_page_and_leaves_the_address(server: Server) -> None:
    answer = ask(server, f"/?token={server.gate.token}")
    assert answer.startswith("HTTP/1.0 200") and 'content="0;url=/"' in answer
    assert "<script" not in answer and server.gate.token not in answer
    page = ask(server, Cookie=cookie_of(server))
    assert page.startswith("HTTP/1.0 200") and '<script src="/page.js"' in page


@pytest.mark.parametrize("target", ["/", "/events", "/page.js", "/?token=", "/?token=wrong", "/nothing", "/?token=%ff"])
def test_nothing_without_the_token(server: Server, target: str) -> None:
    answer = ask(server, target)
    assert answer.startswith("HTTP/1.0 403") and "runs/a" not in answer and "Set-Cookie" not in answer


def test_a_token_has_128_bits_and_is_another_one_each_time(server: Server) -> None:
    assert len(server.gate.token) >= 22
    with serve(Board()) as other:
        assert other.gate.token != server.gate.token
        assert ask(other, Cookie=cookie_of(server)).startswith("HTTP/1.0 403")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", "192.168.0.1", "", "[::1", "a b"]
)
def test_other_hosts_are_refused_even_with_the_cookie(server: Server, host: str) -> None:
    assert ask(server, Host=host, Cookie=cookie_of(server)).startswith("HTTP/1.0 403")
    assert ask(server, f"/?token={server.gate.token}", Host=host).startswith("HTTP/1.0 403")


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:8000"])
def test_a_tunnel_may_have_another_port(server: Server, host: str) -> None:
    assert ask(server, Host=host, Cookie=cookie_of(server)).startswith("HTTP/1.0 200")


def test_two_hosts_are_refused(server: Server) -> None:
    raw = f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\nCookie: {cookie_of(server)}\r\n\r\n".encode()
    assert ask(server, raw=raw).startswith("HTTP/1.0 403")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://127.0.0.1:1"])
def test_other_origins_are_refused(server: Server, origin: str) -> None:
    answer = ask(server, "/events", Origin=origin, Cookie=cookie_of(server))
    assert answer.startswith("HTTP/1.0 403") and "Access-Control" not in answer


def test_the_pages_own_origin_is_not(server: Server) -> None:
    origin = f"http://127.0.0.1:{server.server_port}"
    assert ask(server, Origin=origin, Cookie=cookie_of(server)).startswith("HTTP/1.0 200")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_it_can_only_be_read(server: Server, method: str) -> None:
    answer = ask(server, method=method, Cookie=cookie_of(server))
    assert answer.startswith("HTTP/1.0 501") and "Access-Control" not in answer


def test_head_has_no_body(server: Server) -> None:
    answer = ask(server, method="HEAD", Cookie=cookie_of(server))
    assert answer.startswith("HTTP/1.0 200") and answer.endswith("\r\n\r\n")
    assert ask(server, "/events", method="HEAD", Cookie=cookie_of(server)).startswith("HTTP/1.0 404")


@pytest.mark.parametrize(
    "target",
    [
        "/../pyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page.js/../server.py",
        "/server.py",
        "/..",
        "*",
    ],
)
def test_there_is_no_way_out_of_the_page(server: Server, target: str) -> None:
    answer = ask(server, target, Cookie=cookie_of(server))
    assert answer.startswith(("HTTP/1.0 404", "HTTP/1.0 400")) and "root:" not in answer and "import" not in answer


@pytest.mark.parametrize("target", ["/", "/page.js", "/events", "/nothing"])
@pytest.mark.parametrize("known", [True, False])
def test_every_answer_has_the_headers(server: Server, target: str, known: bool) -> None:
    answer = ask(server, target, Cookie=cookie_of(server) if known else "")
    for header in (
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "default-src 'none'",
        "frame-ancestors 'none'",
    ):
        assert header in answer
    assert "unsafe" not in answer.split("\r\n\r\n")[0] and "Access-Control" not in answer


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
)
def test_what_is_no_request_gets_nothing_and_breaks_nothing(server: Server, raw: bytes) -> None:
    answer = ask(server, raw=raw)
    assert "runs/a" not in answer and not answer.startswith("HTTP/1.0 200")
    assert ask(server, Cookie=cookie_of(server)).startswith("HTTP/1.0 200")


def test_the_stream_says_what_is_to_be_seen(server: Server) -> None:
    answer = ask(server, "/events", Cookie=cookie_of(server))
    data = json.loads(answer.split("data: ", 1)[1], parse_constant=pytest.fail)
    assert data["runs"][0]["name"] == "runs/a" and data["runs"][0]["loss"] == "NaN"
    assert data["run"]["panels"][0]["curves"][0]["buckets"][3] == [3, 1.0, 2.0, 3.0]
    assert "loss-spike" in json.dumps(data["run"]["problems"])


def test_streams_are_bounded() -> None:
    with serve(Board()) as server:
        cookie = cookie_of(server)
        for _ in range(server_module.STREAMS):
            assert server.streams.acquire(blocking=False)
        assert ask(server, "/events", Cookie=cookie).startswith("HTTP/1.0 503")
        server.streams.release()
        assert "text/event-stream" in ask(server, "/events", Cookie=cookie)


def test_connections_are_bounded() -> None:
    with serve(Board()) as server:
        cookie = cookie_of(server)
        for _ in range(server._room._value + 1):  # what answers the cookie may still hold a place
            server._room.acquire(timeout=1)
        with suppress(ConnectionError):
            assert ask(server, Cookie=cookie) == ""
        server._room.release()
        assert ask(server, Cookie=cookie).startswith("HTTP/1.0 200")


def test_a_client_that_does_not_take_what_it_is_sent_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(server_module.Handler, "timeout", 0.3)
    board = Board()
    large = {"loss": [(step, 1.0, 2.0, 3.0) for step in range(400)]}
    with serve(board) as server:
        board.post([sight(report=Report(step=9, curves=large))])
        link = socket.create_connection(("127.0.0.1", server.server_port), timeout=10)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        link.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie_of(server)}\r\n\r\n".encode())
        deadline = time.monotonic() + 30
        version = 1
        taken = False
        while time.monotonic() < deadline:
            version += 1
            board.post([sight(version, report=Report(step=9, curves=large))])
            free = server.streams._value
            taken = taken or free < server_module.STREAMS
            if taken and free == server_module.STREAMS:
                break
            time.sleep(0.001)
        else:
            pytest.fail("it is still being served")
        link.close()


def test_a_page_is_told_only_what_it_does_not_know() -> None:
    sent: dict[str, int] = {}
    first, second = sight(1, "a"), sight(1, "b")
    told = message([first, second], sent, "")
    assert told and len(told["runs"]) == 2 and told["run"]
    assert message([first, second], sent, told["run"]["id"]) is None
    other = next(item["id"] for item in told["runs"] if item["id"] != told["run"]["id"])
    changed = sight(2, "a"), sight(1, "b")
    news = message(changed, sent, other)
    assert news and [item["name"] for item in news["runs"]] == ["a"]
    gone = message(changed[:1], sent, other)
    assert gone and len(gone["order"]) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "203.0.113.7"])
def test_an_address_that_cannot_be_served_is_said_to_be(server: Server, host: str) -> None:
    with (
        pytest.raises(TorchDoctorError, match=f"cannot serve a page at {host}"),
        serve(server.board, host, server.server_port),
    ):
        pytest.fail("it is served")


def test_beyond_this_computer_addresses_are_known_and_names_are_not() -> None:
    with serve(Board(), host="0.0.0.0") as server:
        cookie = cookie_of(server)
        assert ask(server, Host="192.168.0.7:80", Cookie=cookie).startswith("HTTP/1.0 200")
        assert ask(server, Host="evil.example", Cookie=cookie).startswith("HTTP/1.0 403")
        assert ask(server, Host="192.168.0.7:80").startswith("HTTP/1.0 403")


def test_the_sickest_run_is_listed_first() -> None:
    ill = Report(step=9, symptoms=(Symptom("nan-or-inf", "NU01", "critical", 0.9, 5, 9),))
    runs = [
        Sight("new", "new", "waiting"),
        Sight("calm", "calm", "running", Report(step=9)),
        Sight("over", "over", "ended", ill),
        Sight("ill", "ill", "running", ill),
        sight(1, "sick"),
    ]
    told = message(runs, {}, "")
    assert told and told["order"] == [public(name) for name in ("ill", "over", "sick", "calm", "new")]


def test_the_line_of_a_page_reaches_what_stands_out() -> None:
    spiky = {"loss": [(step, 1.9, 2.0, 9.0 if step == 30 else 2.1) for step in range(50)]}
    told = message([sight(1, "a", replace(SICK, curves=spiky))], {}, "")
    assert told and told["run"]["panels"][0]["curves"][0]["peaks"] == [30]


def test_the_sickest_run_is_shown_and_news_of_another_does_not_push_it_away():
    ill = Report(step=9, symptoms=(Symptom("nan-or-inf", "NU01", "critical", 0.9, 5, 9),))
    sick = Sight("a", "a", "running", ill, heard=1.0, version=1)
    calm = [
        Sight(name, name, "running", Report(step=9), heard=2.0 + place, version=1) for place, name in enumerate("bc")
    ]
    sent: dict[str, int] = {}
    assert message([calm[0], sick, calm[1]], sent, "")["run"]["id"] == public("a")
    later = [replace(item, heard=50.0, version=2) for item in calm]
    assert message([later[0], sick, later[1]], sent, "")["run"] is None
    over = replace(sick, state="ended", version=2)
    assert message([*later, over], {}, "")["run"]["id"] != public("a"), (
        "a run that goes on comes before one that is over"
    )
