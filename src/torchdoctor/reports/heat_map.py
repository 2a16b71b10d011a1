"""Tensors or modules over the run as colours: as a picture for every page, and as data for the page's script."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from torchdoctor.pictures import RowMap
from torchdoctor.records import number_text
from torchdoctor.reports.markup import element, put
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import printable

ROWS = 256
"""Rows that are drawn; more tensors are shown by module."""
DECADES = 12
"""What lies further than this below the largest value is drawn like it."""
MISSING, ZERO, STRANGE, FIRST = 0, 1, 2, 3
"""Cells: nothing measured, exactly zero, not finite; from `FIRST` to 255 by size."""
TITLES = {
    "grad_norm": "gradient norm",
    "update_ratio": "update-to-weight ratio",
    "weight_norm": "weight norm",
    "act_rms": "activation, root mean square",
    "act_dead": "share of dead units",
}
SHARES = frozenset({"act_dead"})
"""Vitals between 0 and 1, which are not drawn by their logarithm."""
SCALE = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
"""From low to high: distinct for all eyes, and in grey."""
LEFT, WIDTH, RIGHT = 190, 920, 16
LABELS = 28


@dataclass(frozen=True)
class HeatMap:
    """A map that is ready to be drawn: a cell is a colour's number."""

    title: str
    names: tuple[str, ...]
    steps: tuple[int, ...]
    cells: NDArray[np.uint8]
    """By row and column."""
    low: float
    high: float
    log: bool

    def to_dict(self, marked: Sequence[str] = ()) -> dict[str, Any]:
        """For the script of the page."""
        return {
            "title": self.title,
            "names": [printable(name) for name in self.names],
            "steps": list(self.steps),
            "cells": base64.b64encode(self.cells.tobytes()).decode(),
            "low": self.low,
            "high": self.high,
            "log": self.log,
            "marked": [place for place, name in enumerate(self.names) if touches(name, marked)],
        }

    @property
    def range(self) -> str:
        """What the colours mean, in words."""
        return f"dark = {number_text(self.low)}, bright = {number_text(self.high)}, black = zero, red = not finite"


def heat_maps(report: Report) -> list[HeatMap]:
    """The report's maps in the order of their interest; none of a single column, which would show no time."""
    kept = [(vital, report.maps[vital]) for vital in TITLES if vital in report.maps]
    return [coloured(vital, grouped(made)) for vital, made in kept if len(made.steps) > 1]


def coloured(vital: str, made: RowMap) -> HeatMap:
    """Values as numbers of colours."""
    values = made.values.T.astype(np.float64)
    log = vital not in SHARES
    low, high = _ends(values[np.isfinite(values) & (values > 0)]) if log else (0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.log(values / low) / math.log(high / low) if log else values / high
    cells = np.full(values.shape, MISSING, dtype=np.uint8)
    finite = np.isfinite(values)
    sized = FIRST + np.clip(np.nan_to_num(share, neginf=0.0), 0.0, 1.0) * (255 - FIRST)
    cells[finite] = np.rint(sized[finite]).astype(np.uint8)
    cells[finite & (values <= 0) & log] = ZERO
    cells[np.isinf(values)] = STRANGE
    return HeatMap(TITLES[vital], made.names, made.steps, cells, low, high, log)


def _ends(usual: NDArray[np.float64]) -> tuple[float, float]:
    """What the darkest and the brightest colour stand for."""
    if not usual.size:
        return 0.1, 1.0
    high = float(usual.max())
    low = max(float(usual.min()), high * 10.0**-DECADES)
    return (low, high) if low < high else (low / 2, high * 2)


def grouped(made: RowMap, limit: int = ROWS) -> RowMap:
    """At most `limit` rows: tensors of one module together, the largest value of each shown.

    >>> wide = RowMap(("a.q.weight", "a.q.bias", "b.weight"), (0,), np.array([[1.0, 5.0, 2.0]], dtype=np.float32))
    >>> grouped(wide, limit=2)[0], grouped(wide, limit=2)[2].tolist()
    (('a.q (2)', 'b.weight'), [[5.0, 2.0]])
    """
    paths = [tuple(name.split(".")) for name in made.names]
    while len(set(paths)) > limit and any(len(path) > 1 for path in paths):
        deepest = max(map(len, paths))
        paths = [path[:-1] if len(path) == deepest else path for path in paths]
    order: dict[tuple[str, ...], list[int]] = {}
    for place, path in enumerate(paths):
        order.setdefault(path, []).append(place)
    groups = list(order.items())
    size = math.ceil(len(groups) / limit)
    if size > 1:
        groups = [
            (groups[start][0], [place for _, places in groups[start : start + size] for place in places])
            for start in range(0, len(groups), size)
        ]
    if len(groups) == len(made.names):
        return made
    names = tuple(
        made.names[places[0]] if len(places) == 1 else f"{'.'.join(path)} ({len(places)})" for path, places in groups
    )
    rows = [np.fmax.reduce(made.values[:, places], axis=1) for _, places in groups]
    return RowMap(names, made.steps, np.stack(rows, axis=1))


def touches(row: str, wanted: Sequence[str]) -> bool:
    """Whether a row stands for one of some tensors or modules.

    >>> touches("blocks.1 (4)", ["blocks.1.weight"]), touches("blocks.1 (4)", ["blocks.10.weight"])
    (True, False)
    """
    head = row.rpartition(" (")[0] if row.endswith(")") else row
    return any(name == head or name.startswith(f"{head}.") for name in wanted)


def picture(made: HeatMap, marked: Sequence[str] = ()) -> Element:
    """The map as SVG, for paper, notebooks and where no script runs."""
    rows, columns = made.cells.shape
    height = min(max(rows * 12, 60), 460)
    drawing = element(
        "svg", viewBox=f"0 0 {WIDTH} {height + 34}", role="img", aria_label=f"Heat map of the {made.title} by step"
    )
    place = {"x": float(LEFT), "y": 4.0, "width": float(WIDTH - LEFT - RIGHT), "height": float(height)}
    href = "data:image/png;base64," + base64.b64encode(png(made.cells)).decode()
    put(drawing, element("image", href=href, class_="cells", preserveAspectRatio="none", **place))
    for row in shown_rows(made.names, marked):
        y = 4 + height * (row + 0.5) / rows + 4
        kind = "name critical" if touches(made.names[row], marked) else None
        put(drawing, element("text", shortened(made.names[row]), x=LEFT - 8.0, y=y, text_anchor="end", class_=kind))
    for column in range(0, columns, max(1, columns // 8)):
        x = LEFT + (WIDTH - LEFT - RIGHT) * column / columns
        put(drawing, element("text", str(made.steps[column]), x=x, y=height + 20.0))
    return drawing


def shown_rows(names: Sequence[str], marked: Sequence[str]) -> list[int]:
    """The rows whose names find room: those that a finding names, and every so many of the others."""
    every = max(1, math.ceil(len(names) / LABELS))
    first = [row for row, name in enumerate(names) if touches(name, marked)]
    kept: list[int] = []
    for row in (*first, *range(0, len(names), every)):
        if all(abs(row - other) >= every for other in kept):
            kept.append(row)
    return sorted(kept)


def shortened(name: str, most: int = 26) -> str:
    """The end of a long name, which tells more than its beginning."""
    text = printable(name)
    return text if len(text) <= most else "…" + text[-most:]


def palette() -> list[tuple[int, int, int]]:
    """The colours of the cells."""
    anchors = [tuple(int(code[place : place + 2], 16) for place in (1, 3, 5)) for code in SCALE]
    size = 255 - FIRST
    colours: list[tuple[int, int, int]] = [(255, 255, 255), (0, 0, 0), (214, 39, 40)]
    for number in range(size + 1):
        at = number / size * (len(anchors) - 1)
        index = min(int(at), len(anchors) - 2)
        red, green, blue = (
            round(a + (b - a) * (at - index)) for a, b in zip(anchors[index], anchors[index + 1], strict=True)
        )
        colours.append((red, green, blue))
    return colours


def png(cells: NDArray[np.uint8]) -> bytes:
    """The cells as a PNG of one pixel each, in the colours of `palette`, nothing where nothing was measured.

    >>> png(np.zeros((2, 3), dtype=np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    rows, columns = cells.shape
    lines = b"".join(b"\0" + row.tobytes() for row in cells)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", b"".join(bytes(colour) for colour in palette())),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)
