"""WE02 weight-growth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.symptoms.progress import Progress, is_hurt


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
    Small tensors that begin at zero hardly count in the total.

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

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the total norm with the start and with three quarters of the run."""
        sampled = chart.tensors("weight_norm")
        columns = list(weight_columns(chart.names))
        rows = [(step, row) for step, row in sampled.rows if row.size == len(chart.names)]
        if len(rows) < self.samples or not columns:
            return None
        totals = [math.sqrt(float(np.nansum(np.square(row[columns])))) for _, row in rows]
        border = rows[0][0] + 0.75 * (rows[-1][0] - rows[0][0])
        late = max(index for index, (step, _) in enumerate(rows) if step <= border)
        if not 0 < totals[0] < math.inf or not totals[-1] < math.inf or not totals[late] > 0:
            return None
        whole, lately = totals[-1] / totals[0], totals[-1] / totals[late]
        if not (whole > self.times and lately > (self.still if whole < self.grave else 1.2)):
            return None
        severity: Severity = "warning" if is_hurt(chart) or (whole > self.grave and not _pays(chart)) else "info"
        message = f"the weight norm grew {number_text(whole)} times since step {rows[0][0]}, "
        message += f"and {number_text(lately)} times since step {rows[late][0]}"
        with np.errstate(all="ignore"):
            growth = np.nan_to_num(rows[-1][1][columns] / rows[0][1][columns], posinf=0.0)
        where = tuple(chart.names[columns[int(index)]] for index in np.argsort(-growth)[:4] if growth[index] > 2)
        return self.symptom(chart, severity, message, value=whole, limit=self.times, where=where)


def _pays(chart: Chart) -> bool:
    """Whether the loss is at its best while the weights grow: they are on the way to targets of another size."""
    series = chart["loss"]
    if series.count < 100:
        return False
    progress = Progress.of(series)
    recent = series.last(100)
    return median(recent) <= progress.best + 0.1 * progress.descent and progress.is_learning(float(np.std(recent)))
