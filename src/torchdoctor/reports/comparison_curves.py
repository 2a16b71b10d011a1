"""The curves of several runs over each other, as SVG: the best in colours, the rest behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from torchdoctor.pictures import Bucket
from torchdoctor.reports.curves import LEFT, RIGHT, WIDTH, Axis, Panel, value_axis
from torchdoctor.reports.markup import element, put

Curves = Mapping[str, Mapping[str, tuple[NDArray[Any], NDArray[Any]]]]
"""By run and vital: steps and values."""

COLOURED = 6
"""Runs that have a colour of their own; more could not be told apart."""
DRAWN = 60
"""Lines of a panel: of more runs, the best and every n-th of the rest."""
BANDS = 4
"""Runs up to which each has its band from lowest to highest."""
POINTS = 240
HEIGHT = 240
TOP = 10
FOOT = 40
ROWS = 16
"""The height of a line of the legend."""
LETTERS = 52
"""What half of its width has room for."""


def overlay(rows: Sequence[Mapping[str, Any]], curves: Curves, vital: str, clock: str = "step") -> Element | None:
    """One vital of all runs, given best first; None where fewer than two have it."""
    known = [row for row in rows if len(_finite(curves.get(row["run"], {}).get(vital))[0]) > 1]
    if len(known) < 2:
        return None
    chosen = _chosen(known)
    buckets = {row["run"]: bucketed(curves[row["run"]][vital]) for row in chosen}
    steady = [row for row in chosen if not row["diverged"]] or chosen
    steps = Axis(
        min(found[0][0] for found in buckets.values()),
        max(max(found[-1][0] for found in buckets.values()), 1),
        LEFT,
        WIDTH - RIGHT,
    )
    panel = Panel((vital,), HEIGHT)
    values = value_axis([bucket for row in steady for bucket in buckets[row["run"]]], panel, float(TOP))
    named = [row for row in chosen if _tone(row, known)]
    drawing = element(
        "svg",
        viewBox=f"0 0 {WIDTH} {TOP + HEIGHT + FOOT + ROWS * math.ceil(len(named) / 2)}",
        role="img",
        aria_label=f"{vital} of {len(known)} runs",
        class_="overlay",
    )
    for part in _grid(steps, values, vital, clock):
        put(drawing, part)
    for row in sorted(chosen, key=lambda row: (bool(_tone(row, known)), -known.index(row))):
        put(drawing, _line(row, buckets[row["run"]], steps, values, _tone(row, known), band=len(known) <= BANDS))
    for place, row in enumerate(named):
        for part in _legend(row, place, _tone(row, known)):
            put(drawing, part)
    return drawing


def _chosen(known: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The best runs, and of the rest every n-th: what is left out lies between two that are drawn."""
    rest = known[COLOURED:]
    every = max(1, math.ceil(len(rest) / (DRAWN - COLOURED)))
    return [*known[:COLOURED], *rest[::every]]


def _tone(row: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> str:
    """The class of a run's colour; empty for those behind."""
    place = known.index(row)
    return f"r{place + 1}" if place < COLOURED else ""


def bucketed(curve: tuple[NDArray[Any], NDArray[Any]], most: int = POINTS) -> list[Bucket]:
    """A curve as (first step, lowest, mean, highest) of so many buckets at most: no extreme disappears.

    >>> bucketed((np.arange(4), np.array([1.0, 9.0, float("nan"), 2.0])), most=2)
    [(0, 1.0, 5.0, 9.0), (3, 2.0, 2.0, 2.0)]
    """
    steps, values = _finite(curve)
    size = max(1, math.ceil(len(steps) / most))
    return [
        (int(steps[start]), float(part.min()), float(part.mean()), float(part.max()))
        for start in range(0, len(steps), size)
        for part in (values[start : start + size],)
    ]


def _finite(curve: tuple[NDArray[Any], NDArray[Any]] | None) -> tuple[NDArray[Any], NDArray[Any]]:
    if curve is None:
        return np.zeros(0), np.zeros(0)
    well = np.isfinite(curve[1]) & (np.abs(curve[1]) < 1e100)
    return curve[0][well], curve[1][well]


def _grid(steps: Axis, values: Axis, vital: str, clock: str) -> Iterator[Element]:
    for tick in values.ticks(6):
        y = values.at(tick)
        yield element("line", class_="grid", x1=float(LEFT), x2=float(WIDTH - RIGHT), y1=y, y2=y)
        yield element("text", f"{tick:.4g}", x=float(LEFT - 8), y=y + 4, text_anchor="end")
    for tick in steps.ticks(8):
        place = element("text", f"{tick:.0f}", x=steps.at(tick), y=float(TOP + HEIGHT + 16), text_anchor="middle")
        yield place
    yield element("text", clock, x=float(LEFT - 8), y=float(TOP + HEIGHT + 16), text_anchor="end")
    words = vital + (" (log scale)" if values.log else "")
    yield element("text", words, class_="name", x=float(WIDTH - RIGHT - 8), y=TOP + 14.0, text_anchor="end")


def _line(
    row: Mapping[str, Any], buckets: Sequence[Bucket], steps: Axis, values: Axis, tone: str, *, band: bool
) -> Element:
    """A run's curve with its name as a tooltip, and a cross at its end where it diverged."""
    score = f"{row['run']}: {row['diverged'] or row['score']}"
    group = element("g", element("title", score), class_=f"run {tone or 'behind'}")
    if band:
        upper = [f"{steps.at(step):.1f},{values.at(high):.1f}" for step, _, _, high in buckets]
        lower = [f"{steps.at(step):.1f},{values.at(low):.1f}" for step, low, _, _ in reversed(buckets)]
        put(group, element("polygon", class_="band", points=" ".join(upper + lower)))
    points = " ".join(f"{steps.at(step):.1f},{values.at(mean):.1f}" for step, _, mean, _ in buckets)
    put(group, element("polyline", class_="line", points=points))
    if row["diverged"]:
        x, y = steps.at(buckets[-1][0]), values.at(buckets[-1][2])
        put(group, element("path", class_="lost", d=f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"))
    return group


def _legend(row: Mapping[str, Any], place: int, tone: str) -> Iterator[Element]:
    x = LEFT + (place % 2) * (WIDTH - LEFT - RIGHT) / 2
    y = TOP + HEIGHT + FOOT - 4 + ROWS * (place // 2)
    remark = " (diverged)" if row["diverged"] else ""
    room = LETTERS - len(remark)
    words = (row["run"] if len(row["run"]) <= room else f"…{row['run'][1 - room :]}") + remark
    yield element(
        "g", element("rect", class_="swatch", x=x, y=y, width=10.0, height=10.0, rx=2.0), class_=f"run {tone}"
    )
    yield element("text", words, x=x + 16, y=y + 9)
