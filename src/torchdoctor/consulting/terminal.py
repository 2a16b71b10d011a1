"""The interview in a plain terminal: type numbers, or Enter for the default; `?`, `b`, `done`, `q` at any question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torchdoctor.consulting.casebook import OUTCOMES, Case
from torchdoctor.consulting.document import WIDTH, Block, as_text
from torchdoctor.consulting.interview import Interview
from torchdoctor.consulting.question import ConsultError, Question
from torchdoctor.consulting.questions import SYMPTOMS
from torchdoctor.consulting.telling import OUTCOME_WORDS
from torchdoctor.reports.fitting import folded
from torchdoctor.reports.wording import first_line, printable

HELP = (
    "Type the number of a choice. Enter takes the default, or means that you do not know.\n"
    "? explains a question, b goes back, done skips the remaining questions, q quits."
)


class LeavingError(Exception):
    """The person quit: q, Ctrl-C or end of input."""


class Talk:
    """A conversation: a function to read a line, a function to write text, and the width of the terminal."""

    def __init__(self, read: Callable[[str], str], write: Callable[[str], None], width: int = WIDTH) -> None:
        self._read, self._write, self.width = read, write, min(width, WIDTH)

    def say(self, text: str) -> None:
        """Write sentences, wrapped to the width of the terminal."""
        for line in text.split("\n"):
            self._write("\n".join(folded(line, self.width)) if len(line) > self.width else line)

    def show(self, blocks: Iterable[Block]) -> None:
        """Write a part of the result, after an empty line."""
        if text := as_text(blocks, self.width):
            self._write(f"\n{text}")

    def show_code(self, text: str) -> None:
        """Write lines unchanged."""
        self._write(f"\n{text}")

    def regret(self, error: Exception, name: str = "answer") -> None:
        """Say what was wrong with a typed answer."""
        words = str(error).removeprefix(f"{name}: ").replace(", or null", "")
        self.say(f"  {printable(words)}")

    def line(self, prompt: str) -> str:
        """Read one line after the last line of the prompt; raises `LeavingError` at q, Ctrl-C or end of input."""
        *before, last = prompt.split("\n")
        for text in before:
            self.say(text)
        try:
            answer = printable(self._read(last)).strip()
        except (EOFError, KeyboardInterrupt) as end:
            raise LeavingError from end
        if answer.lower() in ("q", "quit", "exit"):
            raise LeavingError
        return answer

    def choose(self, text: str, choices: Sequence[tuple[str, str]], default: int | None = 1) -> str:
        """Ask for one of the choices, by its number or name."""
        question = Question("answer", text, "", kind="choice", choices=tuple(choices))
        self.say(f"\n{text}")
        for number, (_, words) in enumerate(choices, 1):
            self.say(f"  {number}. {words}")
        while True:
            answer = self.line(f"[{default}] " if default is not None else "> ")
            if not answer and default is not None:
                return choices[default - 1][0]
            try:
                found = question.accept(answer)
            except ConsultError as error:
                self.regret(error)
                continue
            if isinstance(found, str):
                return found
            self.say(f"  Type a number from 1 to {len(choices)}.")

    def agrees(self, text: str, *, default: bool = True) -> bool:
        """Ask a yes or no question."""
        answer = self.line(f"\n{text} [{'Y/n' if default else 'y/N'}] ").lower()
        return default if not answer else answer.startswith("y")


def hold(interview: Interview, talk: Talk) -> None:
    """Ask all remaining questions."""
    talk.say(HELP)
    while (question := interview.next_question()) is not None:
        talk.say("")
        _put(interview, question, talk)
        if not _answered(interview, question, talk):
            return


def _put(interview: Interview, question: Question, talk: Talk) -> None:
    """Write the question with its choices."""
    talk.say(question.text)
    shown, marked = (interview.shown, interview.preselected) if question is SYMPTOMS else ({}, [])
    for number, (name, words) in enumerate(question.choices, 1):
        mark = ("[x] " if name in marked else "[ ] ") if marked else ""
        told = f"  ({first_line(shown[name].name)}: {first_line(shown[name].message)})" if name in shown else ""
        talk.say(f"  {number}. {mark}{words}{told}")


def _answered(interview: Interview, question: Question, talk: Talk) -> bool:
    """Read one answer or a step back; False if no more questions are wanted."""
    default = interview.preselected if question is SYMPTOMS else None
    while True:
        answer = _read(question, talk, default)
        if answer == "?":
            talk.say(f"  {question.explain}")
            continue
        if answer.lower() in ("b", "back"):
            interview.back()
            return True
        if answer.lower() == "done" and (default or question is not SYMPTOMS):
            if default:
                interview.answer(question.name, default)
            return False
        if not answer and question is SYMPTOMS and not default and interview.run is None:
            talk.say("  Choose at least one number.")
            continue
        try:
            interview.answer(question.name, answer or default)  # with a run, no choice means: just look at the run
        except ConsultError as error:
            talk.regret(error, question.name)
            continue
        if question.name in interview.contradicted:
            talk.say(f"  {interview.contradicted[question.name]}")
        return True


def _read(question: Question, talk: Talk, default: Sequence[str] | None) -> str:
    if default:
        numbers = [str(place) for place, (name, _) in enumerate(question.choices, 1) if name in default]
        return talk.line(f"[{' '.join(numbers)}] ")
    if question.kind != "numbers":
        return talk.line("> ")
    found: list[str] = []
    while answer := talk.line("> " if not found else "… (empty line to finish) "):
        if not found and answer.lower() in ("?", "b", "back", "done"):
            return answer
        if answer.lower() == "done":
            break
        found.append(answer)
    return " ".join(found)


def ask_outcome(case: Case, talk: Talk) -> str:
    """Ask for the outcome of an open case."""
    text = f"On {case.day} you planned to try {case.action} ({first_line(case.code)}){case.against}. What happened?"
    return talk.choose(printable(text), [(name, OUTCOME_WORDS[name]) for name in OUTCOMES], default=len(OUTCOMES))
