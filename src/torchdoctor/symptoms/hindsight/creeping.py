"""Noisy batch losses that end high: medians over parts of the run show what single records hide."""

from __future__ import annotations

import numpy as np

from torchdoctor.series import median
from torchdoctor.symptoms.hindsight.curve import Curve

FEW = 8
"""Batch losses that a part needs for its median."""
FINE, SETTLED = 24, 4
"""Number of parts that the run is divided into, and parts needed before a jump is looked for."""


def ends_high(curve: Curve) -> bool:
    """Whether the medians of parts end far above the first ones, or jumped, stayed up and did not fully come back.

    >>> wave = np.tile([0.5, 1.5, 1.0, 1.2], 60)
    >>> [ends_high(Curve("loss", np.arange(240), wave * level)) for level in (1, np.repeat([5, 6, 20, 5, 15, 16], 40))]
    [False, True]
    """
    if curve.values.size < FINE * FEW or not float(curve.values.min()) > 0:
        return False
    parts = np.array([median(part) for part in np.array_split(curve.values, FINE)])
    begun, held = median(parts[:3]), float(np.percentile(parts, 25))
    if float(parts[-3:].min()) > 1.5 * begun and float(parts[-2:].min()) > 2 * max(held, begun):
        return True
    high = parts > 1.8 * np.concatenate([[np.inf] * SETTLED, np.maximum.accumulate(parts)[SETTLED - 1 : -1]])
    leapt = np.flatnonzero(high)
    if not leapt.size or float(parts[-2:].min()) < 1.3 * float(parts.min()):
        return False
    before = float(parts[: leapt[0]].max())  # it stays up for at least three parts
    return bool((parts[leapt[0] : leapt[0] + 3] > 1.5 * before).all()) and leapt[0] + 3 <= FINE
