"""Makes a run from a foreign log: names understood, steps in order, resumptions marked.

>>> from pathlib import Path
>>> run = assemble(Logged(Path("a.csv"), "a", "CSV", {"train_loss": Points.of([0, 10, 20], [3.0, 2.0, 1.5]),
...                                                  "val_acc": Points.of([20], [0.6])}))
>>> [(record["type"], record["step"]) for record in run]
[('header', -1), ('vitals', 0), ('vitals', 10), ('vitals', 20), ('validation', 20)]
>>> run.header["context"]["columns"], run.header["context"]["logged_every"]
({'loss': 'train_loss', 'val_accuracy': 'val_acc'}, 10)
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchdoctor.errors import SourceError, did_you_mean
from torchdoctor.records import SCHEMA, Record, names_text
from torchdoctor.sources.columns import union
from torchdoctor.sources.count_names import counts, is_epoch
from torchdoctor.sources.description import context_of, remarks_on
from torchdoctor.sources.logged import NAME_LENGTH, STEP_LIMIT, Logged, NoLogError, Points, Wish
from torchdoctor.sources.naming import Understood, understand
from torchdoctor.sources.repair import Mended, mend, unveil
from torchdoctor.sources.run import Piece, Run
from torchdoctor.sources.single_names import RULES
from torchdoctor.sources.words import is_measure, taken_apart, words_of
from torchdoctor.stretch import Stretch

MAPPED = ("step", "loss", "val_loss", "accuracy", "reward", *RULES)
"""What a column can be mapped to, besides any val_… and any …loss."""
CALLS = ("W&B", "Trackio")
"""Formats whose steps count calls of the logger: a step count that the run logged itself is better."""
EVALUATION = frozenset({"eval", "evaluation", "validation"})
"""Words in the names of files that hold only evaluations."""
UNCOUNTED = 5
"""Number of values at a single step from which the steps count as missing."""


def assemble(logged: Logged, wish: Wish | None = None) -> Run:
    """The run that a log describes."""
    points = {name: series for name, series in logged.points.items() if len(series) and len(name) <= NAME_LENGTH}
    mapping = dict(wish.mapping) if wish is not None else {}
    axis = mapping.pop("step", None)
    _check(mapping, points, logged)
    axis = axis or (_own_count(points) if logged.format in CALLS else None)
    if axis in points:
        points = _counted_by(axis, points)
    points, notes = _over_rows(points if mapping else _as_the_file_says(logged.path, points))
    understood = _without_unmeasured(understand(_weights(points), mapping), points)
    if not understood.columns:
        known = names_text([*points], 12) or "none"
        raise NoLogError(
            f"no loss, learning rate or gradient norm was found in {logged.path}. Its numeric columns: {known}. "
            f"Name the loss column: {example(_not_rising(points))}, and --map val_loss=COLUMN likewise."
        )
    combined = {vital: _combined(vital, points, understood) for vital in understood.columns}
    mended = {vital: mend(series, _evaluated_beside(vital, combined)) for vital, series in combined.items()}
    mended = {vital: found for vital, found in mended.items() if len(found.points) and not _runs_on(vital, found)}
    mended = unveil(mended)
    training = {vital: found.points for vital, found in mended.items() if not vital.startswith("val_")}
    validation = {vital: found.points for vital, found in mended.items() if vital.startswith("val_")}
    resumed = _resumed(mended)
    context = context_of(logged, understood, mended, points)
    header = {"type": "header", "step": -1, "schema": SCHEMA, "context": context}
    return Run(
        path=logged.path,
        header=header,
        step=max((int(found.points.steps[-1]) for found in mended.values()), default=-1),
        skipped=logged.skipped,
        first_skipped=logged.first_skipped,
        torn=logged.torn,
        unit=logged.unit,
        sessions=1 + len(resumed),
        remarks=(*logged.notes, *notes, *remarks_on(understood, mended, resumed, points)),
        open=partial(_pieces, header, training, validation, [start for _, start in resumed]),
    )


def _not_rising(points: Mapping[str, Points]) -> list[str]:
    """Names of series that may be a loss, because they do not always rise like a count or a clock; all if each does."""
    return [name for name, series in points.items() if not (series.values[1:] > series.values[:-1]).all()] or [*points]


def example(names: Iterable[str]) -> str:
    """The option that maps a column to the loss; if a name needs quotes, that one, so that it can be pasted.

    >>> example(["column 1", "column 2"]), example(["energy"])
    ("--map 'loss=column 1'", '--map loss=COLUMN')
    """
    return "--map " + next(
        (quoted for name in names if (quoted := shlex.quote(f"loss={name}"))[0] == "'"), "loss=COLUMN"
    )


def _as_the_file_says(path: Path, points: dict[str, Points]) -> dict[str, Points]:
    """Series marked as validation if the file is called val_loss or evaluation and no name says otherwise.

    >>> [*_as_the_file_says(Path("val_loss_big.txt"), {"loss": Points.of([1], [0.5]), "lr": Points.of([1], [0.1])})]
    ['val/loss', 'lr']
    """
    called = taken_apart(path.stem, 0)
    measures = [name for name in points if is_measure(name)]
    evaluated = called.split == "val" and not EVALUATION.isdisjoint(words_of(path.stem))
    told = called.split in ("val", "test") and (called.is_loss or called.words == ("error",) or evaluated)
    if not told or any(taken_apart(name, 0).split for name in measures):
        return points
    return {f"{called.split}/{name}" if name in measures else name: series for name, series in points.items()}


def _over_rows(points: dict[str, Points]) -> tuple[dict[str, Points], tuple[str, ...]]:
    """Series whose steps were never counted up, numbered in the order in which they were written.

    If the losses were counted, other uncounted series belong to their last step: an evaluation after the end, in parts.
    """
    losses = [series for name, series in points.items() if taken_apart(name, 0).is_loss]
    longest = max(losses or points.values(), key=len, default=Points.of([], []))
    if len(longest) < UNCOUNTED or (longest.steps != longest.steps[0]).any():
        return points, ()
    note = f"every value was logged at step {longest.steps[0]}: they are numbered in the order of the log"
    return {name: Points(np.arange(len(series)), series.values) for name, series in points.items()}, (note,)


def _weights(points: Mapping[str, Points]) -> dict[str, int]:
    """How informative each series is: its number of points, reduced if it covers less than half of the run."""
    spans = {name: int(series.steps.max() - series.steps.min()) for name, series in points.items()}
    half = max(spans.values(), default=0) / 2
    return {
        name: len(series) if spans[name] >= half else max(1, round(len(series) * spans[name] / half))
        for name, series in points.items()
    }


def _check(mapping: Mapping[str, str], points: Mapping[str, Points], logged: Logged) -> None:
    for vital, name in mapping.items():
        if vital not in MAPPED and not vital.startswith("val_") and not vital.endswith("loss"):
            raise SourceError(
                f"--map {vital}={name}: {vital!r} is not a known vital. Write the vital first, as in --map "
                f"loss=COLUMN. {did_you_mean(vital, MAPPED)}"
            )
        if name not in points:
            raise SourceError(
                f"--map {vital}={name}: {logged.path} has no numeric column {name!r}. {did_you_mean(name, points)}"
            )


def _own_count(points: Mapping[str, Points]) -> str | None:
    """The series in which the run counted its steps itself, if it did so throughout."""
    longest = max(map(len, points.values()), default=0)
    names = [name for name in points if counts(name) and not is_epoch(name) and len(points[name]) * 2 > longest]
    several = (name for name in names if len(points[name]) > 1)
    return next((name for name in several if (np.diff(points[name].values) >= 0).mean() > 0.9), None)


def _counted_by(axis: str, points: Mapping[str, Points]) -> dict[str, Points]:
    """Series over the steps that one of them counts, instead of the logger's own."""
    finite = np.isfinite(points[axis].values)
    logged, counted = points[axis].steps[finite], points[axis].values[finite]
    order = np.argsort(logged, kind="stable")
    logged, steps = logged[order], np.rint(np.clip(counted[order], -1, STEP_LIMIT)).astype(np.int64)
    found = {}
    for name, series in points.items():
        if name != axis and len(counted):
            places = np.maximum(np.searchsorted(logged, series.steps, side="right") - 1, 0)
            found[name] = Points(steps[places], series.values)
    return found


def _without_unmeasured(understood: Understood, points: Mapping[str, Points]) -> Understood:
    """Without the terms of a sum that are NaN in every row, while other terms never are: they were not computed.

    In a run that broke, the other terms are NaN as well.
    """
    idle: set[str] = set()
    for names in understood.columns.values():
        finite = {name: np.isfinite(points[name].values) for name in names}
        if len(names) > 1 and any(known.all() for known in finite.values()):
            idle |= {name for name, known in finite.items() if not known.any()}
    if not idle:
        return understood
    kept = {vital: tuple(name for name in names if name not in idle) for vital, names in understood.columns.items()}
    columns = {vital: names for vital, names in kept.items() if names}
    better = {vital: way for vital, way in understood.better.items() if vital in columns}
    left_out = (*understood.left_out, *(name for name in points if name in idle))
    return replace(understood, columns=columns, better=better, left_out=left_out)


def _combined(vital: str, points: Mapping[str, Points], understood: Understood) -> Points:
    """One series from the columns that make it up, at the rows where all of them have a value."""
    first, *others = (points[name] for name in understood.columns[vital])
    steps, values = first.steps, first.values * understood.scales.get(vital, 1.0)
    with np.errstate(all="ignore"):
        for other in others:
            if len(other) != len(steps) or not np.array_equal(other.steps, steps):
                steps, here, there = np.intersect1d(steps, other.steps, return_indices=True)
                values, added = values[here], other.values[there]
            else:
                added = other.values
            values = values + added
        if vital in understood.averaged:
            values = values / (1 + len(others))
    return Points(steps, values)


def _evaluated_beside(vital: str, series: Mapping[str, Points]) -> NDArray[np.int64] | None:
    """The steps at which a validation value other than the loss is known."""
    if vital != "val_loss":
        return None
    others = [found for name, found in series.items() if name.startswith("val_") and name != vital]
    steps = [found.steps[np.isfinite(found.values)] for found in others]
    return union(steps) if steps else None


def _runs_on(vital: str, found: Mended) -> bool:
    """Whether a time is counted from the start of the run: then it is a clock, not the duration of a step."""
    if vital not in ("seconds", "data_seconds"):
        return False
    values = found.points.values
    rising = values[1:] >= values[:-1]
    return len(rising) < 4 or (float(rising.mean()) > 0.95 and len(np.unique(values)) > 0.05 * len(values))


def _resumed(mended: Mapping[str, Mended]) -> tuple[tuple[int, int], ...]:
    """Where the run went back, according to its longest series."""
    longest = max(mended.values(), key=lambda found: len(found.points), default=None)
    standing: list[tuple[int, int]] = []
    for last, first in longest.resumed if longest is not None else ():
        standing = [item for item in standing if item[1] < first]  # anything that began later was replaced entirely
        standing.append((last, first))
    return tuple(standing)


def _pieces(
    header: Record, training: Mapping[str, Points], validation: Mapping[str, Points], resumed: Sequence[int]
) -> Iterator[Piece]:
    """Training in stretches, each validation after its step, and a header where a run was resumed."""
    yield header
    cuts: list[tuple[int, int, Record]] = [(step, 0, {**header, "step": step - 1}) for step in resumed if step > 0]
    for record in _rows("validation", validation):
        cuts.append((record["step"] + 1, 1, record))
    cuts.sort(key=lambda cut: cut[:2])
    stretches = _stretches(training)
    for before, _, record in cuts:
        while stretches and stretches[-1].steps[0] < before:
            stretch = stretches.pop()
            place = int(np.searchsorted(stretch.steps, before))
            if place < len(stretch):
                stretches.append(stretch[place:])
            yield _piece(stretch[:place])
        yield record
    for stretch in reversed(stretches):
        yield _piece(stretch)


def _piece(stretch: Stretch) -> Piece:
    return stretch if len(stretch) > 1 else stretch.record(0)


def _rows(kind: str, series: Mapping[str, Points]) -> Iterator[Record]:
    """One record per step, with what was measured at it."""
    for stretch in reversed(_stretches(series)):
        for record in stretch.records():
            yield {**record, "type": kind}


def _stretches(series: Mapping[str, Points]) -> list[Stretch]:
    """Stretches of steps at which the same vitals were measured, the last one first."""
    if not series:
        return []
    steps = union([points.steps for points in series.values()])
    present = np.zeros((len(steps), len(series)), dtype=bool)
    table = np.zeros((len(series), len(steps)))
    for column, points in enumerate(series.values()):
        places = np.searchsorted(steps, points.steps)
        present[places, column] = True
        table[column, places] = points.values
    borders = np.flatnonzero((present[1:] != present[:-1]).any(axis=1)) + 1
    found = []
    for start, end in zip([0, *borders.tolist()], [*borders.tolist(), len(steps)], strict=True):
        columns = {name: table[column, start:end] for column, name in enumerate(series) if present[start, column]}
        found.append(Stretch(steps[start:end], columns))
    return found[::-1]
