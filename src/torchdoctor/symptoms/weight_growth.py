"""WE02 weight-growth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.symptoms.progress import SETTLED, Progress, is_hurt


@dataclass(frozen=True)
class WeightGrowth(Detector):
    """The weight norm keeps growing.

    ## What it means
    Each step makes the weights larger. The learning rate is too high, the loss rewards larger outputs without limit
    (separable classes, a missing negative term), or it does not depend on the scale of some layers. In the end
    activations overflow or the softmax saturates.

    ## How it is told apart
    In most healthy runs weights grow fast at first and then ever more slowly. One of these is reported:

    - The total norm is 8 times that of the start and has grown by 50 % or more over the last quarter of the run (by
      20 % if it is 30 times that of the start). It is a warning if the loss suffers, or from 30 times on unless the
      loss is at its best. Otherwise it is info. Small tensors that begin at zero hardly count in the total.
    - A single tensor grew a hundredfold between two samples, and beyond all others together, while these stayed as
      they were. Training does not do that: a bit flipped in memory, or other code wrote to it.
    - Code outside the optimizer multiplies all weights between the first steps.

    ## What to do
    Lower the learning rate. Use decoupled weight decay (AdamW, 0.01 to 0.1) to limit the norm, or normalization layers
    to make it harmless. Check the loss for a term that has no lower bound.

    ## How to see that it is cured
    The total weight norm flattens within a few hundred steps.

    ## Example
    >>> chart = Chart()
    >>> chart.names = ("a.weight", "b.weight")
    >>> for step in range(0, 400, 25):
    ...     chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": [2 ** (step / 100), 1.0]}})
    >>> WeightGrowth().check(chart).message
    'the weight norm grew 9.54 times from step 0 to step 375, and 1.98 times from step 275 to step 375'
    """

    code = "WE02"
    name = "weight-growth"
    reads = ("tensors/weight_norm",)
    suggests = ("scale-lr", "set-weight-decay", "add-normalization")
    references = ("https://arxiv.org/abs/2010.09697",)
    closes_after = 3

    times: float = 8.0
    """Multiple of the initial norm above which this is reported."""
    still: float = 1.5
    """Factor by which the norm must have grown over the last quarter of the run."""
    grave: float = 30.0
    """Multiple of the initial norm above which it is a warning, unless the loss is at its best."""
    samples: int = 8
    """Samples needed."""
    outside: float = 3e-3
    """Relative growth between the first steps, outside the optimizer, above which this is reported."""
    leap: float = 100.0
    """Multiple of its previous norm that a single tensor must reach."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the total norm with that at the start and at three quarters of the run."""
        sampled = chart.tensors("weight_norm")
        columns = list(weight_columns(chart.names))
        rows = [(step, row) for step, row in sampled.rows if row.size == len(chart.names)]
        if leap := lone_leap(chart, times=self.leap):
            message = (
                f"the norm of {leap.name} jumped from {number_text(leap.before)} to {number_text(leap.after)} after "
            )
            message += f"step {leap.step}, while all other weights stayed as they were"
            times = leap.after / leap.before
            return self.symptom(chart, "warning", message, value=times, limit=self.leap, where=(leap.name,))
        if (share := multiplied(chart)) > self.outside:
            message = f"code outside the optimizer makes the weights {share_text(share, 2)} larger between two steps"
            return self.symptom(chart, "warning", message, value=share, limit=self.outside, since=0, confidence=0.9)
        if len(rows) < self.samples or not columns:
            return None
        border = rows[0][0] + 0.75 * (rows[-1][0] - rows[0][0])
        late = max(index for index, (step, _) in enumerate(rows) if step <= border)
        start, before, now = (math.sqrt(float(np.nansum(np.square(rows[at][1][columns])))) for at in (0, late, -1))
        if not 0 < start < math.inf or not now < math.inf or not before > 0:
            return None
        whole, lately = now / start, now / before
        if not (whole > self.times and lately > (self.still if whole < self.grave else 1.2)):
            return None
        severity: Severity = "warning" if is_hurt(chart) or (whole > self.grave and not _pays(chart)) else "info"
        last = rows[-1][0]  # a later sighting may replace the first one, so the message says how far it looked
        message = f"the weight norm grew {number_text(whole)} times from step {rows[0][0]} to step {last}, "
        message += f"and {number_text(lately)} times from step {rows[late][0]} to step {last}"
        with np.errstate(all="ignore"):
            growth = np.nan_to_num(rows[-1][1][columns] / rows[0][1][columns], posinf=0.0)
        where = tuple(chart.names[columns[int(index)]] for index in np.argsort(-growth)[:4] if growth[index] > 2)
        return self.symptom(chart, severity, message, value=whole, limit=self.times, where=where)


def multiplied(chart: Chart, samples: int = 2, rows: int = 5) -> float:
    """The share by which other code enlarges weights after each of the first steps, if they grew since; else 0."""
    scaled, along = chart["outside_scaled"].values[:samples], chart["outside_cosine"].values[:samples]
    norms = [(step, row) for step, row in chart.tensors("weight_norm").rows if row.size]
    if scaled.size < samples or not float(along.min()) > 0.95 or len(norms) < rows or norms[0][0] > samples:
        return 0.0
    share = float(scaled.min())
    start, now = (math.sqrt(float(np.nansum(np.square(norms[at][1])))) for at in (0, -1))
    passed = norms[-1][0] - norms[0][0]
    return share if start > 0 and now > start * (1 + 0.5 * share * min(passed, 100)) else 0.0


class Leap(NamedTuple):
    """One tensor that is far larger than at the sample before, unlike all others."""

    step: int
    """The sample before."""
    name: str
    before: float
    after: float


def lone_leap(chart: Chart, back: int = 1, times: float = 100.0) -> Leap | None:
    """A tensor whose norm jumped at one of the latest samples while all others stayed as they were.

    A step that is too large changes many tensors; a change to only one does not come from a step.
    """
    sampled = chart.tensors("weight_norm")
    rows = [(step, row) for step, row in sampled.rows if row.size == len(chart.names)]
    for (earlier, before), (_, row) in list(pairwise(rows))[-back:]:
        with np.errstate(all="ignore"):
            grown = np.where((before > 0) & np.isfinite(row / before), row / before, 0.0)
            # a norm that overflows while loss and gradients are finite comes from one huge weight
            if not (chart["loss"].nonfinite or chart["grad_norm"].nonfinite):
                grown = np.where((before > 0) & np.isinf(row), math.inf, grown)
            elif np.isinf(row).any():
                continue  # the run broke before: the others are not finite either
            whole = math.sqrt(float(np.nansum(np.square(before))))  # a tensor near zero may grow freely
        grown = np.where((row > 0.01 * whole) | ~np.isfinite(row), grown, 1.0)  # a bias near zero grows at any step
        order = np.argsort(grown)
        place = int(order[-1])
        if grown[place] > times and row[place] > 3 * whole and grown.size > 2 and grown[order[-2]] < 3:
            return Leap(earlier, chart.names[place], float(before[place]), float(row[place]))
    return None


def total_growth(chart: Chart) -> float:
    """Factor by which the norm of all weights has grown since the first sample kept; 1.0 if unknown."""
    rows = chart.tensors("weight_norm").matrix()
    if not len(rows):
        return 1.0
    with np.errstate(all="ignore"):
        first, last = np.sqrt(np.nansum(np.square(rows[[0, -1]]), axis=1))
        return float(last / first) if first > 0 else 1.0


def _pays(chart: Chart) -> bool:
    """Whether the loss is at its best while the weights grow: large targets need large weights."""
    series = chart["loss"]
    if series.count < SETTLED:
        return False
    progress = Progress.of(series)
    recent = series.last(min(100, series.count // 4 if series.count >= 100 else 8))  # a young loss falls fast
    return median(recent) <= progress.best + 0.1 * progress.descent and progress.is_learning(float(np.std(recent)))
