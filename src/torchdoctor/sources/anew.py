"""Whether training begins anew where a count of steps or epochs does: then it is another run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.columns import Column
from torchdoctor.sources.words import is_measure, taken_apart, words_of

MOSTLY = 0.8
"""Share of the beginnings at which the loss must be nearer to its last value for a run to go on."""
FALLEN = 0.7
"""Share of its initial value that the loss must fall below before a new beginning counts as another run."""
EACH = 3
"""Average rows per part that a log needs, if its epochs go back because training began again."""


def loss_of(columns: Mapping[str, Column]) -> Column | None:
    """The training loss that is given most often."""
    losses = [found for name, found in columns.items() if _is_trained(name)]
    return max(losses, key=lambda found: len(found.rows), default=None)


@lru_cache(maxsize=4096)
def _is_trained(name: str) -> bool:
    part = taken_apart(name, 0)
    return part.is_loss and part.split in ("", "train")


def is_trained_anew(columns: Mapping[str, Column], count: Column) -> bool:
    """Whether training starts again wherever its count does: each part's loss begins well above where all parts end.

    >>> rows, falling = np.arange(9), np.array([6.9, 3.5, 2.5])
    >>> count = Column(rows, np.tile([0.0, 500.0, 1000.0], 3))
    >>> is_trained_anew({"loss": Column(rows, np.tile(falling, 3))}, count)
    True
    >>> is_trained_anew({"loss": Column(rows, np.linspace(6.9, 2.5, 9))}, count)
    False
    """
    loss = loss_of(columns)
    if loss is None:
        return False
    borders = np.searchsorted(loss.rows, count.rows[np.flatnonzero(np.diff(count.values) < 0) + 1])
    parts = [part for part in np.split(loss.values, borders) if len(part)]
    return bool(max(part[-1] for part in parts) < FALLEN * min(part[0] for part in parts))


def begun_again(epochs: NDArray[np.float64]) -> int:
    """Epochs that repeat because training began again: one script that trains several models.

    >>> begun_again(np.array([1.0, 2, 3, 1, 2, 3])), begun_again(np.array([1.0, 1, 2, 2]))
    (3, 0)
    """
    falls = np.flatnonzero(np.diff(epochs) < 0) + 1
    if not len(beginnings(epochs)) or len(falls) * EACH > len(epochs):
        return 0
    passes = np.split(epochs, falls)
    return sum(len(np.unique(each)) for each in passes) - len(np.unique(epochs))


def beginnings(epochs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Where epochs start over: at 0 or 1, or at their first number."""
    first = max(float(epochs[0]), float(epochs.min()) + 1.0)
    return np.flatnonzero((np.diff(epochs) < 0) & (epochs[1:] <= first)).astype(np.int64) + 1


def goes_on(columns: Mapping[str, Column], borders: NDArray[np.int64]) -> bool:
    """Whether a run continues where its count starts over: the loss is closer to its last value than to its first.

    >>> rows, epochs = np.arange(9), np.tile([1.0, 2.0, 3.0], 3)
    >>> goes_on({"loss": Column(rows, 9.0 - rows)}, beginnings(epochs))
    True
    >>> goes_on({"loss": Column(rows, 4.0 - epochs)}, beginnings(epochs))
    False
    """
    losses = [found for name, found in columns.items() if is_measure(name) and "loss" in words_of(name)]
    loss = max(losses, key=lambda found: len(found.rows), default=None)
    if loss is None:
        return False
    passes = [part for part in np.split(loss.values, np.searchsorted(loss.rows, borders)) if len(part)]
    kept = [
        later[0] < (earlier[0] + earlier[-1]) / 2
        for earlier, later in zip(passes, passes[1:], strict=False)
        if earlier[-1] < earlier[0]
    ]
    return bool(kept) and bool(sum(kept) > MOSTLY * len(kept))
