"""Reads the curve of a range test: loss over learning rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.series import Array

WINDOW = 0.25
"""Width of the smoothing window, in powers of ten of the learning rate."""


@dataclass(frozen=True)
class Curve:
    """The smoothed curve and the learning rates read from it."""

    smoothed: Array
    steepest: float | None = None
    suggestion: float | None = None
    maximum: float | None = None


def read_curve(lrs: Array, losses: Array) -> Curve:
    """The learning rates read from a curve; none if the loss does not fall by more than its noise.

    >>> lrs = np.geomspace(1e-5, 1, 100)
    >>> curve = read_curve(lrs, 2 - 1 / (1 + (1e-2 / lrs)) + 5 * lrs)
    >>> f"{curve.steepest:.0e} {curve.maximum:.0e}"
    '8e-03 3e-02'
    >>> read_curve(lrs, np.full(100, 2.0)).suggestion is None
    True
    """
    known = np.isfinite(losses)
    count = int(known.argmin()) if not known.all() else len(losses)
    if count < 5:
        return Curve(losses[:count])
    places = np.log10(lrs[:count])
    smooth = smoothed(losses[:count], places)
    level = float(np.median(smooth[: max(3, count // 10)]))
    low = int(np.argmin(smooth))
    noise = float(np.median(np.abs(np.diff(losses[:count], 2))))
    if not level - smooth[low] > max(3 * noise, 1e-3 * abs(level), 1e-12):
        return Curve(smooth)
    slope = np.gradient(smooth, places)
    steepest = int(np.argmin(slope[: low + 1]))
    return Curve(smooth, float(lrs[steepest]), float(lrs[steepest]), float(lrs[low]))


def smoothed(values: Array, places: Array) -> Array:
    """A centered mean over a quarter of a decade, after a median filter; unlike a running mean it does not lag."""
    padded = np.pad(values, 1, mode="edge")
    calm = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    spread = places[1] - places[0] if len(places) > 1 else 1.0
    reach = max(1, round(WINDOW / spread / 2))
    weights = np.concatenate([np.arange(1, reach + 1), [reach + 1], np.arange(reach, 0, -1)]).astype(np.float64)
    ends = np.pad(calm, reach, mode="edge")
    return np.convolve(ends, weights / weights.sum(), mode="valid")
