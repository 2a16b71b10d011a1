"""The live view in a terminal: one run in full, or several as one row each, as much as fits the screen."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchdoctor.comparing.naming import short_names
from torchdoctor.live.sight import Sight
from torchdoctor.live.spark import marks, plot, spark
from torchdoctor.pictures import main_vitals
from torchdoctor.records import INFORMATIVE, SEVERITIES, Symptom, number_text
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.fitting import LEAST, abridged
from torchdoctor.reports.problem import Problem, problems, remedy
from torchdoctor.reports.text import HEALTH_STYLES, STYLES
from torchdoctor.reports.verdict import HEALTH_WORDS, advice, verdict
from torchdoctor.reports.wording import first_line, label, percent, printable, steps_text, where_text

ROWS = 5
"""Height of the loss curve in rows."""
WIDEST = 120
PROBLEMS = 4
SYMPTOMS = 3
NOTES = 3
SPARK = 16
"""Width of a curve in a table of runs; half of it if the table is narrow."""
NARROW, WIDE = 60, 100
"""Terminal widths below which names may be cut too, and from which curves have their full width."""


def render(
    sights: Sequence[Sight],
    console: Console,
    now: float | None = None,
    left_out: int = 0,
    height: int | None = None,
) -> RenderableType:
    """The whole view, no higher than the terminal or `height`."""
    moment = time.monotonic() if now is None else now
    width, height = min(console.width, WIDEST), height or max(console.height - 1, 10)
    plain = console.options.ascii_only
    if len(sights) == 1:
        lines = list(one(sights[0], width, moment, plain=plain))
        return _cut(lines, width, height)
    names = _short_names(sights, width)
    table = several(sights, width, height - 8, moment, plain=plain)
    rest = [Text("")]
    if left_out:
        rest.append(Text(f"{left_out} more runs were found but are not watched: name the ones you want.", style="dim"))
    for sight in _worst_first(sights):
        if sight.report.health != "healthy" and sight.state != "waiting":
            words = f"{names[sight.key]}: {verdict(sight.report)}"
            rest.append(Text(words, style=HEALTH_STYLES[sight.report.health]))
            if words := advice(sight.report):
                rest.append(Text(f"  {words}"))
    for line in rest:
        line.truncate(width, overflow="ellipsis")
    room = height - min(len(sights), height - 8) - 3
    return Group(table, *rest[:room])


def one(sight: Sight, width: int, now: float, *, plain: bool = False) -> Iterator[Text]:
    """A run in full, line by line, the most important first."""
    report = sight.report
    place = sight.progress(now)
    head = Text(_ending(printable(sight.name), max(width - len(place) - 2, 16)), style="bold")
    head.append(f"  {place}", style="not bold")
    yield _short(head, width)
    if sight.problem:
        yield _short(Text(printable(sight.problem), style=STYLES["warning"]), width)
    if sight.state == "waiting" or report.step < 0:
        return
    yield from _wrapped(verdict(report), width, HEALTH_STYLES[report.health])
    if words := advice(report):
        yield from _wrapped(words, width)
    yield Text("")
    yield from _curves(sight, width, plain=plain)
    for problem in problems(report)[:PROBLEMS]:
        yield from _problem(problem, sight, width)
    if report.notes:
        yield Text("")
        for text in report.notes[-NOTES:]:
            yield _short(Text(f"note: {printable(text)}", style="dim"), width)


def _curves(sight: Sight, width: int, *, plain: bool) -> Iterator[Text]:
    curves = sight.report.curves
    names = [name for panel in main_vitals(curves).values() for name in panel]
    if not names:
        return
    side = min(max(max(cell_len(printable(name)) for name in names), 9), 20)
    room = max(width - side - 12, 10)
    first = min(curves[name][0][0] for name in names if curves[name])
    last = max(sight.report.step, first + 1)
    for position, name in enumerate(names):
        log, height = name == "grad_norm", ROWS if position == 0 else 1
        rows = plot(curves[name], room, height, span=(first, last), log=log, plain=plain)
        for number, row in enumerate(rows):
            head = f"{printable(name)[:side]:<{side}} {number_text(sight.latest[name]):>9}" if number == 0 else ""
            yield Text(f"{head:<{side + 10}}  ").append(row.rstrip(), style=_colour(position))
        if position == 0:
            yield _onsets(sight, room, first, last, side + 12, plain=plain)
    yield Text(f"{clock_of(sight.report.context):<{side}} {first:>9,}  {f'{last:,}':>{room}}", style="dim")


def _onsets(sight: Sight, room: int, first: int, last: int, indent: int, *, plain: bool) -> Text:
    """A row of marks under the loss at the first steps of episodes."""
    real = [item for item in sight.report.symptoms if item.name not in INFORMATIVE]
    ordered = sorted(real, key=lambda item: SEVERITIES.index(item.severity))
    line = Text(" " * indent)
    place = 0
    for column, style in marks([(item.first_step, STYLES[item.severity]) for item in ordered], room, first, last):
        line.append(" " * (column - place))
        line.append("^" if plain else "▲", style=style)
        place = column + 1
    return line


def _problem(problem: Problem, sight: Sight, width: int) -> Iterator[Text]:
    yield Text("")
    for symptom in sight.newest(problem.symptoms)[:SYMPTOMS]:
        yield from _symptom(symptom, width, problem.clock, going_on=sight.is_open(symptom))
    if problem.diagnoses:
        best = problem.diagnoses[0]
        words = "cause unknown" if best.cause == "unknown" else f"{printable(best.cause)} ({percent(best.probability)})"
        evidence = f": {printable(best.evidence[0])}" if best.evidence and best.cause != "unknown" else ""
        yield from _wrapped(f"why  {words}{evidence}", width, indent=2, hanging=5)
        words, code = remedy(problem, best)
        if code:
            title = "fix  " if words == "Fix" else f"{words.lower()}: "
            yield _short(Text(f"  {title}").append(first_line(code), style=STYLES["code"]), width)


def _symptom(symptom: Symptom, width: int, clock: str, *, going_on: bool) -> Iterator[Text]:
    span = steps_text(symptom.first_step, symptom.last_step, clock)
    when = f"since {clock} {symptom.first_step}" if going_on else span
    title = f"{label(symptom)} ({symptom.severity}), {when}"
    yield _short(Text(title, style=STYLES[symptom.severity]), width)
    where = where_text(symptom)
    yield from _wrapped(printable(symptom.message) + (f" [{where}]" if where else ""), width, indent=2)


def several(sights: Sequence[Sight], width: int, most: int, now: float, *, plain: bool = False) -> Table:
    """A table with one row per run."""
    table = Table(box=None, pad_edge=False, width=width, show_edge=False, header_style="dim")
    names, curve = _short_names(sights, width), SPARK if width >= WIDE else SPARK // 2
    least = max(map(len, names.values()), default=0) if width >= NARROW else None
    table.add_column("run", no_wrap=True, overflow="ellipsis", min_width=least)
    table.add_column("health", no_wrap=True)
    table.add_column("loss", no_wrap=True, justify="right")
    table.add_column("", no_wrap=True, width=curve)
    table.add_column("progress", no_wrap=True, overflow="ellipsis", ratio=1)
    listed = sights if len(sights) <= most else _worst_first(sights)[:most]
    for sight in listed:
        report = sight.report
        seen = report.step >= 0
        loss = next((name for name in sight.latest if name.endswith("loss")), None)
        table.add_row(
            Text(names[sight.key]),
            Text(HEALTH_WORDS[report.health], style=HEALTH_STYLES[report.health]) if seen else Text(""),
            Text(number_text(sight.latest[loss]) if loss else ""),
            Text(spark(report.curves[loss], curve, plain=plain) if loss else "", style=_colour(0)),
            Text((sight.state != "gone" and printable(sight.problem)) or sight.progress(now)),
        )
    if len(listed) < len(sights):
        table.add_row(Text(f"and {len(sights) - len(listed)} more", style="dim"))
    return table


def _short_names(sights: Sequence[Sight], width: int) -> dict[str, str]:
    """By run, its name, or the part that distinguishes it if names take more than a third of the width."""
    names, room = [printable(sight.name) for sight in sights], max(width // 3, LEAST)
    if max(map(len, names), default=0) > room:
        names = abridged(short_names(names), room)
    return dict(zip((sight.key for sight in sights), names, strict=True))


def _worst_first(sights: Sequence[Sight]) -> list[Sight]:
    order = ("critical", "sick", "watch", "healthy")
    return sorted(sights, key=lambda sight: (sight.state in ("ended", "waiting"), order.index(sight.report.health)))


def _colour(position: int) -> str:
    return ("blue", "dark_orange3", "magenta", "cyan")[position % 4]


def _wrapped(text: str, width: int, style: str = "", indent: int = 0, hanging: int = 0) -> Iterator[Text]:
    """At most three lines."""
    for line in textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_on_hyphens=False,
        max_lines=3,
        placeholder=" ...",
    ):
        yield Text(line, style=style)


def _ending(name: str, room: int) -> str:
    """The end of a long path, which distinguishes it from others."""
    return name if len(name) <= room else f"...{name[len(name) - room + 3 :]}"


def _short(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


def _cut(lines: list[Text], width: int, height: int) -> Group:
    """As many lines as fit; the last one says how many are left out."""
    if len(lines) <= height:
        return Group(*lines)
    rest = len(lines) - height + 1
    return Group(*lines[: height - 1], _short(Text(f"... {rest} more lines: enlarge the window", style="dim"), width))
