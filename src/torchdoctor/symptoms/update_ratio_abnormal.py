"""OP01 update-ratio-abnormal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.symptoms.not_learning import loss_scale
from torchdoctor.symptoms.progress import gets_better, goes_straight, working_since


@dataclass(frozen=True)
class UpdateRatioAbnormal(Detector):
    """Weights move by far too much, or by next to nothing, of themselves at each step.

    ## What it means
    A useful step moves a weight matrix by about a thousandth of its size; a tenth at each step means that nothing
    learnt survives ten steps, a ten-millionth is less than a 32-bit number can hold.

    ## How it is told apart
    Biases, gains, embeddings and weights that begin at zero have huge ratios for good reasons, and so has everything in
    the first steps of Adam: the median over the weight matrices must be off, at several samples in a row. A large
    ratio is a warning only while the loss does not get better; weights that are replaced rather than moved, with a loss
    ten times the first, are one at once, and so are outputs that have grown a hundredfold with them. Ratios that sink
    as the loss converges or as the schedule ends are healthy: a small one must have been small from the start, at full
    learning rate; where the loss is a thousandth of what its function returns, it need not be quite as small. Steps
    that become ten times as short at once, while the rate stays and the way is straight, were cut by something else.

    ## What to do
    Too large: a tenth of the learning rate. Too small: ten times the rate; look for a loss that is divided twice, for
    an `eps` far above the gradients, and for clipping that cuts each step to nothing.

    ## How to see that it is cured
    `update_ratio` between 1e-4 and 1e-2 for the weight matrices.

    ## Example
    >>> chart = Chart.of(loss=[2.3] * 200)
    >>> chart.names = ("a.weight", "b.weight")
    >>> for step in (0, 50, 100, 150, 199):
    ...     chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [0.4, 0.3]}})
    >>> UpdateRatioAbnormal().check(chart).message
    'weights move by 0.35 of themselves a step'
    """

    code = "OP01"
    name = "update-ratio-abnormal"
    reads = ("tensors/update_ratio",)
    suggests = ("scale-lr", "restart-warmup")
    references = ("https://cs231n.github.io/neural-networks-3/#ratio", "https://arxiv.org/abs/2203.03466")
    closes_after = 2

    high: float = 0.1
    """Median ratio that is too large."""
    low: float = 1e-7
    """Median ratio that is too small."""
    samples: int = 4
    """Samples in a row that must show it."""
    after: int = 20
    """Steps at the start that are not judged, unless they tear everything down."""
    divided: float = 5e-3
    """Share of what the loss function returns that the loss is, under which somebody has divided it,"""
    hardly: float = 2e-5
    """and median ratio under which weights hardly move for it."""
    usual: float = 2e-3
    """and median ratio under which they may, where they go straight on for a hundred steps."""
    shorter: float = 8.0
    """Times by which steps become shorter, at the same rate, that no loss that falls explains at once."""
    thrown: float = 5.0
    """Median ratio at one of the first samples at which weights are thrown away, where outputs grow a hundredfold"""
    early: int = 100
    """and it is found within so many steps."""
    replaced: float = 1.0
    """Median ratio at which nothing of the weights is left after a step."""

    def check(self, chart: Chart) -> Symptom | None:
        """The median over the weight matrices, at the last samples."""
        sampled = chart.tensors("update_ratio")
        columns = list(weight_columns(chart.names))
        first = sampled.rows[0][0] if sampled else 0
        rows = [row for step, row in sampled.rows if step - first >= self.after and row.size == len(chart.names)]
        if not columns:
            return None
        if (
            torn := self._torn(
                chart, [_median(row[columns]) for _, row in list(sampled.rows)[-2:] if row.size == len(chart.names)]
            )
        ) is not None:
            return torn
        if (found := self._thrown(chart) or self._divided(chart) or self._shortened(chart)) is not None:
            return found
        if len(rows) < self.samples:
            return None
        medians = np.array([_median(row[columns]) for row in rows])
        recent = medians[-self.samples :]
        ratio = median(recent)
        message = f"weights move by {number_text(ratio)} of themselves a step"
        since = sampled.rows[-self.samples][0]
        if float(recent.min()) > self.high:
            severity: Severity = "info" if gets_better(chart) else "warning"
            row = rows[-1][columns]
            order = np.argsort(-np.nan_to_num(row))[:4]
            where = tuple(chart.names[columns[int(index)]] for index in order)
            return self.symptom(chart, severity, message, value=ratio, limit=self.high, where=where, since=since)
        rates = chart["lr"]
        full = not rates or rates.latest > 0.3 * rates.outline.highest
        always = len(sampled.rows) < (sampled.rows.maxlen or 0) and 0 < float(medians.max()) < self.low
        if full and always:
            return self.symptom(chart, "warning", message, value=ratio, limit=self.low, since=first)
        return None

    def _torn(self, chart: Chart, medians: list[float]) -> Symptom | None:
        """Weights that were replaced rather than moved, twice in a row, and a loss that went up by a power of ten."""
        loss = chart["loss"]
        if len(medians) < 2 or not min(medians) > self.replaced or not loss.latest > 10 * abs(loss.first):
            return None
        message = f"weights move by {number_text(min(medians))} of themselves a step, and the loss went from "
        message += f"{number_text(loss.first)} to {number_text(loss.latest)}"
        return self.symptom(chart, "warning", message, value=min(medians), limit=self.replaced)

    def _thrown(self, chart: Chart) -> Symptom | None:
        """Weights that one of the first steps threw away, so that outputs grew and the loss is not better."""
        loss, sizes = chart["loss"], chart["output_rms"]
        if not 2 * self.samples <= loss.count <= self.early or not sizes.latest > 100 * sizes.first > 0:
            return None
        columns = list(weight_columns(chart.names))
        rows = [row for _, row in list(chart.tensors("update_ratio").rows)[:3] if row.size == len(chart.names)]
        leap = max((_median(row[columns]) for row in rows), default=0.0)
        level = median(loss.last(2 * self.samples))
        if not leap > self.thrown or not level > 0.1 * loss.first > 0:
            return None
        if level < 0.95 * loss.first and float(loss.values.max()) < 1.5 * loss.first:
            return None  # it falls, and never rose: targets ask for outputs of that size
        message = f"the first steps moved weights by {number_text(leap)} times themselves, and outputs grew from "
        message += f"{number_text(sizes.first)} to {number_text(sizes.latest)}"
        return self.symptom(chart, "warning", message, value=leap, limit=self.thrown, since=0)

    def _is_divided_for_nothing(self, chart: Chart) -> bool:
        """Whether one backward pass makes a step, weights go straight on, and the loss has not come far for it."""
        losses, passes = chart["loss"], chart.fact("zeroing.backwards") or (1,)
        held = losses.count >= self.early and losses.baseline(128).recent > 0.25 * abs(losses.first)
        return held and max(passes) <= 1 and goes_straight(chart)

    def _shortened(self, chart: Chart) -> Symptom | None:
        """Steps that became many times as short from one sample to the next, at the same rate, on a straight way."""
        loss, rates = chart["loss"], chart["lr"]
        few = self.samples
        rows = [(step, row) for step, row in chart.tensors("update_ratio").rows if row.size == len(chart.names)]
        if len(rows) < 2 * few or not goes_straight(chart, few - 1) or not rates.latest > 0.5 * rates.outline.highest:
            return None
        # Layers that join later, at a rate of their own, shorten nobody's steps.
        columns = [column for column in weight_columns(chart.names) if rows[few][1][column] > 0]
        medians = np.array([_median(row[columns]) for _, row in rows])
        falls = medians[few:-2] / np.maximum(medians[few + 1 : -1], 1e-30)
        place = few + 1 + int(np.argmax(falls)) if falls.size else 0
        before, after = float(medians[few:place].min(initial=np.inf)), float(medians[place:].max())
        if not place or not 0 < self.shorter * after < before or not loss.baseline(128).recent > 0.2 * loss.first > 0:
            return None
        message = f"steps became {before / after:.0f} times as short at step {rows[place][0]}, at the same learning "
        message += f"rate: weights move by {number_text(after)} of themselves"
        return self.symptom(chart, "warning", message, value=after, limit=before, since=rows[place][0])

    def _divided(self, chart: Chart) -> Symptom | None:
        """A loss that was divided by thousands, and weights that hardly move for it: known from the first samples."""
        scale = loss_scale(chart)
        sampled = [row for _, row in chart.tensors("update_ratio").rows if row.size == len(chart.names)]
        if not scale < self.divided or len(sampled) < self.samples or working_since(chart) is None:
            return None
        ratio = max(_median(row[list(weight_columns(chart.names))]) for row in sampled[-self.samples :])
        if not 0 < ratio < self.hardly and not (ratio < self.usual and self._is_divided_for_nothing(chart)):
            return None
        message = f"weights move by {number_text(ratio)} of themselves a step: the loss is {number_text(scale)} of what"
        return self.symptom(
            chart, "warning", f"{message} its function returns", value=ratio, limit=self.hardly, since=0
        )


def _median(row: Array) -> float:
    known = row[np.isfinite(row)]
    return median(known) if known.size else float("nan")
