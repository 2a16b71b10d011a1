"""Whether a change helped: compares the run before it with the run after it over the steps that both have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchdoctor.comparing.naming import short_names
from torchdoctor.comparing.outcome import DIVERGING
from torchdoctor.comparing.summary import Summary, summarise
from torchdoctor.comparing.tasks import unlike
from torchdoctor.consulting.casebook import STILL_THERE, WITHIN_NOISE, Outcome
from torchdoctor.consulting.question import ConsultError
from torchdoctor.consulting.trials import MARGIN
from torchdoctor.offline import diagnose
from torchdoctor.records import INFORMATIVE, SEVERITIES, number_text
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import printable
from torchdoctor.sources import Run, read
from torchdoctor.sources.run import Piece
from torchdoctor.sources.vital_series import vital_series
from torchdoctor.stretch import Stretch

Array = NDArray[np.float64]
LEAST = 20
"""Losses that each run needs for a comparison."""
SHARE = 0.2
"""Share of the losses, at the end of the common steps, that is compared."""
DEVIATIONS = 3.0
"""Standard errors that a difference must exceed to count."""
WORTH = 0.01
"""Share of the loss below which a difference does not count."""
FEW_VALIDATIONS = 3
NEIGHBOURS = 8
"""Changes between neighboring values needed to estimate noise: with fewer, a single jump would count as noise."""


@dataclass(frozen=True)
class Verdict:
    """What a change did, and the evidence."""

    outcome: Outcome
    note: str
    before: str = ""
    """The file of the run before the change, as found under the given path."""


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    series: dict[str, Array]
    """By vital, an array with two rows: steps and values."""
    report: Report
    early: Report
    """What the run showed within the steps that both have: a finding takes time to appear."""

    @classmethod
    def of(cls, run: Run, end: int) -> Side:
        """A run to compare with another over the steps up to `end`."""
        series = {name: np.array(values, dtype=np.float64) for name, values in vital_series(run).items()}
        report = diagnose(run)
        return cls(series, report, report if run.step <= end else diagnose(_upto(run, end)))


def _upto(run: Run, end: int) -> Run:
    """The run as if it had ended at that step."""

    def pieces() -> Iterator[Piece]:
        for piece in run.pieces:
            if not isinstance(piece, Stretch):
                if piece.get("step", 0) <= end:
                    yield piece
            elif size := int(np.searchsorted(piece.steps, end, side="right")):
                yield piece[:size]

    return replace(run, step=end, open=pieces)


def judge_runs(before: str | Path, after: str | Path) -> Verdict:
    """What the change between two recorded runs did; raises `ConsultError` if they do not share one task."""
    one, other = read(before), read(after)
    names = short_names([str(before), str(after)])
    summaries = [
        replace(summarise(run, examine=False), run=name) for run, name in zip((one, other), names, strict=True)
    ]
    _in_one_clock(summaries)
    if reason := unlike(summaries):
        raise ConsultError(
            f"these runs cannot tell whether a change helped: {printable(reason)}. Give two runs of the same task, "
            "data and loss that differ only by the change. If the change itself is the reason, compare their findings "
            "(torchdoctor compare) and enter the outcome at the next consultation."
        )
    end = min(one.step, other.step)
    return replace(judge(Side.of(one, end), Side.of(other, end)), before=str(one.path))


def _in_one_clock(summaries: list[Summary]) -> None:
    before, after = summaries
    if before.clock != after.clock:
        raise ConsultError(
            f"these runs cannot tell whether a change helped: {printable(before.run)} is logged by {before.clock}s and "
            f"{printable(after.run)} by {after.clock}s, which cannot be compared. Give two runs that are logged in the "
            "same unit."
        )


def judge(old: Side, new: Side) -> Verdict:
    """Findings count before the loss: new trouble is worse; a vanished finding helped if the loss is no worse.

    A finding has vanished if the whole run after the change does not have it, and is long enough to show it.

    >>> steps, report = np.arange(200.0), Report(step=199)
    >>> old, new = (
    ...     Side({"loss": np.stack([steps, rate ** steps + 1 + 0.01 * np.sin(9 * steps)])}, report, report)
    ...     for rate in (0.999, 0.98)
    ... )
    >>> judge(old, new).outcome
    'helped'
    """
    clock = clock_of(old.report.context)
    loss = _difference(old.series, new.series, clock)
    said = loss[1] if loss is not None else "the losses cannot be compared"
    was, now = _onsets(old.report), _onsets(new.report)
    begun, early = _onsets(old.early), _onsets(new.early)
    here = [name for name in now if name in begun or name in early]
    fresh = [name for name in early if name not in begun]
    gone = [name for name in begun if name not in now]
    left = f"{STILL_THERE}: {', '.join(_dated(name, was, now, clock) for name in here)}; " if here else ""
    broke, had = _breaks(new.report), DIVERGING & set(begun)
    if fresh and (_worst(new.early) > _worst(old.early) or (set(fresh) & set(broke) and not had)):
        return Verdict("worse", f"new: {', '.join(_dated(name, was, now | early, clock) for name in fresh)}; {said}")
    missed = [name for name in was if name not in begun and name not in now]
    moved = gone or (loss is not None and loss[0] != 0)
    if missed and (not moved or set(missed) & set(_breaks(old.report))):
        raise ConsultError(_longer("after", new, old, max(missed, key=was.__getitem__), said))
    if loss is not None and loss[0] > 0:
        return Verdict("worse", said)
    if broke and not had:
        raise ConsultError(_longer("before", old, new, broke[0], said))
    if broke:
        return Verdict("nothing", f"{left}{said}")
    if gone and not fresh:
        return Verdict("helped", f"gone: {', '.join(gone)}; {said}")
    if loss is None and not here and not gone:
        raise ConsultError(
            "these runs cannot tell whether a change helped: neither has findings in the first "
            f"{min(old.report.step, new.report.step) + 1:,} {clock}s, and they have too few losses in common: each "
            f"needs {LEAST} losses, or {FEW_VALIDATIONS} validation losses. Train both until the trouble can show."
        )
    if loss is None or loss[0] == 0:
        return Verdict("nothing", f"{left}{said}")
    return Verdict("helped", said)


def _onsets(report: Report) -> dict[str, int]:
    """By finding of severity warning or above, the step at which it began."""
    found: dict[str, int] = {}
    for item in report.symptoms:
        if item.severity != "info" and item.name not in INFORMATIVE:
            found[item.name] = min(item.first_step, found.get(item.name, item.first_step))
    return found


def _breaks(report: Report) -> list[str]:
    """Findings that ended the run, at any step: a lower loss before them does not make up for it."""
    return list(
        dict.fromkeys(item.name for item in report.symptoms if item.name in DIVERGING and item.severity == "critical")
    )


def _dated(name: str, was: dict[str, int], now: dict[str, int], clock: str) -> str:
    """A finding of the run after the change, with its onset in both runs if they differ."""
    if name not in now or was.get(name) == now[name]:
        return name
    return f"{name} at {clock} {now[name]}{f' (before: {was[name]})' if name in was else ''}"


def _longer(which: str, short: Side, long: Side, name: str, said: str) -> str:
    """An error that says which run to train longer: it is too short to show a finding of the other one."""
    clock, onset, end = clock_of(long.report.context), _onsets(long.report)[name], short.report.step
    other = "after" if which == "before" else "before"
    needed = math.ceil(MARGIN * onset) if onset > end else long.report.step
    return (
        f"these runs cannot tell whether a change helped: the run {other} the change shows {name} at {clock} {onset}, "
        f"and the run {which} it is too short to tell: it ends at {clock} {end} (until then: {said}). Train it at "
        f"least to {clock} {needed}."
    )


def _worst(report: Report) -> int:
    found = [item for item in report.symptoms if item.name not in INFORMATIVE]
    return max((SEVERITIES.index(item.severity) for item in found), default=-1)


def _difference(old: dict[str, Array], new: dict[str, Array], clock: str) -> tuple[int, str] | None:
    """-1 if the loss is lower after the change, 1 if it is higher, 0 if within the noise; and a sentence."""
    for vital, words, least in (("val_loss", "validation loss", FEW_VALIDATIONS), ("loss", "loss", LEAST)):
        if vital in old and vital in new:
            found = _compared(old[vital], new[vital], words, least, clock)
            if found is not None:
                return found
    return None


def _compared(old: Array, new: Array, words: str, least: int, clock: str) -> tuple[int, str] | None:
    end = min(float(old[0, -1]), float(new[0, -1]))
    curves = [curve[1][curve[0] <= end] for curve in (old, new)]
    tails = [values[-max(least, int(SHARE * len(values))) :] for values in curves]
    if any(len(tail) < least for tail in tails):
        return None
    if not all(np.isfinite(tail).all() for tail in tails):
        broken = [not np.isfinite(tail).all() for tail in tails]
        where = "in both" if all(broken) else "after" if broken[1] else "before"
        return broken[1] - broken[0], f"the {words} up to {clock} {end:.0f} is not finite {where}"
    levels = [float(np.median(tail)) for tail in tails]
    difference = levels[1] - levels[0]
    told = f"{words} {number_text(levels[0])} before, {number_text(levels[1])} after, at {clock} {end:.0f}"
    if abs(difference) <= max(DEVIATIONS * _noise(curves, tails), WORTH * abs(levels[0])):
        return 0, f"{told}: {WITHIN_NOISE}"
    return (-1 if difference < 0 else 1), told


def _noise(curves: list[Array], tails: list[Array]) -> float:
    """The standard error of the difference of two levels, from changes between neighboring values: trends cancel out.

    A loss that jumps once and stays there is not noisy. If the tails are short, earlier values and the other run help
    to estimate the usual change.

    >>> broke, well = np.array([0.54, 1.605, 1.607]), np.array([0.54, 0.556, 0.545])
    >>> _noise([broke, well], [broke, well]) < 0.02
    True
    """
    windows = [values[-max(len(tail), NEIGHBOURS + 1) :] for values, tail in zip(curves, tails, strict=True)]
    changes = [np.abs(np.diff(values[np.isfinite(values)])) for values in windows]
    if min(len(found) for found in changes) < NEIGHBOURS:
        changes = [np.concatenate(changes)] * 2
    usual = [1.4826 * float(np.median(found)) / math.sqrt(2) if found.size else 0.0 for found in changes]
    return math.hypot(*(1.2533 * size / math.sqrt(len(tail)) for size, tail in zip(usual, tails, strict=True)))
