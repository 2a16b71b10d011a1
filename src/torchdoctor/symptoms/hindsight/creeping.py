"""Noisy batches that end high: what single records hide, the medians of parts of the run show."""

from __future__ import annotations

import numpy as np

from torchdoctor.series import median
from torchdoctor.symptoms.hindsight.curve import Curve

FEW = 8
"""Batches in a part that tell its level."""
FINE, SETTLED = 24, 4
"""Parts in which a departure is looked for; and those after which it is known how they are wont to be."""


def ends_high(curve: Curve) -> bool:
    """Whether noisy batches, looked at in parts, end at twice what they began with, or leapt and are not quite back.

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
    before = float(parts[: leapt[0]].max())  # for a good while, and never quite back
    return bool((parts[leapt[0] : leapt[0] + 3] > 1.5 * before).all()) and leapt[0] + 3 <= FINE
