"""What a comparison keeps of a run: settings, curves and findings, small enough for thousands of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchdoctor.comparing.hyperparameters import Settings, hyperparameters, task_facts
from torchdoctor.offline import diagnose
from torchdoctor.records import INFORMATIVE
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import verdict
from torchdoctor.reports.wording import percent
from torchdoctor.sources.run import Piece, Run
from torchdoctor.stretch import Stretch

Floats = NDArray[np.float64]

MOST_POINTS = 10_000
"""Maximum number of points per curve; longer curves are reduced to means of neighboring points."""
KEPT = frozenset({"loss", "lr", "grad_norm", "seconds"})
"""Vitals that are kept besides validation metrics, learning rates by group and other losses."""
LOOKED_AT = frozenset({"header", "context", "groups", "facts"})
MOST_CURVES = 40
HUGE = 1e100
"""Larger values count as infinite, because their squares would overflow."""


class Curve(NamedTuple):
    """One vital over the steps, ascending."""

    steps: NDArray[np.int64]
    values: Floats


@dataclass(frozen=True)
class Finding:
    """One episode of a run's report."""

    name: str
    severity: str
    first_step: int
    last_step: int
    message: str


@dataclass(frozen=True)
class Summary:
    """One run."""

    run: str
    """The shortest part of its path that distinguishes it from the others."""
    path: str
    steps: int
    """Number of steps; if counting starts at 0, the last step is one less."""
    settings: Settings = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    health: str = ""
    """Empty if the run was not diagnosed."""
    cause: str = ""
    verdict: str = ""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    place: str = ""
    """The path from which it can be read again."""
    task: Settings = field(default_factory=dict)
    """Facts about the task, if the run records them."""
    clock: str = "step"
    """The unit of its steps: step, epoch or row."""
    label: str = ""
    """Its path, with its name if the path holds several runs."""

    def curve(self, name: str) -> Curve | None:
        """A vital's curve; None if it was not recorded."""
        found = self.curves.get(name)
        return found if found is not None and len(found.steps) else None

    def value_at(self, name: str, step: int) -> float:
        """A vital's value at a step, or the last one before it; NaN if there is none."""
        curve = self.curves.get(name)
        if curve is None:
            return math.nan
        place = int(np.searchsorted(curve.steps, step, side="right")) - 1
        return float(curve.values[place]) if place >= 0 else math.nan


def summarise(run: Run, *, examine: bool = True) -> Summary:
    """Summarize a run in one pass over it; `examine=False` skips the diagnosis."""
    collected = _Collected()
    tapped = replace(run, open=lambda: collected.tap(run.pieces))
    report: Report | None = None
    if examine:
        report = diagnose(tapped)
    else:
        for _ in tapped.pieces:
            pass
    curves = collected.curves()
    summary = Summary(
        run=str(run.path),
        path=str(run.path),
        steps=run.step + (min((int(curve.steps[0]) for curve in curves.values() if len(curve.steps)), default=0) == 0),
        settings=hyperparameters(run.header, collected.remarks, curves),
        curves=curves,
        notes=run.notes,
        task=task_facts(collected.remarks),
        clock=clock_of(run.header.get("context") or {}),
    )
    return summary if report is None else _judged(summary, report)


def _judged(summary: Summary, report: Report) -> Summary:
    leading = report.diagnoses[0] if report.diagnoses else None
    found = (item for item in report.symptoms if item.name not in INFORMATIVE)
    return replace(
        summary,
        health=report.health,
        cause="" if leading is None else f"{leading.cause} ({percent(leading.probability)})",
        verdict=verdict(report),
        findings=tuple(
            Finding(item.name, item.severity, item.first_step, item.last_step, item.message) for item in found
        ),
    )


class _Collected:
    """Collects curves and settings while a run is examined."""

    def __init__(self) -> None:
        self.remarks: list[Mapping[str, Any]] = []
        self._chunks: dict[str, list[Curve]] = {}
        self._loose: dict[str, tuple[list[int], list[float]]] = {}

    def tap(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Yield the same pieces, and collect from them."""
        for piece in pieces:
            if isinstance(piece, Stretch):
                for name in filter(self._keeps, piece.columns):
                    self._settle(name)
                    self._chunks[name].append(Curve(piece.steps, piece.columns[name]))
            elif piece["type"] in ("vitals", "validation"):
                step = piece["step"]
                for name, value in piece["vitals"].items():
                    if name in self._loose or self._keeps(name):
                        steps, values = self._loose.setdefault(name, ([], []))
                        steps.append(step)
                        values.append(value)
            elif piece["type"] in LOOKED_AT:
                self.remarks.append(piece)
            yield piece

    def _keeps(self, name: str) -> bool:
        if name in KEPT or name in self._chunks or name in self._loose:
            return True
        wanted = name.startswith(("val_", "lr/")) or name.endswith("loss")
        return wanted and len({*self._chunks, *self._loose}) < MOST_CURVES

    def _settle(self, name: str) -> None:
        chunks = self._chunks.setdefault(name, [])
        if name in self._loose:
            steps, values = self._loose.pop(name)
            chunks.append(Curve(np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)))

    def curves(self) -> dict[str, Curve]:
        """The curve of each vital that was kept."""
        for name in [*self._loose]:
            self._settle(name)
        found = {}
        for name, chunks in self._chunks.items():
            steps = np.concatenate([chunk.steps for chunk in chunks])
            values = np.concatenate([chunk.values for chunk in chunks])
            values = np.where(np.abs(values) > HUGE, np.copysign(np.inf, values), values)
            order = np.argsort(steps, kind="stable")  # validation may be logged late
            found[name] = thinned(Curve(steps[order], values[order]))
        return found


def thinned(curve: Curve, most: int = MOST_POINTS) -> Curve:
    """A curve with at most `most` points: means of neighboring points; means with a non-finite point are not finite.

    >>> thinned(Curve(np.arange(4), np.array([1.0, 2.0, 3.0, 5.0])), most=2)
    Curve(steps=array([0, 2]), values=array([1.5, 4. ]))
    """
    size = -(-len(curve.steps) // most)
    if size <= 1:
        return curve
    starts = np.arange(0, len(curve.steps), size)
    counts = np.diff(np.append(starts, len(curve.steps)))
    with np.errstate(invalid="ignore", over="ignore"):
        means = np.add.reduceat(curve.values, starts) / counts
    return Curve(curve.steps[starts], means)
