"""A check-up as text: for `print(checkup)`, for a log, and, with colour, for a terminal.

>>> from torchdoctor.records import CheckResult
>>> print(render(Checkup((CheckResult("gradient-flow", "CK03", "passed", "all 4 parameters get a gradient"),))))
All is well: 1 check passed.
<BLANKLINE>
passed   CK03 gradient-flow  all 4 parameters get a gradient
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchdoctor.records import CheckResult, names_text
from torchdoctor.reports.checkup import Checkup
from torchdoctor.reports.text import STYLES, WIDTH
from torchdoctor.reports.wording import printable

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {"passed": "green", "skipped": "dim", **STYLES}


def verdict(checkup: Checkup) -> str:
    """The whole check-up in one sentence."""
    passed = f"{len(checkup.passed)} check{'' if len(checkup.passed) == 1 else 's'} passed"
    late = sum(bool(item.details.get("out_of_time")) for item in checkup.skipped)
    others = len(checkup.skipped) - late
    skipped = f", {others} skipped" if others else ""
    if not checkup.results:
        return "Nothing was checked."
    if late and not checkup.failed:
        return f"Unfinished: {passed}{skipped}, {late} not done in the time that was given. Give a larger budget."
    if not checkup.failed:
        start = "All is well" if checkup.passed else "Nothing could be told"
        return f"{start}: {passed}{skipped}."
    worst = checkup.failed[0]
    count = f"{len(checkup.failed)} of {len(checkup.failed) + len(checkup.passed)} checks failed"
    count += f" ({late} more were not done in the time that was given)" if late else ""
    return f"{count}, first {printable(worst.name)}: {printable(worst.message).removesuffix('.')}."


def status(result: CheckResult) -> str:
    """What a row begins with: a failure by its severity."""
    return (result.severity or "failed") if result.status == "failed" else result.status


def rows(checkup: Checkup, width: int) -> Iterator[tuple[str, str]]:
    """(role, line) of the table: failures first, with where and what to do, then what passed, then what was skipped."""
    names = max((len(printable(item.name)) for item in checkup.results), default=0)
    for result in (*checkup.failed, *checkup.passed, *checkup.skipped):
        begin = f"{status(result):<9}{printable(result.code)} {printable(result.name):<{names}}  "
        yield from _wrapped(status(result), begin, printable(result.message), width)
        if result.status != "failed":
            continue
        indent = " " * len(begin)
        if result.where and not all(name in result.message for name in result.where):
            yield from _wrapped("plain", f"{indent}Where: ", printable(names_text(result.where, 5)), width)
        if result.advice:
            yield from _wrapped("plain", f"{indent}What to do: ", printable(result.advice), width)


def _wrapped(role: str, begin: str, text: str, width: int) -> Iterator[tuple[str, str]]:
    room = max(width, len(begin) + 30)
    hanging = " " * (len(begin) - len(begin.lstrip()) if begin.startswith(" ") else len(begin))
    lines = textwrap.wrap(
        text, room, initial_indent=begin, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    yield from ((role, line) for line in lines or [begin.rstrip()])


def lines(checkup: Checkup, width: int = WIDTH) -> Iterator[tuple[str, str]]:
    """The whole of it, line by line, each with its role."""
    yield from _wrapped("title", "", verdict(checkup), width)
    if checkup.results:
        yield "plain", ""
        yield from rows(checkup, width)
    if checkup.notes:
        yield "plain", ""
        for note in checkup.notes:
            yield from _wrapped("faint", "Note: ", f"{printable(note)}.", width)


def render(checkup: Checkup, width: int = WIDTH) -> str:
    """The whole check-up as plain text."""
    return "\n".join(line for _, line in lines(checkup, width))


def show(checkup: Checkup, console: Console) -> None:
    """The whole check-up on a rich console, coloured where that has colours."""
    from rich.text import Text  # only a terminal pays for rich

    for role, line in lines(checkup, min(console.width, 120)):
        mark = f"{role:<9}"
        if role in ("passed", "skipped", "info", "warning", "critical") and line.startswith(mark):
            console.print(Text.assemble((mark, COLOURS[role]), line[len(mark) :]), soft_wrap=True)
        else:
            console.print(Text(line, COLOURS.get(role, "") if role in ("title", "faint") else ""), soft_wrap=True)
