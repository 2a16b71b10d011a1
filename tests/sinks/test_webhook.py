"""Webhooks against a real server: what is posted, and what happens where the server is slow, broken or gone."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.sinks.sick import HEALTHY, OPENED, OVER, SICK, WORSE

from torchdoctor.errors import SettingsError
from torchdoctor.sinks import Couriers, Subject, courier, open_sink, send, webhook
from torchdoctor.sinks.sink import SinkError

SECRET = "T0-SECRET-x7"
SUBJECT = Subject("exp-7")


class Server(ThreadingHTTPServer):
    """Keeps what is posted; answers with the next of its answers, the last one for ever."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.posts, self.answers, self.paths, self.gate = [], [200], [], threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/services/{SECRET}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        server.paths.append(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        if answer == "hang":
            server.gate.wait(30)
            return
        if answer == "garbage":
            self.wfile.write(b"\x00\xff not HTTP\r\n\r\n")
            return
        if answer == 200:
            assert self.headers["Content-Type"] == "application/json"
            server.posts.append(json.loads(body))
        self.send_response(answer)
        if answer == 302:
            self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
        self.end_headers()

    def do_GET(self):
        self.do_POST()

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.gate.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(courier, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(courier, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(webhook, "TIMEOUT", 0.2)
    monkeypatch.setattr("torchdoctor.sinks.PATIENCE", (0.0, 0.0))


def test_slack_gets_text_in_one_post(server):
    sink, _ = open_sink(f"slack:{server.url}", SUBJECT)
    sink.take([*OPENED, *OVER])
    (post,) = server.posts
    assert list(post) == ["text"]
    assert post["text"].startswith("*WARN* exp-7: Sick at step 120: loss-spike, loss 9.1")
    assert "Most likely cause: lr-too-high (80 %)" in post["text"]
    assert "```\nlearning_rate *= 0.5\n# in every group\n```" in post["text"]
    assert "over" not in post["text"]


def test_discord_gets_markdown_and_mentions_nobody(server):
    sink, _ = open_sink(f"discord:{server.url}", SUBJECT)
    sink.take(WORSE)
    (post,) = server.posts
    assert post["content"].startswith("**ERROR** exp-7: Critical since step 120")
    assert post["allowed_mentions"] == {"parse": []}


def test_a_program_gets_every_field_and_the_end_of_an_episode(server):
    sink, _ = open_sink(f"webhook:{server.url}", SUBJECT)
    sink.take(OPENED)
    sink.take(OVER)
    first, last = (post["messages"][0] for post in server.posts)
    assert (first["event"], first["run"], first["level"], first["step"]) == ("opened", "exp-7", "WARN", 120)
    assert (first["cause"], first["probability"], first["suggestion"]["action"]) == ("lr-too-high", 0.8, "scale-lr")
    assert first["symptoms"][0]["code"] == "LO01"
    assert last["event"] == "closed"


def test_a_healthy_run_posts_nothing(server):
    sink, _ = open_sink(f"webhook:{server.url}", SUBJECT)
    sink.take([{"type": "note", "step": 1, "text": "x"}])
    sink.close(HEALTHY)
    sink.close(None)
    send(HEALTHY, f"slack:{server.url}", SUBJECT)
    assert server.paths == []


def test_a_finished_report_is_one_post(server):
    send(SICK, f"webhook:{server.url}", SUBJECT)
    (post,) = server.posts
    assert post["messages"][0]["event"] == "summary"
    assert len(post["messages"][0]["symptoms"]) == 2


@pytest.mark.parametrize(
    ("host", "form"),
    [
        ("https://hooks.slack.com/services/x", webhook.as_slack),
        ("https://discord.com/api/webhooks/1/x", webhook.as_discord),
        ("https://discordapp.com/api/webhooks/1/x", webhook.as_discord),
        ("https://hooks.slack.com.example.org/x", webhook.as_json),
        ("http://localhost:8000/", webhook.as_json),
    ],
)
def test_the_host_says_the_format(host, form):
    assert webhook.open_webhook(host, SUBJECT)._form is form


@pytest.mark.parametrize("answer", [500, 404, 429, 302, "hang", "garbage"])
def test_a_server_in_trouble_is_told_briefly_and_the_message_kept(server, hurry, answer):
    server.answers = [answer, 200]
    sink, _ = open_sink(f"slack:{server.url}", SUBJECT)
    with pytest.raises(SinkError) as caught:
        sink.take(OPENED)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    sink.take([])
    assert len(server.posts) == 1
    assert all(path.startswith("/services/") for path in server.paths)  # a redirect is not followed


def test_a_server_that_drips_or_is_gone(hurry):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        sink, _ = open_sink(f"slack:http://127.0.0.1:{closed.getsockname()[1]}/{SECRET}", SUBJECT)
        with pytest.raises(SinkError, match="Connection refused"):
            sink.take(OPENED)
    sink, _ = open_sink(f"slack:http://no-such-host.invalid/{SECRET}", SUBJECT)
    with pytest.raises(SinkError) as caught:
        sink.take(OPENED)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("answer", [500, "hang", "garbage"])
def test_the_loop_never_hears_of_it_and_no_log_shows_the_address(server, hurry, answer, caplog):
    caplog.set_level(logging.DEBUG)
    server.answers = [answer]
    couriers = Couriers()
    sink, label = open_sink(f"slack:{server.url}", SUBJECT)
    couriers.add(sink, label)
    couriers.take({"type": "vitals", "step": 1, "vitals": {}}, OPENED)
    couriers._couriers[0]._thread.join(20)
    troubles = couriers.troubles()
    couriers.close(SICK)
    assert len(troubles) == 1 and "the sink slack was switched off: it failed 3 times" in troubles[0][1]
    assert SECRET not in caplog.text + str(troubles) + repr(sink)
    assert len(server.paths) == 3  # few tries, and nothing after that


def test_posts_are_rare(server, hurry):
    couriers = Couriers()
    sink, label = open_sink(f"webhook:{server.url}", SUBJECT)
    couriers.add(sink, label)
    for step in range(100):
        couriers.take({"type": "vitals", "step": step, "vitals": {}}, OPENED if step % 2 else OVER)
    couriers.close(SICK)
    assert 2 <= len(server.posts) <= 4  # the first, what came within half a minute, the summary


def test_the_address_may_be_an_environment_variable(server, monkeypatch):
    monkeypatch.setenv("TD_URL", f" {server.url}\n")
    for name in ("slack:$TD_URL", "slack:${TD_URL}"):
        open_sink(name, SUBJECT)[0].take(OPENED)
    assert len(server.posts) == 2


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("", "must begin with https"),
        ("$TD_MISSING", "TD_MISSING for the sink slack is not set"),
        ("https://example.org/?key=$TD_KEY", None),  # not expanded
        ("$TD_KEY/more", "must begin with https"),
        ("file:///etc/passwd", "must begin with https"),
        ("javascript:alert(1)", "must begin with https"),
        (f"https://exa mple.org/{SECRET}", "must begin with https"),
        (f"https://example.org:99999/{SECRET}", "must begin with https"),
        (f"https://[::1/{SECRET}", "must begin with https"),
        (f"https://example.org/{SECRET}\r\nX-Evil: 1", "must begin with https"),
    ],
)
def test_addresses_that_are_refused_are_not_repeated(target, says, monkeypatch):
    monkeypatch.setenv("TD_KEY", "https://example.org/sesame")
    assert "TD_MISSING" not in os.environ
    if says is None:
        assert "sesame" not in webhook.address(target, "slack")
        return
    with pytest.raises(SettingsError, match=says) as caught:
        open_sink(f"slack:{target}", SUBJECT)
    assert SECRET not in str(caught.value) and "sesame" not in str(caught.value)


def test_a_report_that_cannot_be_sent_is_an_error(server, hurry):
    server.answers = [500]
    with pytest.raises(SinkError, match="the sink slack did not accept the report: the server answered 500") as caught:
        send(SICK, f"slack:{server.url}", SUBJECT)
    assert SECRET not in str(caught.value)
    assert len(server.paths) == 3
