"""The curves of a run as SVG: the means of its outline with a band from lowest to highest, and its episodes marked."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from xml.etree.ElementTree import Element

from torchdoctor.pictures import Bucket, is_flat, main_vitals, outstanding
from torchdoctor.records import INFORMATIVE, SEVERITIES, Severity, Symptom
from torchdoctor.reports.markup import element, put
from torchdoctor.reports.report import Report

WIDTH, LEFT, RIGHT = 920, 64, 16
ROW = 14
"""The height of a row of labels."""
ROWS = 4
"""Rows of labels; an episode that finds no room keeps its mark, its label is in the tooltip."""
GAP = 26
HUGE = 1e100
POINTS = 400
"""Buckets that are drawn; more would be finer than the screen."""
FLAT = 0.2
"""Room around a constant, as a share of it."""
WIDE = 100.0
"""From this ratio of highest to lowest on, a learning rate is drawn on a logarithmic scale."""
NOT_FINITE = "nan-or-inf"
"""The finding in whose episodes curves break off."""
LOG_SPAN = 30.0
"""From this ratio of highest to lowest on, a positive curve is drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis."""

    names: tuple[str, ...]
    height: int
    log: bool | None = None
    """None: as the values ask for."""


@dataclass(frozen=True)
class Axis:
    """From values to places: linear or logarithmic, between two ends."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; values beyond the ends are put at the ends."""
        low, high, inside = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, inside = math.log(low), math.log(high), math.log(inside)
        return self.start + (self.end - self.start) * ((inside - low) / (high - low))

    def ticks(self, count: int) -> list[float]:
        """Round values between the ends."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / count))
            decades = [10.0**power for power in range(first, last + 1, every)]
            return decades if len(decades) > 1 else [self.low, self.high]
        step = _round_step((self.high - self.low) / count)
        return [
            index * step for index in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        ]


def figure(report: Report) -> Element | None:
    """Loss with validation, gradient norm, and learning rate over the steps; None where there is nothing to draw."""
    panels = [panel for panel in _panels(report) if panel.names]
    if not panels:
        return None
    shown = [report.curves[name] for panel in panels for name in panel.names]
    first = min(buckets[0][0] for buckets in shown)
    last = max(report.step, first + 1, *(buckets[-1][0] for buckets in shown))
    steps = Axis(first, last, LEFT, WIDTH - RIGHT)
    marked = [item for item in report.symptoms if item.name not in INFORMATIVE]
    labels, rows = place_labels(marked, steps)
    top = 8 + rows * ROW
    bottom = top + sum(panel.height + GAP for panel in panels)
    drawing = element("svg", viewBox=f"0 0 {WIDTH} {bottom + 12}", role="img", aria_label="Curves of the run")
    for severity, first, last in shaded(marked):
        width = max(steps.at(last) - steps.at(first), 3.0)
        put(
            drawing,
            element(
                "rect",
                class_=f"span {severity}",
                x=steps.at(first),
                y=float(top),
                width=width,
                height=float(bottom - GAP - top),
            ),
        )
    for symptom in sorted(marked, key=lambda item: SEVERITIES.index(item.severity)):
        put(drawing, _onset(symptom, steps.at(symptom.first_step), top, bottom - GAP))
    for severity, words, x, y in labels:
        put(drawing, element("text", words, class_=f"label {severity}", x=x, y=y))
    for panel in panels:
        for part in _drawn(panel, report, steps, top):
            put(drawing, part)
        top += panel.height + GAP
    for tick in steps.ticks(8):
        put(drawing, element("text", f"{tick:.0f}", x=steps.at(tick), y=float(bottom - GAP + 16), text_anchor="middle"))
    put(drawing, element("text", "step", x=float(LEFT - 8), y=float(bottom - GAP + 16), text_anchor="end"))
    return drawing


def _panels(report: Report) -> list[Panel]:
    main = main_vitals(name for name, buckets in report.curves.items() if buckets)
    return [
        Panel(tuple(main["loss"]), 210),
        Panel(tuple(main["validation"]), 110),
        *(
            Panel(tuple(main[key]), height, scale(key, main[key], report))
            for key, height in (("grad_norm", 150), ("lr", 80))
        ),
        *(Panel((name,), 150) for name in main["others"]),
    ]


def is_wide(report: Report, names: Sequence[str]) -> bool:
    """Whether learning rates cover more than two orders of magnitude, zeros aside: a linear scale would hide the small.

    >>> report = Report(1, curves={"lr": [(0, 0.0, 1e-6, 1e-3)], "lr/head": [(0, 0.0, 0.0, 0.0), (1, 0.1, 0.1, 0.1)]})
    >>> [is_wide(report, [name]) for name in report.curves]
    [True, False]
    """
    exact = [values[values > 0] for name in names for _, values in report.closeups.get(name, ())]
    known = [value for name in names for _, *values in report.curves[name] for value in values if value > 0]
    known += [float(end) for values in exact if values.size for end in (values.min(), values.max())]
    return bool(known) and max(known) > WIDE * min(known)


def scale(panel: str, names: Sequence[str], report: Report) -> bool | None:
    """Whether the scale of a panel is first a logarithmic one; None: as the values ask for."""
    return {"grad_norm": True, "lr": is_wide(report, names)}.get(panel)


def gaps(buckets: Sequence[Bucket], report: Report) -> list[tuple[int, int]]:
    """The stretches in which a curve has no value because it was not finite: there nothing may be drawn.

    A bucket does not say where it ends. A gap is where the next bucket is further away than usual, and only within an
    episode of non-finite values; if another vital was the non-finite one, this curve goes on.

    >>> broken = Symptom("nan-or-inf", "NU01", "critical", 1, 20, 90)
    >>> gaps([(step, 1.0, 1.0, 1.0) for step in (0, 10, 100)], Report(step=109, symptoms=(broken,)))
    [(20, 90)]
    """
    spans = [(first, last) for _, first, last in shaded([item for item in report.symptoms if item.name == NOT_FINITE])]
    starts = [bucket[0] for bucket in buckets]
    usual = median_low([after - start for start, after in pairwise(starts)]) if len(starts) > 1 else 1
    found = []
    for start, after in pairwise([*starts, report.step + 1]):
        excess = after - start - usual
        for first, last in spans if excess >= usual else ():
            inside = max(first, start + 1), min(last, after - 1)
            if 0 < inside[1] - inside[0] + 1 <= 2 * excess:
                found.append(inside)
    return sorted(found)


def unbroken(buckets: Sequence[Bucket], broken: Sequence[tuple[int, int]]) -> list[list[Bucket]]:
    """The buckets between the gaps: what a line may connect."""
    cuts = [bisect_left(buckets, first, key=lambda bucket: bucket[0]) for first, _ in broken]
    return [list(buckets[start:end]) for start, end in pairwise([0, *cuts, len(buckets)]) if start < end]


def place_labels(symptoms: Sequence[Symptom], steps: Axis) -> tuple[list[tuple[Severity, str, float, float]], int]:
    """Where the labels of episodes go, so that none covers another: (severity, text, x, y) and the rows they take."""
    ends: list[float] = []
    labels: list[tuple[Severity, str, float, float]] = []
    for symptom in sorted(symptoms, key=lambda item: (item.first_step, item.code)):
        words = f"{symptom.code} {symptom.first_step}"
        width = 6.6 * len(words) + 8
        x = min(steps.at(symptom.first_step), WIDTH - RIGHT - width)
        row = next((index for index, end in enumerate(ends) if end <= x), len(ends))
        if row >= ROWS:
            continue
        ends[row : row + 1] = [x + width]
        labels.append((symptom.severity, words, x, float(ROW * (row + 1))))
    return labels, len(ends)


def shaded(symptoms: Sequence[Symptom]) -> list[tuple[Severity, int, int]]:
    """The spans to shade: episodes that overlap are one, and none lies in a more severe one; else they darken to black.

    >>> shaded([Symptom("a", "", "info", 1, 0, 9), Symptom("b", "", "info", 1, 5, 20)])
    [('info', 0, 20)]
    >>> shaded([Symptom("a", "", "info", 1, 5, 9), Symptom("b", "", "warning", 1, 0, 9)])
    [('warning', 0, 9)]
    """
    spans: list[tuple[Severity, int, int]] = []
    for severity in reversed(SEVERITIES):
        own = sorted((item.first_step, item.last_step) for item in symptoms if item.severity == severity)
        for first, last in own:
            if any(start <= first and last <= end for _, start, end in spans):
                continue
            if spans and spans[-1][0] == severity and first <= spans[-1][2]:
                spans[-1] = (severity, spans[-1][1], last)
            else:
                spans.append((severity, first, last))
    return spans


def _onset(symptom: Symptom, x: float, top: float, bottom: float) -> Element:
    line = element("line", class_="onset", x1=x, x2=x, y1=float(top), y2=float(bottom))
    return element("g", element("title", str(symptom)), line, class_=symptom.severity)


def _drawn(panel: Panel, report: Report, steps: Axis, top: float) -> list[Element]:
    curves = {name: thinned(report.curves[name]) for name in panel.names}
    values = value_axis([bucket for buckets in curves.values() for bucket in buckets], panel, top)
    parts = []
    for tick in values.ticks(max(2, panel.height // 35)):
        y = values.at(tick)
        parts.append(element("line", class_="grid", x1=float(LEFT), x2=float(WIDTH - RIGHT), y1=y, y2=y))
        parts.append(element("text", f"{tick:.4g}", x=float(LEFT - 8), y=y + 4, text_anchor="end"))
    x = float(LEFT + 10)
    for index, (name, buckets) in enumerate(curves.items(), 1):
        colour = f"c{(index - 1) % 4 + 1}"
        for piece in unbroken(buckets, gaps(buckets, report)):
            parts.extend(_curve(piece, colour, steps, values, dots=name.startswith("val_")))
        words = name + (" (log scale)" if values.log and index == len(curves) else "")
        parts.append(element("rect", class_=f"swatch {colour}", x=x, y=top + 5.0, width=10.0, height=10.0, rx=2.0))
        parts.append(element("text", words, class_="name", x=x + 15, y=top + 14.0))
        x += 15 + 7.2 * len(words) + 18
    return parts


def _curve(buckets: Sequence[Bucket], colour: str, steps: Axis, values: Axis, *, dots: bool) -> list[Element]:
    reached = {place: (buckets[place][1], buckets[place][3]) for place in outstanding(buckets)}
    line = " ".join(
        f"{steps.at(step):.1f},{values.at(value):.1f}"
        for place, (step, _, mean, _) in enumerate(buckets)
        for value in (mean, *reached.get(place, ()))
    )
    parts = [element("polyline", class_=f"line {colour}", points=line)]
    if any(low < high for _, low, _, high in buckets):
        upper = [f"{steps.at(step):.1f},{values.at(high):.1f}" for step, _, _, high in buckets]
        lower = [f"{steps.at(step):.1f},{values.at(low):.1f}" for step, low, _, _ in reversed(buckets)]
        parts.insert(0, element("polygon", class_=f"band {colour}", points=" ".join(upper + lower)))
    if (dots and len(buckets) <= 60) or len(buckets) == 1:
        parts.extend(
            element("circle", class_=f"dot {colour}", cx=steps.at(step), cy=values.at(mean), r=2.6)
            for step, _, mean, _ in buckets
        )
    return parts


def value_axis(buckets: Sequence[Bucket], panel: Panel, top: float) -> Axis:
    """The vertical axis of a panel: logarithmic where that is asked for or where the values span decades."""
    lows, highs = [bucket[1] for bucket in buckets], [bucket[3] for bucket in buckets]
    low, high = min(lows), max(highs)
    positive = [value for value in lows + highs if value > 0]
    log = bool(positive) and (panel.log if panel.log is not None else low > 0 and high / low > LOG_SPAN)
    start, end = top + panel.height, top
    if log:
        usual = sorted(positive)[len(positive) // 20]
        low, high = (
            max(min(positive), usual * 1e-3),
            max(positive),
        )  # a collapse may leave the panel, the rest must stay readable
        room = max((high / low) ** 0.06, 1.1)
        return Axis(max(low / room, 1e-300), min(high * room, 1e300), start, end, log=True)
    room = max((high - low) * 0.08, abs(high) * (FLAT if is_flat(low, high) else 1e-3), 1e-12)
    base = 0.0 if 0 <= low < 0.4 * high else low - room
    return Axis(base, high + (high - base) * 0.12 + room, start, end)


def thinned(buckets: Sequence[Bucket], limit: int = POINTS) -> list[Bucket]:
    """At most `limit` buckets; neighbours are merged, so that no extreme disappears.

    >>> thinned([(0, 1.0, 2.0, 3.0), (1, 0.0, 4.0, 9.0)], limit=1)
    [(0, 0.0, 3.0, 9.0)]
    """
    size = max(1, math.ceil(len(buckets) / limit))
    groups = (buckets[start : start + size] for start in range(0, len(buckets), size))
    return [
        (
            group[0][0],
            _drawable(min(b[1] for b in group)),
            _drawable(sum(b[2] / len(group) for b in group)),
            _drawable(max(b[3] for b in group)),
        )
        for group in groups
    ]


def _drawable(value: float) -> float:
    """A value whose differences are finite."""
    return min(max(value, -HUGE), HUGE)


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
