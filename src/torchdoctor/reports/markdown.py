"""A report as Markdown: for an issue, a pull request or a wiki.

>>> print(render(Report(step=899)))
# Healthy at step 899: nothing was found.
<BLANKLINE>
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchdoctor.records import Diagnosis, Symptom
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
from torchdoctor.reports.verdict import advice, changes_title, verdict
from torchdoctor.reports.wording import checkup_texts, facts, label, printable, steps_text, where_text

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~@&$])")


def render(report: Report) -> str:
    """The whole report."""
    return "\n".join(_lines(report)) + "\n"


def escaped(text: str) -> str:
    r"""Text that Markdown shows as it is, mentions and HTML included.

    >>> print(escaped("<b>__init__</b> @team"))
    \<b\>\_\_init\_\_\</b\> \@team
    """
    return _SPECIAL.sub(r"\\\1", printable(text))


def fenced(code: str) -> list[str]:
    """A code block whose fence is longer than any in the code."""
    text = printable(code, lines=True)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{fence}python", text, fence]


def _lines(report: Report) -> Iterator[str]:
    yield f"# {escaped(verdict(report))}"
    if summary := advice(report):
        yield ""
        yield escaped(summary)
    if rows := overview(report):
        yield ""
        yield from (f"{item.number}. **{item.severity}**: {escaped(words)}" for item, words in rows)
    for problem in problems(report):
        yield from _problem(problem)
    if report.suggestions:
        yield from ("", f"## {changes_title(report)}")
        for number, item in enumerate(report.suggestions, 1):
            yield from (
                "",
                f"{number}. **{escaped(item.action)}** (confidence {item.confidence:.2f}): {escaped(item.reason)}",
                "",
            )
            yield from (f"   {line}" for block in fenced(item.code) for line in block.split("\n"))
    yield from _listed("Check-up before the run", checkup_texts(report))
    yield from _listed("Phases of training", [str(item.get("message", "")) for item in report.phases])
    yield from _listed("Notes: what could not be judged, and how the data was read", list(report.notes))
    if report.context:
        yield from ("", "## The run", "", "| | |", "|---|---|")
        yield from (f"| {escaped(name)} | {escaped(value)} |" for name, value in facts(report.context))


def _listed(title: str, texts: list[str]) -> Iterator[str]:
    if texts:
        yield from ("", f"## {title}", "")
        yield from (f"- {escaped(text)}" for text in texts)


def _problem(problem: Problem) -> Iterator[str]:
    yield from ("", f"## {problem.title} ({problem.severity}, {problem.steps})", "")
    if told := story(problem):
        yield from (f"What happened: {escaped(told)}", "")
    for symptom, remark in episodes(problem):
        yield _symptom(symptom, remark, problem.clock)
    causes, others = told_apart(problem)
    for diagnosis in causes:
        yield from _diagnosis(problem, diagnosis)
    if others:
        yield from ("", escaped(others))


def _symptom(symptom: Symptom, remark: str, clock: str) -> str:
    where = where_text(symptom)
    parts = [escaped(symptom.message), f"in {escaped(where)}" if where else "", escaped(remark)]
    steps = steps_text(symptom.first_step, symptom.last_step, clock)
    return f"- **{escaped(label(symptom))}** ({symptom.severity}, {steps}): " + "; ".join(filter(None, parts))


def _diagnosis(problem: Problem, diagnosis: Diagnosis) -> Iterator[str]:
    yield from ("", f"**{escaped(heading(problem, diagnosis))}**")
    if sentence := meaning(diagnosis):
        yield from ("", escaped(sentence))
    for words, texts in weighed(diagnosis):
        yield from ("", f"{words}:", "")
        yield from (f"- {escaped(text)}" for text in texts)
    words, code = remedy(problem, diagnosis)
    if code:
        yield from ("", f"{words}:", "", *fenced(code))
