"""WE02 weight-growth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.symptoms.progress import SETTLED, Progress, is_hurt


@dataclass(frozen=True)
class WeightGrowth(Detector):
    """The weights grow without end.

    ## What it means
    Each step adds to them more than anything takes away: a learning rate that is too high, a loss that pays for larger
    outputs without limit (separable classes, a missing negative term), or layers whose scale the loss does not feel.
    Before long activations overflow, or softmax saturates.

    ## How it is told apart
    Weights grow in most healthy runs, quickly at first and ever more slowly. The total norm must be eight times that
    of the start and still have grown by half over the last quarter of the run; where it is thirty times, by a fifth.
    Small tensors that begin at zero hardly count in the total. A single tensor that is a hundred times larger than at
    the sample before, and than all together were, while the others are as they were, was not trained there: a bit
    flipped in memory, or something else wrote to it. Layers that are reset are a few times larger at the most.

    ## What to do
    Lower the learning rate; decoupled weight decay (AdamW, 0.01 to 0.1) holds a scale; normalization makes the
    scale harmless. Look at the loss for a term that has no lower bound.

    ## How to see that it is cured
    The total weight norm flattens within a few hundred steps.

    ## Example
    >>> chart = Chart()
    >>> chart.names = ("a.weight", "b.weight")
    >>> for step in range(0, 400, 25):
    ...     chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": [2 ** (step / 100), 1.0]}})
    >>> WeightGrowth().check(chart).message
    'the weight norm grew 9.54 times since step 0, and 1.98 times since step 275'
    """

    code = "WE02"
    name = "weight-growth"
    reads = ("tensors/weight_norm",)
    suggests = ("scale-lr", "set-weight-decay", "add-normalization")
    references = ("https://arxiv.org/abs/2010.09697",)
    closes_after = 3

    times: float = 8.0
    """Times the norm of the start."""
    still: float = 1.5
    """Times that it must have grown over the last quarter of the run."""
    grave: float = 30.0
    """Times the norm of the start that are a warning unless the loss is at its best; before, it must be in trouble."""
    samples: int = 8
    """Samples that must be known."""
    outside: float = 3e-3
    """Share of themselves by which weights are made larger between the first steps, and go on growing."""
    leap: float = 100.0
    """Times its norm at the sample before that a single tensor must reach."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the total norm with the start and with three quarters of the run."""
        sampled = chart.tensors("weight_norm")
        columns = list(weight_columns(chart.names))
        rows = [(step, row) for step, row in sampled.rows if row.size == len(chart.names)]
        if leap := lone_leap(chart, times=self.leap):
            message = (
                f"the norm of {leap.name} went from {number_text(leap.before)} to {number_text(leap.after)} after "
            )
            message += f"step {leap.step}, and no other weight moved so"
            times = leap.after / leap.before
            return self.symptom(chart, "warning", message, value=times, limit=self.leap, where=(leap.name,))
        if (share := multiplied(chart)) > self.outside:
            message = f"something else than the optimizer makes weights {share:.2%} larger between two steps"
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
        message = f"the weight norm grew {number_text(whole)} times since step {rows[0][0]}, "
        message += f"and {number_text(lately)} times since step {rows[late][0]}"
        with np.errstate(all="ignore"):
            growth = np.nan_to_num(rows[-1][1][columns] / rows[0][1][columns], posinf=0.0)
        where = tuple(chart.names[columns[int(index)]] for index in np.argsort(-growth)[:4] if growth[index] > 2)
        return self.symptom(chart, severity, message, value=whole, limit=self.times, where=where)


def multiplied(chart: Chart, samples: int = 2, rows: int = 5) -> float:
    """The share by which weights are made larger after each of the first steps, where they grew by it since; or 0."""
    scaled, along = chart["outside_scaled"].values[:samples], chart["outside_cosine"].values[:samples]
    norms = [(step, row) for step, row in chart.tensors("weight_norm").rows if row.size]
    if scaled.size < samples or not float(along.min()) > 0.95 or len(norms) < rows or norms[0][0] > samples:
        return 0.0
    share = float(scaled.min())
    start, now = (math.sqrt(float(np.nansum(np.square(norms[at][1])))) for at in (0, -1))
    passed = norms[-1][0] - norms[0][0]
    return share if start > 0 and now > start * (1 + 0.5 * share * min(passed, 100)) else 0.0


class Leap(NamedTuple):
    """One tensor that is far larger than at the sample before, alone."""

    step: int
    """The sample before."""
    name: str
    before: float
    after: float


def lone_leap(chart: Chart, back: int = 1, times: float = 100.0) -> Leap | None:
    """A weight that leapt at one of the latest samples while all others stayed as they were.

    Steps that are too large move many tensors; what writes to one alone is no step.
    """
    sampled = chart.tensors("weight_norm")
    rows = [(step, row) for step, row in sampled.rows if row.size == len(chart.names)]
    for (earlier, before), (_, row) in list(pairwise(rows))[-back:]:
        with np.errstate(all="ignore"):
            grown = np.where((before > 0) & np.isfinite(row / before), row / before, 0.0)
            # a norm that overflows while all losses and gradients are numbers is that of one huge weight
            if not (chart["loss"].nonfinite or chart["grad_norm"].nonfinite):
                grown = np.where((before > 0) & np.isinf(row), math.inf, grown)
            elif np.isinf(row).any():
                continue  # others are no numbers any more: what is left of a run that broke is not alone
            whole = math.sqrt(float(np.nansum(np.square(before))))  # what begins near zero may grow as it likes
        grown = np.where((row > 0.01 * whole) | ~np.isfinite(row), grown, 1.0)  # a bias near zero grows at any step
        order = np.argsort(grown)
        place = int(order[-1])
        if grown[place] > times and row[place] > 3 * whole and grown.size > 2 and grown[order[-2]] < 3:
            return Leap(earlier, chart.names[place], float(before[place]), float(row[place]))
    return None


def total_growth(chart: Chart) -> float:
    """Times by which the norm of all weights has grown since the first sample that is kept; 1.0 where unknown."""
    rows = chart.tensors("weight_norm").matrix()
    if not len(rows):
        return 1.0
    with np.errstate(all="ignore"):
        first, last = np.sqrt(np.nansum(np.square(rows[[0, -1]]), axis=1))
        return float(last / first) if first > 0 else 1.0


def _pays(chart: Chart) -> bool:
    """Whether the loss is at its best while the weights grow: they are on the way to targets of another size."""
    series = chart["loss"]
    if series.count < SETTLED:
        return False
    progress = Progress.of(series)
    recent = series.last(min(100, series.count // 4 if series.count >= 100 else 8))  # a young loss falls fast
    return median(recent) <= progress.best + 0.1 * progress.descent and progress.is_learning(float(np.std(recent)))
