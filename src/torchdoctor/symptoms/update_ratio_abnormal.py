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
    """The optimizer's updates are far too large, or far too small, compared with the weights.

    ## What it means
    The update ratio is ‖Δw‖/‖w‖. A useful step changes a weight matrix by about 1e-3 of its norm. At 0.1, what was
    learned is lost within ten steps. At 1e-7, the change is less than float32 can represent.

    ## How it is told apart
    Biases, gains, embeddings, weights that begin at zero, and the first steps of Adam have large ratios for good
    reasons. Therefore the median over the weight matrices must be abnormal, at several samples in a row:

    - Too large: a warning if the loss does not improve, otherwise info. It is a warning at once if updates are larger
      than the weights and the loss is ten times the first, or if the outputs grew a hundredfold in the first steps.
    - Too small: a warning if it was small from the start, at full learning rate. A ratio that falls as the loss
      converges or the schedule ends is healthy. The limit is less strict if the loss is divided by 200 or more.
    - Suddenly an eighth or less, although the learning rate stays and updates still point the same way: something
      else cuts the updates.

    ## What to do
    Too large: divide the learning rate by 10. Too small: multiply it by 10, and look for a loss that is divided twice,
    an optimizer `eps` far above the gradients, and clipping that cuts each step to almost nothing.

    ## How to see that it is cured
    `update_ratio` between 1e-4 and 1e-2 for the weight matrices.

    ## Example
    >>> chart = Chart.of(loss=[2.3] * 200)
    >>> chart.names = ("a.weight", "b.weight")
    >>> for step in (0, 50, 100, 150, 199):
    ...     chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [0.4, 0.3]}})
    >>> UpdateRatioAbnormal().check(chart).message
    'each update changes the weights by 0.35 of their norm'
    """

    code = "OP01"
    name = "update-ratio-abnormal"
    reads = ("tensors/update_ratio",)
    suggests = ("scale-lr", "restart-warmup")
    references = ("https://cs231n.github.io/neural-networks-3/#ratio", "https://arxiv.org/abs/2203.03466")
    closes_after = 2

    high: float = 0.1
    """Median ratio above which updates are too large."""
    low: float = 1e-7
    """Median ratio below which updates are too small."""
    samples: int = 4
    """Samples in a row that must show it."""
    after: int = 20
    """Steps at the start that are not judged, unless they destroy the weights."""
    divided: float = 5e-3
    """Share of the loss function's value below which the loss counts as divided by somebody,"""
    hardly: float = 2e-5
    """and median ratio below which the updates are then too small,"""
    usual: float = 2e-3
    """or this one, if updates point the same way for a hundred steps."""
    shorter: float = 8.0
    """Factor by which updates shrink at once, at the same learning rate, that a falling loss cannot explain."""
    thrown: float = 5.0
    """Median ratio at one of the first samples that destroys the weights, if outputs grow a hundredfold,"""
    early: int = 100
    """and that is found within this many steps."""
    replaced: float = 1.0
    """Median ratio above which an update replaces the weights."""

    def check(self, chart: Chart) -> Symptom | None:
        """Judge the median over the weight matrices, at the last samples."""
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
        message = f"each update changes the weights by {number_text(ratio)} of their norm"
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
        """Updates larger than the weights, twice in a row, and a loss that is more than ten times the first."""
        loss = chart["loss"]
        if len(medians) < 2 or not min(medians) > self.replaced or not loss.latest > 10 * abs(loss.first):
            return None
        message = f"each update changes the weights by {number_text(min(medians))} of their norm; the loss went from "
        message += f"{number_text(loss.first)} to {number_text(loss.latest)}"
        return self.symptom(chart, "warning", message, value=min(medians), limit=self.replaced)

    def _thrown(self, chart: Chart) -> Symptom | None:
        """One of the first updates was far larger than the weights, outputs grew, and the loss is no better."""
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
            return None  # it falls, and never rose: targets need outputs of that size
        message = f"one of the first updates was {number_text(leap)} times the weights' norm, and outputs grew from "
        message += f"{number_text(sizes.first)} to {number_text(sizes.latest)}"
        return self.symptom(chart, "warning", message, value=leap, limit=self.thrown, since=0)

    def _is_divided_for_nothing(self, chart: Chart) -> bool:
        """Whether each step has one backward pass, updates point the same way, and the loss still fell little."""
        losses, passes = chart["loss"], chart.fact("zeroing.backwards") or (1,)
        held = losses.count >= self.early and losses.baseline(128).recent > 0.25 * abs(losses.first)
        return held and max(passes) <= 1 and goes_straight(chart)

    def _shortened(self, chart: Chart) -> Symptom | None:
        """Updates that shrank at once, at the same learning rate, while they still point the same way."""
        loss, rates = chart["loss"], chart["lr"]
        few = self.samples
        rows = [(step, row) for step, row in chart.tensors("update_ratio").rows if row.size == len(chart.names)]
        if len(rows) < 2 * few or not goes_straight(chart, few - 1) or not rates.latest > 0.5 * rates.outline.highest:
            return None
        # Layers that join later with a learning rate of their own do not make the other updates smaller.
        columns = [column for column in weight_columns(chart.names) if rows[few][1][column] > 0]
        medians = np.array([_median(row[columns]) for _, row in rows])
        falls = medians[few:-2] / np.maximum(medians[few + 1 : -1], 1e-30)
        place = few + 1 + int(np.argmax(falls)) if falls.size else 0
        before, after = float(medians[few:place].min(initial=np.inf)), float(medians[place:].max())
        if not place or not 0 < self.shorter * after < before or not loss.baseline(128).recent > 0.2 * loss.first > 0:
            return None
        message = f"updates became {before / after:.0f} times smaller at step {rows[place][0]}, at the same learning "
        message += f"rate: each now changes the weights by {number_text(after)} of their norm"
        return self.symptom(chart, "warning", message, value=after, limit=before, since=rows[place][0])

    def _divided(self, chart: Chart) -> Symptom | None:
        """A loss divided by a large number, and tiny updates because of it: visible from the first samples on."""
        scale = loss_scale(chart)
        sampled = [row for _, row in chart.tensors("update_ratio").rows if row.size == len(chart.names)]
        if not scale < self.divided or len(sampled) < self.samples or working_since(chart) is None:
            return None
        ratio = max(_median(row[list(weight_columns(chart.names))]) for row in sampled[-self.samples :])
        if not 0 < ratio < self.hardly and not (ratio < self.usual and self._is_divided_for_nothing(chart)):
            return None
        message = (
            f"each update changes the weights by {number_text(ratio)} of their norm: the loss is {number_text(scale)}"
        )
        return self.symptom(
            chart, "warning", f"{message} of the loss function's value", value=ratio, limit=self.hardly, since=0
        )


def _median(row: Array) -> float:
    known = row[np.isfinite(row)]
    return median(known) if known.size else float("nan")
