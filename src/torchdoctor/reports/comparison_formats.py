"""A comparison as text, one line a run, JSON and Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchdoctor.journal.lines import encode
from torchdoctor.records import number_text
from torchdoctor.reports import comparison_html
from torchdoctor.reports.comparison import Section, headline, sections, table
from torchdoctor.reports.comparison_curves import Curves
from torchdoctor.reports.fitting import folded
from torchdoctor.reports.markdown import escaped
from torchdoctor.reports.statistics_text import table as columns
from torchdoctor.reports.wording import printable

Found = Mapping[str, Any]


WIDTH = 100
"""Characters of a line, where nobody says how wide the terminal is; sentences are never longer."""


def full(found: Found, width: int = WIDTH) -> str:
    """The answer, the ranking, and a paragraph for each question, in lines of at most so many characters."""
    answer = [line for text in headline(found) for line in folded(text, min(width, WIDTH))]
    parts = ["\n".join(answer), _text(table(found, width=width), width, titled=False)]
    parts += [_text(section, width) for section in sections(found, width)]
    return "\n\n".join(parts)


def _text(section: Section, width: int, *, titled: bool = True) -> str:
    lines = [section.title] if titled else []
    indent = 2 if titled else 0
    if section.rows:
        lines += [f"{' ' * indent}{line}" for line in columns(section.head, section.rows).splitlines()]
    for text in section.lines:
        lines += folded(text, min(width, WIDTH), indent)
    return "\n".join(lines)


def concise(found: Found) -> str:
    """One line a run, best first, and what explains the order."""
    metric = found["metric"]
    lines = []
    for place, row in enumerate(found["runs"], 1):
        known = metric is not None and math.isfinite(row["score"])
        score = f"{metric['name']} {number_text(row['score'])}" if known else "no score"
        state = f"diverged, {printable(row['diverged'])}" if row["diverged"] else row["health"]
        lines.append(f"{place}: {printable(row['run'])}: {score}" + (f" ({state})" if state else ""))
    matter = [item["names"][0] for item in found.get("effects", []) if item["verdict"] == "matters"]
    if matter:
        lines.append(f"what matters: {', '.join(printable(name) for name in matter)}")
    return "\n".join(lines)


def as_json(found: Found) -> str:
    """Everything, as plain data; non-finite numbers are strings."""
    return json.dumps(json.loads(encode(dict(found))), indent=2)


def as_markdown(found: Found) -> str:
    """For a pull request or a notebook."""
    parts = ["# Comparison of runs", "\n".join(f"- {escaped(line)}" for line in headline(found))]
    parts += [_markdown(section) for section in (table(found), *sections(found))]
    return "\n\n".join(parts)


def _markdown(section: Section) -> str:
    lines = [f"## {escaped(section.title)}", ""]
    if section.rows:
        lines += [_markdown_table(section.head, section.rows), *([""] if section.lines else [])]
    for line in section.lines:
        lines.append(f"{'  ' if line.startswith('  ') else ''}- {escaped(line.strip())}")
    return "\n".join(lines)


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[escaped(cell) for cell in row] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


FORMATS: Mapping[str, Callable[[Found], str]] = {
    "full": full,
    "concise": concise,
    "json": as_json,
    "markdown": as_markdown,
}


BY_SUFFIX: Mapping[str, Callable[[Found, Curves], str]] = {
    ".html": comparison_html.render,
    ".md": lambda found, curves: as_markdown(found) + "\n",
    ".txt": lambda found, curves: full(found) + "\n",
    ".json": lambda found, curves: as_json(found) + "\n",
}


def answer(names: Sequence[str], rows: Sequence[Sequence[Any]], form: str) -> str:
    """What a query returned, in one of the formats.

    >>> print(answer(("lr", "n"), [(0.1, 3)], "concise"))
    lr   n
    0.1  3
    """
    if form == "json":
        dicts = [dict(zip(names, row, strict=True)) for row in rows]
        return json.dumps(json.loads(encode(dicts)), indent=2, default=str)
    cells = tuple(tuple(_cell(value) for value in row) for row in rows)
    return _markdown_table(names, cells) if form == "markdown" else columns(names, cells)


def _cell(value: Any) -> str:
    return "" if value is None else number_text(value) if isinstance(value, float) else printable(value)
