"""The curves of a report as data for the script of its page: bounded, finite, and with every string made printable."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchdoctor.pictures import Points, main_vitals, outstanding
from torchdoctor.records import INFORMATIVE, SEVERITIES, Symptom
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.curves import HUGE, gaps, scale, shaded, thinned
from torchdoctor.reports.heat_map import heat_maps, palette
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import printable

TITLES = {"loss": "Loss", "validation": "Validation", "grad_norm": "Gradient norm", "lr": "Learning rate"}
EPISODES = 60
"""Episodes that are marked; the worst where there are more."""
OTHERS = 60
"""Further curves that can be chosen."""
COARSE, OTHER_COARSE = 1100, 250
"""Buckets of a main curve and of another."""


def chart_data(report: Report) -> dict[str, Any]:
    """Everything that the script draws."""
    drawn = {name: buckets for name, buckets in report.curves.items() if buckets}
    main = main_vitals(drawn)
    shown = {name for names in main.values() for name in names}
    panels = [
        {
            "title": title,
            "log": scale(key, names, report),
            "curves": [_curve(report, name) for name in names],
        }
        for key, title in TITLES.items()
        if (names := main[key])
    ]
    panels += [{"title": "", "log": None, "curves": [_curve(report, name)]} for name in main["others"]]
    others = [name for name in drawn if name not in shown][:OTHERS]
    steps = [(buckets[0][0], buckets[-1][0]) for buckets in drawn.values()]
    first = min((start for start, _ in steps), default=0)
    palettes = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in palette()]
    maps = [made.to_dict(named_places(report)) for made in heat_maps(report)]
    return {
        "clock": clock_of(report.context),
        "first": first,
        "last": max([report.step, first + 1, *(end for _, end in steps)]),
        "panels": panels,
        "others": [_curve(report, name, OTHER_COARSE) for name in others],
        "episodes": [_episode(item) for item in marked(report)],
        "spans": shaded(marked(report)),
        "maps": maps,
        "palette": palettes if maps else [],
    }


def marked(report: Report, limit: int = EPISODES) -> list[Symptom]:
    """The episodes to mark in pictures, in order of their beginning; of very many the worst."""
    real = [item for item in report.symptoms if item.name not in INFORMATIVE]
    worst = sorted(real, key=lambda item: -SEVERITIES.index(item.severity))[:limit]
    return sorted(worst, key=lambda item: item.first_step)


def named_places(report: Report) -> list[str]:
    """The tensors and modules that findings of some weight name."""
    return [name for item in report.symptoms if item.severity != "info" for name in item.where]


def _episode(symptom: Symptom) -> dict[str, Any]:
    return {
        "label": printable(f"{symptom.code} {symptom.name}"),
        "severity": symptom.severity,
        "first": symptom.first_step,
        "last": symptom.last_step,
        "message": printable(symptom.message),
    }


def _curve(report: Report, name: str, limit: int = COARSE) -> dict[str, Any]:
    buckets = thinned(report.curves[name], limit)
    exact = all(low == high for _, low, _, high in buckets)
    columns: list[Any] = [[bucket[0] for bucket in buckets], [_short(bucket[2]) for bucket in buckets]]
    if not exact:
        columns += [[_short(bucket[1]) for bucket in buckets], [_short(bucket[3]) for bucket in buckets]]
    pieces = () if exact else report.closeups.get(name, ())
    return {
        "name": printable(name),
        "dots": name.startswith("val_"),
        "coarse": columns,
        "peaks": outstanding(buckets),
        "gaps": gaps(buckets, report),
        "fine": [_piece(piece) for piece in pieces if piece[0].size],
    }


def _piece(piece: Points) -> dict[str, Any]:
    """Neighbouring steps: evenly spaced ones by their distance, which makes half the size."""
    steps, values = piece
    gaps = np.unique(np.diff(steps))
    even = {"every": int(gaps[0]) if gaps.size else 1} if gaps.size <= 1 else {"steps": steps.tolist()}
    return {"first": int(steps[0]), **even, "values": [_short(value) for value in values.tolist()]}


def _short(value: float) -> float:
    """Six digits are more than a screen can show."""
    return float(f"{min(max(value, -HUGE), HUGE):.6g}")
