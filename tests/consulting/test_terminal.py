"""The interview on a real pseudo-terminal: numbers, Enter, ?, b, Ctrl-C, and what is kept from one to the next."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import pytest
from tests.consulting.journals import recorded
from tests.consulting.scripts import PLAIN

from torchdoctor.consulting.casebook import Casebook

pty = pytest.importorskip("pty", reason="pseudo-terminals are a Unix thing")
PATIENCE = 60.0
"""Seconds after which a program that says nothing is taken to hang; not a measurement."""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        pid, self.file = pty.fork()
        if pid == 0:  # the child: nothing of the test may run on in it
            try:
                os.chdir(folder)
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in what a shell has put into the background
                environment = os.environ | {"XDG_DATA_HOME": str(folder / "data"), "TERM": "dumb", "COLUMNS": "100"}
                os.execve(sys.executable, [sys.executable, "-m", "torchdoctor", "consult", *arguments], environment)
            finally:
                os._exit(127)
        self.pid, self.seen, self.read = pid, "", 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.file)

    def expect(self, text: str) -> str:
        """Wait until it has said this, after what it said before."""
        end = time.monotonic() + PATIENCE
        while text not in self.seen[self.read :]:
            assert time.monotonic() < end and self._more(), f"waited for {text!r}, got:\n{self.seen[self.read :]}"
        place = self.seen.index(text, self.read) + len(text)
        said, self.read = self.seen[self.read : place], place
        return said

    def _more(self) -> bool:
        ready, _, _ = select.select([self.file], [], [], 1.0)
        if not ready:
            return True
        try:
            piece = os.read(self.file, 65536)
        except OSError:  # Linux: the other end is closed
            return False
        self.seen += piece.decode(errors="replace").replace("\r\n", "\n")
        return bool(piece)

    def send(self, text: str, *, enter: bool = True) -> None:
        os.write(self.file, text.encode() + (b"\n" if enter else b""))

    def interrupt(self, text: str) -> str:
        """Press Ctrl-C until it is heard: one between a prompt and its reading is lost in the interpreter."""
        for _ in range(8):
            self.send("\x03", enter=False)
            end = time.monotonic() + 5
            while text not in self.seen[self.read :] and time.monotonic() < end and self._more():
                pass
            if text in self.seen[self.read :]:
                break
        return self.expect(text)

    def answer(self, question: str, text: str) -> None:
        """Wait for a question and its prompt, and answer it."""
        self.expect(question)
        self.expect("> ")
        self.send(text)

    def finish(self) -> int:
        end = time.monotonic() + PATIENCE
        while self._more():
            assert time.monotonic() < end
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def through(terminal: Terminal, until: str) -> str:
    """Enter to everything that is asked until something is said."""
    end = time.monotonic() + PATIENCE
    while until not in terminal.seen[terminal.read :]:
        assert time.monotonic() < end and terminal._more(), terminal.seen[terminal.read :]
        asked = terminal.seen.rfind("\n> ") >= terminal.read and terminal.seen.endswith("> ")
        if asked and until not in terminal.seen[terminal.read :]:
            terminal.read = len(terminal.seen)
            terminal.send("")
    return terminal.expect(until)


def test_an_interview_with_everything(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN, encoding="utf-8")
    with Terminal(tmp_path, "--transcript", "talk.md") as terminal:
        terminal.expect("? explains a question, b goes back")
        terminal.answer("What symptoms are you seeing?", "")  # Enter: something must be chosen
        terminal.answer("Choose at least one", "nonsense")
        terminal.answer("is not one of the choices", "?")
        terminal.answer("Type the numbers", "4")
        terminal.answer("At which step was the first NaN", "soon")
        terminal.answer("'soon' is not a number", "12")
        terminal.answer("What was the last valid loss?", "b")
        terminal.answer("At which step was the first NaN", "15")
        terminal.answer("What was the last valid loss?", "2.31")
        terminal.answer("Did gradient norms grow before the first NaN?", "1")
        through(terminal, "What is the highest learning rate?")
        terminal.expect("> ")
        terminal.send("0.1")
        through(terminal, "What are the recent loss values")
        terminal.expect("> ")
        terminal.send("2.4 2.3, 2.31")
        terminal.expect("empty line to finish")
        terminal.send("")
        terminal.answer("How many more short test runs", "")
        said = terminal.expect("Which change would you like to try?")
        assert "Most likely cause (" in said and "Diagnosis tree: NaN loss" in said
        terminal.expect("[1] ")
        terminal.send("scale-lr")
        terminal.answer("Write it to a settings file (learning_rate = 0.05)?", "new.toml")
        terminal.answer("path of the training script", "missing.py")
        terminal.expect("cannot read the script")
        terminal.answer("path of the training script", "train.py")
        assert "+optimizer = torch.optim.SGD(model.parameters(), lr=0.05)" in terminal.expect(
            "Write this patch to a file?"
        )
        terminal.expect("> ")
        terminal.send("")
        terminal.expect("git apply fix.patch")
        terminal.expect("torchdoctor compare runs/before runs/after")
        assert terminal.finish() == 1  # a NaN is critical
    assert "learning_rate = 0.05" in (tmp_path / "new.toml").read_text(encoding="utf-8")
    assert subprocess.run(["git", "apply", "--check", "fix.patch"], cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == PLAIN
    page = (tmp_path / "talk.md").read_text(encoding="utf-8")
    assert "> 15" in page and "Most likely cause" in page and "```diff" in page
    [case] = Casebook(tmp_path / "data" / "torchdoctor" / "casebook.jsonl").cases()
    assert case.action == "scale-lr" and case.outcome is None


def test_the_next_consultation_asks_what_came_of_it(tmp_path: Path) -> None:
    book = Casebook(tmp_path / "data" / "torchdoctor" / "casebook.jsonl")
    known = {"cause": "clip-missing", "action": "set-clip-norm", "code": "grad_clip = 1.0"}
    book.open_case(project=str(tmp_path), complaints=["nan"], **known)
    with Terminal(tmp_path, str(recorded(tmp_path / "run", nan_at=200))) as terminal:
        terminal.expect("you planned to try set-clip-norm (grad_clip = 1.0) against clip-missing.")
        terminal.expect("[4] ")
        terminal.send("2")
        said = terminal.expect("[4 5] ")  # what the run shows is marked, with its numbers
        assert "4. [x] Loss went to NaN or Inf  (nan-or-inf: loss is NaN)" in said
        terminal.send("")
        assert "At which step was the first NaN" not in through(terminal, "Which change would you like to try?")
        terminal.expect("none of them")
        assert "did nothing" in terminal.seen and "tried without success" in terminal.seen
        assert "1. set-clip-norm" not in terminal.seen and ". set-clip-norm against" in terminal.seen  # others first
        terminal.send("q")
        assert terminal.finish() == 130
    assert book.cases()[0].outcome == "nothing"


def test_ctrl_c_keeps_the_answers(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.answer("What symptoms", "7")
        terminal.answer("What are the training losses", "3 2 1")
        terminal.expect("empty line to finish")
        terminal.send("")
        terminal.expect("What are the validation losses")
        terminal.expect("> ")
        terminal.interrupt("Your answers are kept")
        assert terminal.finish() == 130
        assert "Traceback" not in terminal.seen
    draft = Casebook(tmp_path / "data" / "torchdoctor" / "casebook.jsonl").draft(str(tmp_path))
    assert draft is not None and draft.answers["train_losses"] == [3.0, 2.0, 1.0]
    with Terminal(tmp_path) as terminal:
        terminal.expect("after 2 answers. Continue it? [Y/n]")
        terminal.send("")
        terminal.answer("What are the validation losses", "\x04")
        terminal.send("\x04", enter=False)
        terminal.expect("Left.")
        terminal.finish()


def test_a_healthy_run_is_left_in_peace(tmp_path: Path) -> None:
    with Terminal(tmp_path, str(recorded(tmp_path / "run")), "--no-casebook") as terminal:
        terminal.answer("What symptoms", "")
        terminal.expect("Healthy at step 299: nothing was found.")
        assert terminal.finish() == 0
    assert not (tmp_path / "data").exists()


def test_names_from_a_log_cannot_move_the_cursor(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", nan_at=200)
    journal = run / "journal.jsonl"
    lines = journal.read_text(encoding="utf-8").splitlines()
    lines.insert(1, json.dumps({"type": "note", "step": 0, "text": "\x1b[2Jowned\x1b]0;x\x07"}))
    journal.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with Terminal(tmp_path, str(run), "--no-casebook") as terminal:
        terminal.expect("[4 5] ")
        terminal.send("")
        through(terminal, "Which change")
        terminal.send("6")
        terminal.send("q")
        terminal.finish()
        assert "\x1b[2J" not in terminal.seen and "\x07" not in terminal.seen
