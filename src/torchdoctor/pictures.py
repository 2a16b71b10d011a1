"""Data for a report's pictures besides curves, in constant memory: maps of rows over time, and episodes in detail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchdoctor.records import Symptom
from torchdoctor.series import Series

COLUMNS = 200
"""Maximum number of columns of a map: a screen shows no more, so further steps are pooled."""
CELLS = 400_000
"""Maximum number of cells of a map; with very many tensors, fewer columns are kept."""
LARGEST = 3e38
"""Larger numbers are stored as this one, so that they differ from infinity."""
MAPPED = frozenset({"grad_norm", "update_ratio", "weight_norm", "act_rms", "act_dead"})
"""The per-tensor and per-module vitals for which maps are kept."""
BEFORE, AFTER = 100, 300
"""Values that a closeup shows before and after the onset of an episode."""
LOOKS = 8
"""Maximum number of closeups per severity."""

OTHER_LOSSES = ("val_", "guess_", "last_position_", "other_position_")
"""Prefixes of vitals whose names end in "loss" but that are not training losses."""

EXTRAORDINARY = 4.0
"""Multiple of the usual distance from a bucket's mean above which a value stands out."""
ROUNDING = 1e-5
"""Relative difference up to which values are drawn as equal."""

Bucket = tuple[int, float, float, float]
"""First step, lowest, mean and highest value."""
Points = tuple[NDArray[np.int64], NDArray[np.float64]]


def main_vitals(names: Iterable[str]) -> dict[str, list[str]]:
    """The most important vitals, by the panel that shows them; if there are none, the first few vitals.

    >>> main_vitals(["step_seconds", "lr", "loss", "val_loss", "guess_loss", "val_accuracy"])
    {'loss': ['loss', 'val_loss'], 'validation': ['val_accuracy'], 'grad_norm': [], 'lr': ['lr'], 'others': []}
    """
    known = list(names)
    losses = [name for name in known if name.endswith("loss") and not name.startswith(OTHER_LOSSES)]
    losses.sort(key=lambda name: name != "loss")
    validated = [name for name in known if name.startswith("val_") and name != "val_loss"]
    metrics = [name for name in validated if not name.endswith("loss")]
    parts = [] if "val_loss" in known else validated
    found = {
        "loss": [*losses[:3], *(name for name in known if name == "val_loss")],
        "validation": (metrics or parts)[:4],
        "grad_norm": [name for name in known if name == "grad_norm"],
        "lr": [name for name in known if name == "lr" or name.startswith("lr/")][:4],
    }
    return found | {"others": [] if any(found.values()) else known[:3]}


def outstanding(buckets: Sequence[Bucket]) -> list[int]:
    """The indexes of buckets in which a value stands out, so that a line of means would hide it.

    >>> noise = [(step, 1.9, 2.0, 2.1) for step in range(9)]
    >>> outstanding([*noise, (9, 1.9, 2.1, 8.0)])
    [9]
    """
    found: set[int] = set()
    for sizes in ([bucket[3] - bucket[2] for bucket in buckets], [bucket[2] - bucket[1] for bucket in buckets]):
        usual = median(sizes) if sizes else 0.0
        for place, size in enumerate(sizes):
            if size > EXTRAORDINARY * usual and size > 0.1 * abs(buckets[place][2]):
                found.add(place)
    return sorted(found)


def is_flat(low: float, high: float) -> bool:
    """Whether values differ by rounding only, so that the plot must not magnify the difference.

    >>> is_flat(0.001, 0.0010000000000000002), is_flat(0.001, 0.0011), is_flat(0.0, 0.0)
    (True, False, True)
    """
    return high - low <= ROUNDING * max(abs(low), abs(high))


class RowMap(NamedTuple):
    """Values by column (pooled sampled steps) and row (tensors or modules); NaN: no value, infinity: not finite."""

    names: tuple[str, ...]
    steps: tuple[int, ...]
    """The first step of each column."""
    values: NDArray[np.float32]


class RowOutline:
    """The rows of a whole run in at most `COLUMNS` columns; merged columns keep the larger value.

    >>> outline = RowOutline()
    >>> for step in range(1000):
    ...     outline.add(step, [1.0, 9.0 if step == 777 else 2.0, None])
    >>> made = outline.map(["a", "b", "c"])
    >>> made.values.shape[0] <= COLUMNS, float(made.values[:, 1].max()), bool(np.isnan(made.values[:, 2]).all())
    (True, 9.0, True)
    """

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, width: int) -> None:
        self._width = width
        self._columns = max(2, min(COLUMNS, CELLS // max(width, 1)) // 2 * 2)
        self._stride, self._count = 1, 0
        self._steps: list[int] = []
        self._rows: list[NDArray[np.float32]] = []

    def add(self, step: int, row: Sequence[float | None]) -> None:
        """Insert the row of one sampled step; a row of another width restarts the map."""
        if len(row) != self._width:
            self._begin(len(row))
        if not row:
            return
        values = np.array(row, dtype=np.float64)
        strange = ~np.isfinite(values)
        values = np.clip(values, -LARGEST, LARGEST)
        if strange.any():
            for place in np.flatnonzero(strange).tolist():
                values[place] = np.nan if row[place] is None else np.inf
        kept = values.astype(np.float32)
        if self._count == 0:
            if len(self._rows) == self._columns:
                self._merge()
            self._steps.append(step)
            self._rows.append(kept)
        else:
            self._rows[-1] = np.fmax(self._rows[-1], kept)
        self._count = (self._count + 1) % self._stride

    def _merge(self) -> None:
        self._rows = [np.fmax(a, b) for a, b in zip(self._rows[::2], self._rows[1::2], strict=True)]
        self._steps = self._steps[::2]
        self._stride *= 2

    def map(self, names: Sequence[str]) -> RowMap | None:
        """The map with named rows; None if nothing was measured or the number of names does not match."""
        if not self._rows or len(names) != self._width:
            return None
        return RowMap(tuple(names), tuple(self._steps), np.stack(self._rows))


class Closeups:
    """The exact values around the onsets of episodes, copied while they are still stored.

    The outline of a long run keeps every extreme, but not the single steps around it.

    >>> series = Series()
    >>> for step in range(2000):
    ...     series.add(step, 1.0)
    >>> looks = Closeups()
    >>> looks.take(Symptom("loss-spike", "LO01", "warning", 0.9, 1990, 1990), {"loss": series})
    >>> [steps.tolist() == list(range(1890, 2000)) for steps, _ in looks.pieces({})["loss"]]
    [True]
    """

    def __init__(self) -> None:
        self._looks: dict[tuple[str, int], dict[str, Points]] = {}
        self._left: dict[str, int] = {}

    def take(self, symptom: Symptom, series: Mapping[str, Series]) -> None:
        """Keep the values around the onset of an episode; a later call adds the values that came since."""
        key = symptom.name, symptom.first_step
        if key not in self._looks:
            left = self._left.get(symptom.severity, LOOKS)
            if left == 0:
                return
            self._left[symptom.severity] = left - 1
        look = self._looks.setdefault(key, {})
        for vital, known in series.items():
            steps, values = known.steps, known.values
            place = int(np.searchsorted(steps, symptom.first_step))
            if place == 0 and vital in look:  # the values around the onset are no longer stored
                continue
            part = slice(max(place - BEFORE, 0), place + AFTER)
            look[vital] = steps[part].copy(), values[part].copy()

    def pieces(self, series: Mapping[str, Series]) -> dict[str, tuple[Points, ...]]:
        """For each vital, the closeups and the latest stored values, as ordered pieces that do not overlap."""
        found: dict[str, list[Points]] = {}
        for look in self._looks.values():
            for vital, points in look.items():
                found.setdefault(vital, []).append(points)
        for vital, known in series.items():
            found.setdefault(vital, []).append((known.steps, known.values))
        return {vital: _joined(parts) for vital, parts in found.items()}


def _joined(parts: Iterable[Points]) -> tuple[Points, ...]:
    pieces: list[Points] = []
    for steps, values in sorted((part for part in parts if part[0].size), key=lambda part: int(part[0][0])):
        if pieces and steps[0] <= pieces[-1][0][-1]:
            steps, values = np.concatenate([pieces[-1][0], steps]), np.concatenate([pieces[-1][1], values])
            steps, places = np.unique(steps, return_index=True)
            pieces[-1] = steps, values[places]
        else:
            pieces.append((steps.copy(), values.copy()))
    return tuple(pieces)
