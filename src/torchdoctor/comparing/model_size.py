"""Double descent: validation gets worse and then better again as models grow or training goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.comparing.design import Design
from torchdoctor.comparing.learning_rate import median, noise_of
from torchdoctor.comparing.outcome import Outcome
from torchdoctor.comparing.summary import Floats, Summary

FEWEST = 5
NAMES = ("parameters", "width", "hidden_size", "hidden_dim", "n_embd", "d_model", "depth", "layers", "n_layer")
"""Settings that measure a model's size, the most reliable first."""
HUMP = 0.05
"""If no run was repeated, the rise and the fall must each exceed this share of the loss."""


@dataclass(frozen=True)
class Sizes:
    """Validation at the end of training, by model size."""

    setting: str
    points: tuple[tuple[float, int, float], ...]
    """(size, runs, median of the metric at the end)."""
    descends_twice: bool
    bottom: float
    peak: float
    """The sizes at the first minimum and at the peak; NaN if there is no second descent."""
    best: float
    """The size with the best value."""
    noise_known: bool


@dataclass(frozen=True)
class Descent:
    """Double descent over model size and over epochs."""

    sizes: Sizes | None
    epochs: tuple[str, ...]
    """Runs whose own validation loss fell, rose, and then fell to a new low."""


def descent(
    summaries: Sequence[Summary], outcomes: Sequence[Outcome], design: Design, lower: bool, spread: float
) -> Descent:
    """Look for double descent over model size and over epochs."""
    epochs = tuple(item.run for item in summaries if any(found.name == "double-descent" for found in item.findings))
    return Descent(_over_sizes(outcomes, design, lower, spread), epochs)


def _over_sizes(outcomes: Sequence[Outcome], design: Design, lower: bool, spread: float) -> Sizes | None:
    factor = next((item for name in NAMES if (item := design.factor(name)) is not None), None)
    if factor is None or factor.values is None or factor.parted or len(factor.labels) < FEWEST:
        return None
    finals = np.array([math.nan if item.diverged else item.final for item in outcomes])
    strata = design.strata(factor)
    counts = [len(np.unique(factor.values[(strata == stratum) & np.isfinite(finals)])) for stratum in np.unique(strata)]
    own = (strata == int(np.argmax(counts))) & np.isfinite(finals)
    sizes = np.unique(factor.values[own])
    if len(sizes) < FEWEST:
        return None
    values = np.array([median(finals[own & (factor.values == size)]) for size in sizes])
    found = double_descent(values if lower else -values, _bar(values, spread))
    return Sizes(
        setting=next(name for name in NAMES if factor.means(name)),
        points=tuple(
            (float(size), int((own & (factor.values == size)).sum()), float(value))
            for size, value in zip(sizes, values, strict=True)
        ),
        descends_twice=found is not None,
        bottom=math.nan if found is None else float(sizes[found[0]]),
        peak=math.nan if found is None else float(sizes[found[1]]),
        best=float(sizes[int(np.argmin(values if lower else -values))]),
        noise_known=not math.isnan(spread),
    )


def _bar(values: Floats, spread: float) -> float:
    """How high the peak must be; `spread` is relative, because costs are logarithms."""
    level = abs(float(np.median(values)))
    return HUMP * level if math.isnan(spread) else max(noise_of(spread) * level, 0.01 * level)


def double_descent(values: Floats, bar: float) -> tuple[int, int] | None:
    """The places of the first minimum and of the peak, if values then fall below the first minimum; else None.

    >>> double_descent(np.array([3.0, 2.0, 1.5, 2.2, 2.6, 1.8, 1.2]), 0.1)
    (2, 4)
    >>> double_descent(np.array([3.0, 2.0, 1.5, 1.4, 1.45, 1.3, 1.2]), 0.1)
    """
    best: tuple[float, int, int] | None = None
    for peak in range(1, len(values) - 1):
        before = int(np.argmin(values[:peak]))
        after = float(values[peak + 1 :].min())
        rise = min(values[peak] - values[before], values[peak] - after)
        if before > 0 and rise > bar and after < values[before] and (best is None or rise > best[0]):
            best = (float(rise), before, peak)
    return None if best is None else best[1:]
