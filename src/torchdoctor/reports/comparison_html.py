"""A comparison as one self-contained HTML file: no request, no script, light and dark, on paper and on a phone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from torchdoctor.reports import page
from torchdoctor.reports.comparison import Section, headline, sections, table
from torchdoctor.reports.comparison_curves import Curves, overlay
from torchdoctor.reports.markup import element, put

STYLES = ("comparison.css",)
LISTED = 100
"""Runs in the table of a page."""


def render(found: Mapping[str, Any], curves: Curves) -> str:
    """A whole page."""
    title = f"Training Doctor: {len(found['runs'])} runs compared"
    return page.page(title, body(found, curves, "main"), styles=STYLES)


def fragment(found: Mapping[str, Any], curves: Curves) -> str:
    """The same for a notebook's cell."""
    return page.fragment(body(found, curves), styles=STYLES)


def body(found: Mapping[str, Any], curves: Curves, tag: str = "div") -> Element:
    """The comparison as one element."""
    answer, *more = headline(found)
    runs = len(found["runs"])
    lost = sum(bool(row["diverged"]) for row in found["runs"])
    told = f" · {runs:,} runs compared" + (f" · {lost} diverged" if lost else "")
    made = element(
        tag,
        element(
            "header",
            element("p", element("strong", "Training Doctor"), told, class_="brand"),
            element("h1", answer),
            *(element("p", line, class_="advice") for line in more),
        ),
        class_="torchdoctor comparison",
    )
    clock = found.get("clock", "step")
    drawings = (overlay(found["runs"], curves, vital, clock) for vital in _vitals(found, curves))
    pictures = [drawn for drawn in drawings if drawn is not None]
    if pictures:
        put(made, _titled("Curves", *(element("div", drawn, class_="scroll") for drawn in pictures)))
    for section in (table(found, LISTED), *sections(found)):
        put(made, _section(section))
    return made


def _vitals(found: Mapping[str, Any], curves: Curves) -> list[str]:
    """What is drawn: the metric, the losses, and the learning rate where it changes within runs."""
    metric = [] if found["metric"] is None else [found["metric"]["name"]]
    rates = (own["lr"][1] for own in curves.values() if "lr" in own)
    scheduled = any(len(values) and values.min() < values.max() for values in rates)
    return list(dict.fromkeys([*metric, "val_loss", "loss", *(["lr"] if scheduled else [])]))


def _titled(title: str, *children: Element | None) -> Element:
    return element("section", element("h2", title), *children)


def _section(section: Section) -> Element:
    made = _titled(section.title)
    if section.rows:
        head = element("tr", *(element("th", name, scope="col") for name in section.head))
        rows = (
            element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:]))
            for row in section.rows
        )
        grid = element("table", element("thead", head), element("tbody", *rows), class_="ranking")
        put(made, element("div", grid, class_="scroll tall"))
    if section.lines:
        put(made, _list(section.lines))
    return made


def _list(lines: tuple[str, ...]) -> Element:
    """Sentences; those that begin with a space belong to the one before."""
    made = element("ul")
    for line in lines:
        if line.startswith(" ") and len(made):
            put(made[-1], element("div", line.strip(), class_="faint"))
        else:
            put(made, element("li", line.strip()))
    return made
