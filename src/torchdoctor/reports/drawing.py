"""A figure as data, and as SVG: panels one above the other, with lines, bars and marks on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element

from torchdoctor.records import Severity
from torchdoctor.reports.curves import GAP, HUGE, LEFT, RIGHT, WIDTH, Axis, Panel, value_axis
from torchdoctor.reports.markup import element, put
from torchdoctor.reports.wording import printable

Style = Literal["line", "faint", "dots"]
POINTS = 800
"""Points of a line that are drawn: more would be finer than the screen."""
NAMES = 40
"""Names below an axis that are readable; of more, every so many is written."""
HEAD, FOOT = 30, 18


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style = "line"


@dataclass(frozen=True)
class Mark:
    """A place on the x axis that matters."""

    x: float
    label: str
    severity: Severity = "info"
    end: float | None = None
    """Where it is a stretch."""


@dataclass(frozen=True)
class Plot:
    """Lines that share both axes."""

    title: str
    lines: tuple[Line, ...]
    height: int = 200
    log: bool | None = None
    """The y axis; None: as the values ask for."""
    share: bool = False
    """Values between 0 and 1: the axis shows all of it."""


@dataclass(frozen=True)
class Figure:
    """Plots one above the other, over the same x axis."""

    title: str
    plots: tuple[Plot, ...]
    x_label: str = "step"
    x_log: bool = False
    x_names: tuple[str, ...] = ()
    """Names in place of numbers: x counts them from 0."""
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(points(line) for plot in self.plots for line in plot.lines)


def points(line: Line, limit: int = POINTS) -> list[tuple[float, float]]:
    """What can be drawn of a line: finite points; of very many, the lowest and the highest of each stretch.

    >>> points(Line("loss", [0, 1, 2], [1.0, math.nan, 3.0]))
    [(0, 1.0), (2, 3.0)]
    """
    known = [
        (x, min(max(y, -HUGE), HUGE))
        for x, y in zip(line.x, line.y, strict=True)
        if math.isfinite(x) and math.isfinite(y)
    ]
    size = math.ceil(2 * len(known) / limit)
    if size <= 2:
        return known
    found: list[tuple[float, float]] = []
    for start in range(0, len(known), size):
        group = known[start : start + size]
        found += sorted({min(group, key=lambda point: point[1]), max(group, key=lambda point: point[1])})
    return found


def svg(figure: Figure) -> Element:
    """The figure, to be put into a page with the report's style."""
    across = x_axis(figure)
    plots = [plot for plot in figure.plots if any(points(line) for line in plot.lines)]
    foot = FOOT + (110 if figure.x_names else 12)
    bottom = HEAD + sum(plot.height + GAP for plot in plots) - GAP
    drawing = element("svg", viewBox=f"0 0 {WIDTH} {bottom + foot}", role="img", aria_label=figure.title)
    for part in _marked(figure.marks, across, HEAD, bottom):
        put(drawing, part)
    top = float(HEAD)
    for plot in plots:
        for part in _drawn(plot, across, top):
            put(drawing, part)
        top += plot.height + GAP
    for part in _below(figure, across, bottom):
        put(drawing, part)
    return drawing


def x_axis(figure: Figure) -> Axis:
    """From x values to places."""
    start, end = float(LEFT), float(WIDTH - RIGHT)
    if figure.x_names:
        return Axis(-0.5, len(figure.x_names) - 0.5, start, end)
    xs = [x for plot in figure.plots for line in plot.lines for x, _ in points(line) if x > 0 or not figure.x_log]
    low, high = (min(xs), max(xs)) if xs else (1.0, 2.0)
    return Axis(low, high if high > low else low * 2 + 1, start, end, log=figure.x_log)


def _marked(marks: Sequence[Mark], across: Axis, top: int, bottom: int) -> Iterator[Element]:
    ends = [0.0, 0.0]
    for mark in sorted(marks, key=lambda mark: mark.x):
        x = across.at(mark.x)
        shape = element("line", class_="onset", x1=x, x2=x, y1=float(top), y2=float(bottom))
        yield element("g", element("title", mark.label), shape, class_=mark.severity)
        if mark.end is not None:
            width = max(across.at(mark.end) - x, 2.0)
            height = float(bottom - top)
            yield element("rect", class_=f"span {mark.severity}", x=x, y=float(top), width=width, height=height)
        row = next((index for index, end in enumerate(ends) if end <= x), None)
        if row is not None:
            width = 6.6 * len(mark.label) + 8
            place = min(x + 3, WIDTH - RIGHT - width)
            ends[row] = place + width
            yield element("text", mark.label, class_=f"label {mark.severity}", x=place, y=12.0 + 13 * row)


def _drawn(plot: Plot, across: Axis, top: float) -> Iterator[Element]:
    drawn = [(line, points(line)) for line in plot.lines]
    values = y_axis(plot, [point for _, found in drawn for point in found], top)
    for tick in values.ticks(max(2, plot.height // 35)):
        y = values.at(tick)
        yield element("line", class_="grid", x1=float(LEFT), x2=float(WIDTH - RIGHT), y1=y, y2=y)
        yield element("text", f"{tick:.4g}", x=float(LEFT - 8), y=y + 4, text_anchor="end")
    x = float(LEFT + 10)
    for index, (line, found) in enumerate(drawn):
        colour = f"c{index % 4 + 1}"
        places = [(across.at(at), values.at(value)) for at, value in found if value > 0 or not values.log]
        path = " ".join(f"{at:.1f},{value:.1f}" for at, value in places)
        if line.style != "dots":
            opacity = 0.35 if line.style == "faint" else 1.0
            yield element("polyline", class_=f"line {colour}", points=path, opacity=opacity)
        if line.style == "dots" or len(places) < 60:
            for at, value in places:
                yield element("circle", class_=f"dot {colour}", cx=at, cy=value, r=2.6)
        words = line.name + (" (log scale)" if values.log and index == len(drawn) - 1 else "")
        yield element("rect", class_=f"swatch {colour}", x=x, y=top + 3.0, width=10.0, height=10.0, rx=2.0)
        yield element("text", words, class_="name", x=x + 15, y=top + 12.0)
        x += 15 + 7.2 * len(words) + 18


def y_axis(plot: Plot, found: Sequence[tuple[float, float]], top: float) -> Axis:
    """The vertical axis of a plot."""
    if plot.share:
        return Axis(0.0, 1.05, top + plot.height, top)
    buckets = [(0, value, value, value) for _, value in found] or [(0, 0.0, 0.0, 1.0)]
    return value_axis(buckets, Panel((), plot.height, plot.log), top)


def _below(figure: Figure, across: Axis, bottom: int) -> Iterator[Element]:
    y = float(bottom + 16)
    if not figure.x_names:
        for tick in across.ticks(8):
            yield element("text", f"{tick:.6g}", x=across.at(tick), y=y, text_anchor="middle")
        yield element("text", figure.x_label, x=float(LEFT - 8), y=y, text_anchor="end")
        return
    every = math.ceil(len(figure.x_names) / NAMES)
    for index, name in list(enumerate(figure.x_names))[::every]:
        x = across.at(index)
        text = short(name)
        yield element("text", text, x=x, y=y, text_anchor="end", transform=f"rotate(-40 {x:.1f} {y:.1f})")


def short(name: str, most: int = 24) -> str:
    """The end of a long name, which tells more than its beginning.

    >>> short("transformer.h.11.mlp.c_proj.weight")
    '…r.h.11.mlp.c_proj.weight'
    """
    text = printable(name)
    return text if len(text) <= most else "…" + text[-most:]
