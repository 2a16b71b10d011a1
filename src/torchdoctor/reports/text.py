"""A report as text: for `print(report)`, for a log, and, with colour, for a terminal.

>>> print(render(Report(step=899)))
Healthy at step 899: nothing was found.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from torchdoctor.records import Diagnosis, Health, Severity, Symptom
from torchdoctor.reports.problem import (
    Problem,
    episodes,
    heading,
    meaning,
    overview,
    problems,
    remedy,
    story,
    told_apart,
    weighed,
)
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import advice, changes_title, leading, verdict
from torchdoctor.reports.wording import checkup_texts, first_line, label, printable, steps_text, times_text, where_text

if TYPE_CHECKING:
    from rich.console import Console

Role = Literal["verdict", "title", "plain", "faint", "code", "info", "warning", "critical"]
WIDTH = 100
CHANGES = 5
"""Changes that are shown with their code; the others are only named."""

STYLES: dict[str, str] = {
    "verdict": "bold",
    "title": "bold",
    "plain": "",
    "faint": "dim",
    "code": "cyan",
    "info": "blue",
    "warning": "yellow",
    "critical": "bold red",
}
HEALTH_STYLES: dict[Health, str] = {
    "healthy": "bold green",
    "watch": "bold blue",
    "sick": "bold yellow",
    "critical": "bold red",
}


class Line(NamedTuple):
    """One paragraph: its style, its text, and the indentation of its first and of its following lines."""

    role: Role
    text: str
    indent: int = 0
    hanging: int = 0


def render(report: Report, width: int = WIDTH) -> str:
    """The whole report as plain text."""
    return "\n".join("\n".join(wrapped(line, width)) for line in lines(report))


def show(report: Report, console: Console) -> None:
    """The whole report on a rich console, coloured where that has colours."""
    from rich.text import Text  # only a terminal pays for rich

    for line in lines(report):
        style = HEALTH_STYLES[report.health] if line.role == "verdict" else STYLES[line.role]
        for part in wrapped(line, min(console.width, WIDTH)):
            console.print(Text(part, style=style), soft_wrap=True)


def wrapped(line: Line, width: int) -> list[str]:
    """A paragraph in lines of at most `width`; names are never broken."""
    if line.role == "code":
        return [" " * line.indent + part for part in line.text.split("\n")]
    return textwrap.wrap(
        line.text,
        max(width, 40),
        initial_indent=" " * line.indent,
        subsequent_indent=" " * (line.indent + line.hanging),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def lines(report: Report) -> Iterator[Line]:
    """The report, paragraph by paragraph."""
    yield Line("verdict", verdict(report))
    if summary := advice(report):
        yield Line("plain", summary)
    yield from _overview(report)
    for problem in problems(report):
        yield Line("plain", "")
        yield from _problem(problem)
    yield from _changes(report)
    yield from _listed("Check-up before the run", checkup_texts(report))
    yield from _listed("Phases of training", [printable(item.get("message", "")) for item in report.phases])
    yield from _listed(
        "Notes: what could not be judged, and how the data was read", [printable(text) for text in report.notes]
    )
    if (symptom := leading(report)) is not None:
        yield Line("plain", "")
        yield Line(
            "faint", f"`torchdoctor explain {printable(symptom.name)}` explains this finding; it explains causes too."
        )


def _listed(title: str, texts: list[str]) -> Iterator[Line]:
    if texts:
        yield Line("plain", "")
        yield Line("title", title)
        for text in texts:
            yield Line("plain", f"- {text}", 2, 2)


def _overview(report: Report) -> Iterator[Line]:
    rows = overview(report)
    if rows:
        yield Line("plain", "")
        yield Line("title", f"{len(rows)} problems, worst first")
        for problem, words in rows:
            yield Line(problem.severity, f"{problem.number}. {problem.severity:<8} {words}", 2, 12)


def _changes(report: Report) -> Iterator[Line]:
    if not report.suggestions:
        return
    yield Line("plain", "")
    yield Line("title", changes_title(report))
    for number, item in enumerate(report.suggestions[:CHANGES], 1):
        words = f"{number}. {printable(item.action)} (confidence {item.confidence:.2f}): {printable(item.reason)}"
        yield Line("plain", words, 2, 3)
        yield Line("code", printable(item.code, lines=True), 5)
    if rest := report.suggestions[CHANGES:]:
        names = ", ".join(f"{printable(item.action)} ({item.confidence:.2f})" for item in rest)
        yield Line("plain", f"Then: {names}", 2, 3)


def _problem(problem: Problem) -> Iterator[Line]:
    yield Line("title", f"{problem.title} ({problem.severity}, {problem.steps})")
    if told := story(problem):
        yield Line("plain", f"What happened: {told}", 2, 2)
    for symptom, remark in episodes(problem):
        yield from _symptom(symptom, remark, problem.clock)
    causes, others = told_apart(problem)
    for diagnosis in causes:
        yield from _diagnosis(problem, diagnosis)
    if others:
        yield Line("plain", others, 2, 2)


def _symptom(symptom: Symptom, remark: str, clock: str) -> Iterator[Line]:
    role: Severity = symptom.severity
    steps = steps_text(symptom.first_step, symptom.last_step, clock)
    yield Line(role, f"{label(symptom)} ({symptom.severity}), {steps}{times_text(symptom)}", 2, 5)
    if symptom.message:
        yield Line("plain", printable(symptom.message), 7)
    if where := where_text(symptom, limit=5):
        yield Line("plain", f"Where: {where}", 7, 7)
    if remark:
        yield Line("faint", remark, 7)


def _diagnosis(problem: Problem, diagnosis: Diagnosis) -> Iterator[Line]:
    yield Line("title", heading(problem, diagnosis), 2)
    if sentence := meaning(diagnosis):
        yield Line("plain", sentence, 4)
    for words, texts in weighed(diagnosis):
        sentences = "; ".join(printable(text).rstrip(".") for text in texts)
        yield Line("plain", f"{words}: {sentences}.", 4, 2)
    words, code = remedy(problem, diagnosis)
    if code:
        yield Line("code", f"{words}: {first_line(code)}", 4)
