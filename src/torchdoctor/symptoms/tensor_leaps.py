"""Which tensors cause a jump of the gradient norm, from the sampled norms of single tensors."""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import TINY


def risen(chart: Chart, most: int = 4) -> tuple[tuple[str, ...], bool]:
    """The tensors whose gradient norm rose most over earlier samples, and whether most tensors rose about as much."""
    sampled = chart.tensors("grad_norm")
    rows = sampled.matrix(9)
    if sampled.step != chart.step or len(rows) < 2 or rows.shape[1] != len(chart.names):
        return (), False
    with np.errstate(all="ignore"):
        logs = np.log(np.where(np.isfinite(rows), rows, np.nan) + TINY)
        earlier = np.sort(logs[:-1], axis=0)  # NaN sorts last
        known = np.isfinite(earlier).sum(axis=0)
        middle = earlier[np.maximum(known - 1, 0) // 2, np.arange(rows.shape[1])]
        rise = np.nan_to_num(logs[-1] - middle, nan=0.0)
    top = float(rise.max(initial=0.0))
    if not top > math.log(2):
        return (), False
    order = [int(index) for index in np.argsort(-rise, kind="stable") if rise[index] > top / 2]
    return tuple(chart.names[index] for index in order[:most]), len(order) > rise.size // 2


def is_local(chart: Chart) -> bool:
    """Whether the norms of single tensors are known at this step, and most of them have not risen."""
    where, widely = risen(chart)
    return bool(where) and not widely


def is_newcomers(chart: Chart, limit: float) -> bool:
    """Whether the norm comes from tensors that had no gradient until now, as when a frozen trunk is unfrozen."""
    sampled = chart.tensors("grad_norm")
    rows = sampled.matrix()
    if sampled.step != chart.step or len(rows) < 4 or bool(np.isfinite(rows[:-1]).all()):
        return False
    known, here = np.isfinite(rows[:-1]).mean(axis=0) > 0.5, np.isfinite(rows[-1])
    row = rows[-1][known & here]
    with np.errstate(over="ignore"):
        return bool((here & ~known).any()) and 0.5 * math.log(float(row @ row) + TINY) < limit
