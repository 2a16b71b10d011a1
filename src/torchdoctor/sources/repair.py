"""Brings series in order: each step once, in ascending order, without cells that only fill a place.

Where a resumed run was appended to a log, steps go back: the later part replaces the steps that it repeats.

>>> mended = mend(Points.of([0, 10, 20, 30, 20, 30, 40], [5, 4, 3, 9, 2.5, 2, 1]))
>>> mended.points.steps.tolist(), mended.points.values.tolist(), mended.resumed
([0, 10, 20, 30, 40], [5.0, 4.0, 2.5, 2.0, 1.0], ((30, 20),))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.logged import STEP_LIMIT, Points

DISORDER = 0.25
"""Share of points that go back from which the file is in another order, rather than resumed."""
RECOVERIES = 3
"""How often NaN must be followed by a number again, and
"""
PLACEHOLDERS = 0.3
"""the share of values that must be NaN, to mean "not measured here"."""

FEWEST = 3
"""Points before a summary."""
REGULAR = 0.8
"""Share of NaN values that come with finite values of others; and of gaps that are equal if values are left out."""
FAR = 0.1
"""Share of a loss's usual value that all its other values must exceed before exact zeros count as blanks."""


@dataclass(frozen=True)
class Mended:
    """A series in order."""

    points: Points
    resumed: tuple[tuple[int, int], ...] = ()
    """Where steps went back, and to which step."""
    repeated: int = 0
    """Points that had the same step as another and were averaged."""
    sorted: bool = False
    """Whether the steps were in another order."""
    absent: int = 0
    """NaN values that only mean that nothing was measured."""
    outside: int = 0
    """Points at steps below zero or too large, left out."""
    hidden: int = 0
    """Zeros that stood for NaN, and are NaN again."""


def mend(points: Points, beside: NDArray[np.int64] | None = None) -> Mended:
    """Bring a series in order; `beside` are the steps at which other values were measured with it."""
    points, absent = (points, 0) if _is_broken(points, beside) else _measured(_without_summary(points))
    fits = (points.steps >= 0) & (points.steps < STEP_LIMIT)
    outside = len(points) - int(fits.sum())
    if outside:
        points = Points(points.steps[fits], points.values[fits])
    steps, values = points.steps, points.values
    back = np.flatnonzero(np.diff(steps) < 0)
    resumed: tuple[tuple[int, int], ...] = ()
    anew = back[steps[back + 1] == steps.min()] if len(back) else back  # several models, one after another
    disordered = len(back) - len(anew) > DISORDER * len(steps) or 2 * len(anew) >= len(steps) > 2
    if disordered:
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    elif len(back):
        resumed = tuple((int(steps[place]), int(steps[place + 1])) for place in back)
        steps, values = _latest(steps, values)
    before = len(steps)
    steps, values = _once(steps, values)
    return Mended(Points(steps, values), resumed, before - len(steps), disordered, absent, outside)


def unveil(mended: Mapping[str, Mended]) -> dict[str, Mended]:
    """A loss of exactly 0 with non-finite gradients was NaN: Hugging Face's trainer writes 0 instead.

    >>> found = unveil({"loss": mend(Points.of([10, 20, 30], [2.5, 0.0, 0.0])),
    ...                 "grad_norm": mend(Points.of([10, 20, 30], [1.2, np.nan, np.nan]))})
    >>> found["loss"].points.values.tolist(), found["loss"].hidden
    ([2.5, nan, nan], 2)
    """
    mended = _without_blanks(mended)
    if "loss" not in mended or "grad_norm" not in mended:
        return dict(mended)
    loss, norm = mended["loss"].points, mended["grad_norm"].points
    hidden = (loss.values == 0) & np.isin(loss.steps, norm.steps[~np.isfinite(norm.values)])
    if not hidden.any():
        return dict(mended)
    points = Points(loss.steps, np.where(hidden, np.nan, loss.values))
    return {**mended, "loss": replace(mended["loss"], points=points, hidden=int(hidden.sum()))}


def _without_blanks(mended: Mapping[str, Mended]) -> dict[str, Mended]:
    """Remove the zeros that loops write for the validation loss in epochs without validation.

    >>> blank = mend(Points.of(range(8), [0, 0.9, 0, 0.8, 0, 0.7, 0, 0.6]))
    >>> _without_blanks({"val_loss": blank})["val_loss"].points.values.tolist()
    [0.9, 0.8, 0.7, 0.6]
    """
    found = mended.get("val_loss")
    if found is None:
        return dict(mended)
    steps, values = found.points.steps, found.points.values
    others = values[values != 0]
    if not len(others) or not others.min() > FAR * np.median(others) > 0:
        return dict(mended)
    points, absent = _measured(Points(steps, np.where(values == 0, np.nan, values)))
    if not absent:
        return dict(mended)
    return {**mended, "val_loss": replace(found, points=points, absent=found.absent + absent)}


def _is_broken(points: Points, beside: NDArray[np.int64] | None) -> bool:
    """Whether NaN was measured, at irregular steps: another value of the same evaluations is known.

    >>> values = [1.0, np.nan, np.nan, 0.9, np.nan, np.nan, np.nan, 0.8, np.nan, 0.7, 0.6, 0.5]
    >>> _is_broken(Points.of(range(12), values), np.arange(12)), _is_broken(Points.of(range(12), values), None)
    (True, False)
    """
    missing = np.isnan(points.values)
    if beside is None or not missing.any() or missing.all():
        return False
    gaps = np.diff(np.flatnonzero(~missing))
    usual = float(np.median(gaps)) if len(gaps) else 1.0
    regular = usual > 1 and bool((gaps == usual).mean() > REGULAR)
    return not regular and bool(np.isin(points.steps[missing], beside).mean() > REGULAR)


def _without_summary(points: Points) -> Points:
    """Remove values written at step 0 at the end of a run that began later: a summary without a step.

    >>> _without_summary(Points.of([1, 2, 3, 0, 0], [0.9, 0.5, 0.4, 0.4, 0.4])).steps.tolist()
    [1, 2, 3]
    """
    counted = np.flatnonzero(points.steps)
    last = int(counted[-1]) + 1 if len(counted) else 0
    if len(counted) < max(last, FEWEST) or points.steps[last - 1] < points.steps.max():
        return points
    return Points(points.steps[:last], points.values[:last])


def _measured(points: Points) -> tuple[Points, int]:
    """Remove NaN if it stands for empty cells: it appears and disappears repeatedly."""
    missing = np.isnan(points.values)
    count = int(missing.sum())
    if count < PLACEHOLDERS * len(points) or count == len(points):
        return points, 0
    recoveries = int((missing[:-1] & ~missing[1:]).sum())
    if recoveries < RECOVERIES:
        return points, 0
    return Points(points.steps[~missing], points.values[~missing]), count


def _latest(steps: NDArray[np.int64], values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The value written last for each step: parts that a later part replaces are removed."""
    coming = np.minimum.accumulate(steps[::-1])[::-1]
    keep = np.append(steps[:-1] <= coming[1:], True)
    # A step that the resumed part repeats exactly takes its value, not an average of both.
    session = np.concatenate([[0], np.cumsum(np.diff(steps) < 0)])
    last_of = np.full(len(steps), session[-1])
    order = np.argsort(steps, kind="stable")
    ends = np.append(steps[order][1:] != steps[order][:-1], True)
    groups = np.cumsum(np.concatenate([[False], ends[:-1]]))
    last_of[order] = session[order][ends][groups]
    keep &= session == last_of
    return steps[keep], values[keep]


def _once(steps: NDArray[np.int64], values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Each step once: the mean of what ranks, micro-batches or validation batches wrote for it."""
    new = np.concatenate([[True], np.diff(steps) != 0]) if len(steps) else np.zeros(0, dtype=bool)
    if new.all():
        return steps, values
    starts = np.flatnonzero(new)
    with np.errstate(all="ignore"):
        sums = np.add.reduceat(values, starts)
    return steps[starts], sums / np.diff(np.append(starts, len(steps)))
