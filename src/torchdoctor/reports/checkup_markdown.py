"""A check-up as Markdown: for an issue, a pull request or a job's summary.

>>> print(render(Checkup()))
# Nothing was checked.
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.records import names_text
from torchdoctor.reports.checkup import Checkup
from torchdoctor.reports.checkup_text import status, verdict
from torchdoctor.reports.markdown import escaped


def render(checkup: Checkup) -> str:
    """The whole check-up."""
    return "\n".join(_lines(checkup)) + "\n"


def _lines(checkup: Checkup) -> Iterator[str]:
    yield f"# {escaped(verdict(checkup))}"
    for item in checkup.failed:
        yield from ("", f"## {escaped(item.code)} {escaped(item.name)} ({status(item)})", "", escaped(item.message))
        if item.where:
            yield from ("", f"Where: {escaped(names_text(item.where, 8))}")
        if item.advice:
            yield from ("", f"What to do: {escaped(item.advice)}")
    others = (*checkup.passed, *checkup.skipped)
    if others:
        yield from ("", "| | check | |", "|---|---|---|")
        for item in others:
            yield f"| {item.status} | {escaped(item.code)} {escaped(item.name)} | {escaped(item.message)} |"
    if checkup.notes:
        yield ""
        yield from (f"- {escaped(text)}" for text in checkup.notes)
