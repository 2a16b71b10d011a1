"""`torchdoctor watch`: once, in a pipe, on a terminal, and until Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.live.growing import HEADER, append, lines, steps

from torchdoctor.cli import group
from torchdoctor.live.lines import Teller
from torchdoctor.live.sight import Sight
from torchdoctor.records import Symptom
from torchdoctor.reports.report import Report

DEADLINE = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.jsonl"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "torchdoctor", "watch", *map(str, arguments)]


def test_once_shows_what_there_is(path: Path) -> None:
    append(path, lines(HEADER) + steps(0, 250, jump_at=200))
    done = CliRunner().invoke(group, ["watch", str(path.parent), "--once"])
    assert done.exit_code == 0, done.output
    assert "gradient-explosion" in done.stdout and "step 249" in done.stdout
    assert "\x1b" not in done.stdout and max(map(len, done.stdout.splitlines())) <= 80


def test_once_says_what_is_not_there(path: Path) -> None:
    done = CliRunner().invoke(group, ["watch", str(path), "--once"])
    assert done.exit_code == 2 and "waiting, no step yet" in done.stdout


def test_once_and_web_do_not_go_together(path: Path) -> None:
    assert CliRunner().invoke(group, ["watch", str(path), "--once", "--web"]).exit_code == 2


def test_in_a_pipe_each_finding_is_a_line_and_an_interrupt_is_no_error(path: Path) -> None:
    watch = subprocess.Popen(command(path.parent), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watch.stdout
    try:
        assert "waiting" in watch.stdout.readline()
        append(path, lines(HEADER) + steps(0, 250, jump_at=200))
        line = watch.stdout.readline()
        assert f"{path.parent}:200: GR01 gradient-explosion (warning)" in line and "\x1b" not in line
        assert "Sick at step 200" in watch.stdout.readline()
        append(path, lines({"type": "end", "step": 249}))
        assert "The run has ended." in watch.stdout.readline()
    finally:
        watch.send_signal(signal.SIGINT)
        rest, errors = watch.communicate(timeout=DEADLINE)
    assert (watch.returncode, rest, errors) == (0, "", "")


@pytest.mark.parametrize(
    ("term", "ending"),
    [("xterm-256color", signal.SIGINT), ("dumb", signal.SIGINT), ("xterm-256color", signal.SIGTERM)],
)
def test_on_a_terminal_it_is_drawn_and_left_as_it_was_found(path: Path, term: str, ending: signal.Signals) -> None:
    append(path, lines(HEADER) + steps(0, 250, jump_at=200))
    parent, child = pty.openpty()
    settings = {**os.environ, "TERM": term, "COLUMNS": "80", "LINES": "30"}
    watch = subprocess.Popen(command(path.parent), stdin=child, stdout=child, stderr=child, env=settings)
    os.close(child)
    try:
        screen = until(parent, "gradient-explosion")
        append(path, steps(250, 300, nan_at=290))
        screen += until(parent, "nan-or-inf")
    finally:
        watch.send_signal(ending)
        code = watch.wait(DEADLINE)
    screen += until(parent, None)
    os.close(parent)
    assert code == 0 and "Traceback" not in screen
    if term == "dumb":
        assert "\x1b" not in screen
    else:
        assert "\x1b[?25l" in screen and screen.rstrip().endswith("\x1b[?25h")


def until(terminal: int, words: str | None) -> str:
    """What a terminal shows until it shows these words, or until it is closed."""
    seen, deadline = b"", time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 0.2)
        try:
            part = os.read(terminal, 65536) if ready else b""
        except OSError:
            return seen.decode()
        seen += part
        if words is not None and words.encode() in seen:
            return seen.decode()
        if words is None and not ready:
            return seen.decode()
    pytest.fail(f"{words!r} did not come; there was {seen[-2000:]!r}")


def test_each_thing_is_told_once_and_a_worse_severity_again() -> None:
    teller = Teller()

    def told(severity: str, state: str = "running", now: float = 0.0, first: int = 7) -> list[str]:
        symptom = Symptom("loss-spike", "LO01", severity, 0.9, first, 8)  # type: ignore[arg-type]
        report = Report(step=9, symptoms=(symptom,))
        return list(teller.tell([Sight("a", "a", state, report, patience=60.0)], now))  # type: ignore[arg-type]

    assert len(told("info")) == 2 and told("info") == []
    assert told("warning") == ["a:7: LO01 loss-spike (warning)"]
    assert told("info") == [] and told("warning", first=5) == []
    assert told("warning", now=100.0) == ["a: step 9, no new step for 1 min"]
    assert told("warning") == []
    assert told("warning", "ended") == ["a: Sick since step 7: loss-spike. The run has ended."]
