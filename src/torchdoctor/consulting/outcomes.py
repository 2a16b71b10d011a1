"""Whether a change helped, from the run before it and the run after it, over the steps that both have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchdoctor.comparing.naming import short_names
from torchdoctor.comparing.summary import summarise
from torchdoctor.comparing.tasks import unlike
from torchdoctor.consulting.casebook import Outcome
from torchdoctor.consulting.question import ConsultError
from torchdoctor.offline import diagnose
from torchdoctor.records import INFORMATIVE, SEVERITIES, number_text
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import printable
from torchdoctor.sources import read
from torchdoctor.sources.vital_series import vital_series

Array = NDArray[np.float64]
LEAST = 20
"""Losses of each run that are needed for a judgement."""
SHARE = 0.2
"""The last share of the common steps that is compared."""
DEVIATIONS = 3.0
"""Standard errors that a difference must exceed."""
WORTH = 0.01
"""Share of the loss under which a difference is not worth a word."""
FEW_VALIDATIONS = 3


@dataclass(frozen=True)
class Verdict:
    """What a change did, and how that is known."""

    outcome: Outcome
    note: str


def judge_runs(before: str | Path, after: str | Path) -> Verdict:
    """What the change between two recorded runs did; raises where they are not of one task."""
    one, other = read(before), read(after)
    names = short_names([str(before), str(after)])
    summaries = [
        replace(summarise(run, examine=False), run=name) for run, name in zip((one, other), names, strict=True)
    ]
    if reason := unlike(summaries):
        raise ConsultError(
            f"these runs cannot tell whether a change helped: {printable(reason)}. Give two runs of the same task, "
            "data and loss, which differ by the change only. If the change itself is why, compare their findings "
            "(torchdoctor compare) and tell what happened at the next consultation."
        )
    return judge(
        diagnose(one),
        {name: np.array(values, dtype=np.float64) for name, values in vital_series(one).items()},
        diagnose(other),
        {name: np.array(values, dtype=np.float64) for name, values in vital_series(other).items()},
    )


def judge(before: Report, old: dict[str, Array], after: Report, new: dict[str, Array]) -> Verdict:
    """Findings first: what broke is worse, what is gone has helped if the loss did not pay for it. Then the loss.

    Series are arrays of two rows: steps and values.

    >>> steps = np.arange(200.0)
    >>> old, new = ({"loss": np.stack([steps, rate ** steps + 1 + 0.01 * np.sin(9 * steps)])} for rate in (0.999, 0.98))
    >>> judge(Report(step=199), old, Report(step=199), new).outcome
    'helped'
    """
    loss = _difference(old, new)
    common = min(before.step, after.step)
    was, now = _grave(before, common), _grave(after, common)
    fresh = [name for name in now if name not in was]
    gone = [name for name in was if name not in now]
    said = loss[1] if loss is not None else "the losses cannot be compared"
    if fresh and _worst(after, common) > _worst(before, common):
        return Verdict("worse", f"new: {', '.join(fresh)}; {said}")
    if gone and not fresh and (loss is None or loss[0] <= 0):
        return Verdict("helped", f"gone: {', '.join(gone)}; {said}")
    if loss is None and not was:
        raise ConsultError(
            f"these runs cannot tell whether a change helped: neither shows trouble in the first {common + 1:,} "
            f"{clock_of(before.context)}s, and they have too few losses in common: {LEAST} of each are needed, or "
            f"{FEW_VALIDATIONS} of validation. Train both for as long as the trouble takes to show."
        )
    if loss is None:
        return Verdict("nothing", f"the same findings in both; {said}")
    return Verdict("helped" if loss[0] < 0 else "worse" if loss[0] > 0 else "nothing", said)


def _grave(report: Report, until: int) -> list[str]:
    """Findings of warning and above that began within the steps that both runs have."""
    found = [item for item in report.symptoms if item.severity != "info" and item.name not in INFORMATIVE]
    return list(dict.fromkeys(item.name for item in found if item.first_step <= until))


def _worst(report: Report, until: int) -> int:
    found = [item for item in report.symptoms if item.name not in INFORMATIVE and item.first_step <= until]
    return max((SEVERITIES.index(item.severity) for item in found), default=-1)


def _difference(old: dict[str, Array], new: dict[str, Array]) -> tuple[int, str] | None:
    """-1 where the loss is lower after the change, 1 where it is higher, 0 within the noise; and in words."""
    for vital, words, least in (("val_loss", "validation loss", FEW_VALIDATIONS), ("loss", "loss", LEAST)):
        if vital in old and vital in new:
            found = _compared(old[vital], new[vital], words, least)
            if found is not None:
                return found
    return None


def _compared(old: Array, new: Array, words: str, least: int) -> tuple[int, str] | None:
    end = min(float(old[0, -1]), float(new[0, -1]))
    tails = [_tail(curve, end, least) for curve in (old, new)]
    if any(len(tail) < least for tail in tails):
        return None
    if not all(np.isfinite(tail).all() for tail in tails):
        broken = [not np.isfinite(tail).all() for tail in tails]
        order = broken[1] - broken[0]
        return order, f"the {words} is not finite {'in both' if all(broken) else 'after' if broken[1] else 'before'}"
    levels = [float(np.median(tail)) for tail in tails]
    noise = math.sqrt(sum(_error(tail) ** 2 for tail in tails))
    difference = levels[1] - levels[0]
    told = f"{words} {number_text(levels[0])} before, {number_text(levels[1])} after, at step {end:.0f}"
    if abs(difference) <= max(DEVIATIONS * noise, WORTH * abs(levels[0])):
        return 0, f"{told}: within the noise"
    return (-1 if difference < 0 else 1), told


def _tail(curve: Array, end: float, least: int) -> Array:
    """The values of the last share of the common steps, and at least so many."""
    values = curve[1][curve[0] <= end]
    tail: Array = values[-max(least, int(SHARE * len(values))) :]
    return tail


def _error(values: Sequence[float] | Array) -> float:
    """The standard error of a level, from the changes between neighbours: a trend drops out."""
    changes = np.abs(np.diff(np.asarray(values, dtype=np.float64)))
    return float(1.2533 * 1.4826 * np.median(changes) / math.sqrt(2 * max(len(values), 1))) if changes.size else 0.0
