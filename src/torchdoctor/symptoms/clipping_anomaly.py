"""GR04 clipping-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress, has_gained, median_ratio

IN_VAIN = {
    "clip.after_step": "gradients are clipped after optimizer.step(): clip between backward() and step()",
    "clip.no_gradients": "gradients are clipped while there are none, before backward() or after zero_grad(): clip "
    "between backward() and step()",
    "clip.no_parameters": "clip_grad_norm_ gets no parameters and clips nothing: an iterator such as "
    "model.parameters(), kept in a variable, is empty after its first use",
}
"""What a fact says about a clip that has no effect."""


@dataclass(frozen=True)
class ClippingAnomaly(Detector):
    """Clipping cuts every step to almost nothing, or comes too late to have an effect.

    ## What it means
    Clipping is meant for rare outliers. If the threshold is a hundredth of the usual norm, each step is a hundredth of
    what the learning rate asks for. If `clip_grad_norm_` is called after `optimizer.step()`, it clips gradients that
    were already applied; before `backward()`, or with an iterator that is used up, it clips nothing.

    ## How it is told apart
    Clipping most steps to a third or a tenth of their norm is common and healthy. Adam, LAMB and sign methods are
    almost independent of the scale of gradients, so tight clipping is reported only with SGD, if

    - steps are cut to 1 % of their norm, the weights hardly move, and the loss has not fallen by a fifth (a summed loss
      has norms of hundreds and may train well with a threshold of 1);
    - steps are cut to 10 %, the weights hardly move but would move as usual without clipping, and the loss has not
      fallen by a fifth in 100 steps;
    - clipping begins or becomes ten times tighter in the middle of the run, and now cuts steps to a tenth, whatever the
      loss does.

    With any optimizer it is a warning if the clipped gradients are still multiplied by the loss scale: the threshold is
    then thousands of times smaller than intended, and even Adam is affected through its eps.

    ## What to do
    Set the threshold to about the 90th percentile of the norm. Clip between `backward()` and `step()`, and with a
    gradient scaler after `scaler.unscale_(optimizer)`, because before it gradients are still scaled.

    ## How to see that it is cured
    A few percent of the steps are clipped, and update ratios are about 1e-3.

    ## Example
    >>> chart = Chart.of(grad_norm=[50.0] * 100, clip=[0.01])
    >>> chart.groups = [{"optimizer": "SGD"}]
    >>> ClippingAnomaly().check(chart).message
    'every step is clipped to 0.01, which is 0.0002 of the gradient norm of 50'
    """

    code = "GR04"
    name = "clipping-anomaly"
    reads = ("grad_norm", *(f"facts/{fact}" for fact in IN_VAIN))
    suggests = ("set-clip-norm",)
    references = ("https://arxiv.org/abs/1211.5063",)
    every = 25
    closes_after = 4

    share: float = 0.01
    """Threshold as a share of the gradient norm below which a step is cut to almost nothing."""
    steps: int = 64
    """Latest steps that are checked; nine of ten must be cut this much."""
    ratio: float = 1e-4
    """Update ratio above which such clipping does no harm."""
    part: float = 0.1
    """Threshold as a share of the gradient norm below which a step is held back,"""
    held: float = 5e-4
    """if the update ratio is at most this,"""
    useful: float = 1e-3
    """and would be at least this without clipping, but not a hundred times as much."""
    tighter: float = 0.1
    """Share of the earlier threshold, or norm, below which clipping has begun in the middle of the run."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check for clipping in vain, then for clipping too tight for SGD or before unscaling."""
        if fact := clip_in_vain(chart):
            return self.symptom(chart, "warning", IN_VAIN[fact], since=chart.facts[fact].step, confidence=0.95)
        plain = chart.groups and all(group.get("optimizer") == "SGD" for group in chart.groups)
        late = self._has_begun_late(chart) if plain else None
        if late is not None:
            return late
        clip, norms = chart["clip"].latest, chart["grad_norm"].last(self.steps)
        if not 0 < clip < math.inf or norms.size < self.steps:
            return None
        if chart["grad_norm"].step - chart["clip"].steps[0] < self.steps:
            return None
        if is_scaled(chart) and float(np.mean(clip < self.share * norms)) > 0.9:
            message = f"gradients are clipped to {number_text(clip)} while their norm, times the loss scale, is "
            message += f"{number_text(median(norms))}: call scaler.unscale_(optimizer) first"
            return self.symptom(chart, "warning", message, value=clip, limit=median(norms), confidence=0.9)
        if not plain or not float(np.mean(clip < self.part * norms)) > 0.9:
            return None
        typical, moved = median(norms), median_ratio(chart)
        cut = float(np.mean(clip < self.share * norms)) > 0.9 and not moved > self.ratio
        if not (cut and not has_gained(chart["loss"])) and not self._is_held_back(chart, moved, clip / typical):
            return None
        severity: Severity = "warning" if moved <= self.held else "info"  # info if the ratio is unknown (NaN)
        left = number_text(clip / typical)
        message = f"every step is clipped to {number_text(clip)}, which is {left} of the gradient norm of "
        message += number_text(typical)
        return self.symptom(chart, severity, message, value=clip, limit=self.share * typical)

    def _has_begun_late(self, chart: Chart) -> Symptom | None:
        """Whether clipping to a tenth or less began in the middle of the run."""
        norms, clips, rates = chart["grad_norm"], chart["clip"], chart["lr"]
        last = norms.last(self.steps)
        if norms.count < 2 * self.steps:
            return None
        if clips:
            since, left = int(clips.steps[-1]), clips.latest / median(last)
            tight = len(clips) == 1 or clips.latest < self.tighter * clips.values[-2]
            tight = tight and float(np.mean(clips.latest < self.tighter * last)) > 0.9
        elif is_pinned(chart):  # clipped by value or by hand: the norm is measured after it
            since = _under(norms, 1.1 * norms.latest)
            left = norms.latest / _level_before(norms, since)
            tight = left < self.tighter
        else:
            return None
        if not tight or since - norms.outline.buckets()[0][0] < self.steps or chart.step - since + 1 < self.steps:
            return None
        if not rates.latest < 3 * _level_before(rates, since):  # raised to compensate
            return None
        message = f"since step {since} every step is clipped, to {number_text(left)} of its earlier size"
        return self.symptom(chart, "warning", message, value=left, limit=self.tighter, since=since)

    def _is_held_back(self, chart: Chart, moved: float, left: float) -> bool:
        """Whether the loss is nearly at its start, and steps would have a useful size without clipping."""
        losses, rates = chart["loss"], chart["lr"]
        if losses.count < 100 or not 0 < moved <= self.held or not rates.latest > 0.5 * rates.outline.highest:
            return False
        start = Progress.of(losses).start
        whole = moved / left
        return self.useful <= whole <= 100 * self.useful and losses.baseline(128).recent > 0.8 * start > 0


def clip_in_vain(chart: Chart) -> str:
    """The fact that says that clipping has no effect, or an empty string.

    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 3, "facts": {"clip.no_gradients": True}})
    >>> clip_in_vain(chart), clip_in_vain(Chart())
    ('clip.no_gradients', '')
    """
    return next(filter(chart.fact, IN_VAIN), "")


def _under(series: Series, limit: float) -> int:
    """The first step since which a vital has not been above a limit."""
    since = series.step
    for bucket in reversed(series.outline.buckets()):
        if bucket[3] > limit:
            break
        since = bucket[0]
    return since


def _level_before(series: Series, step: int) -> float:
    """The typical value of a vital before a step; NaN if there is none."""
    earlier = np.array([bucket[2] for bucket in series.outline.buckets() if bucket[0] < step])
    return median(earlier[-64:]) if earlier.size else math.nan


def is_scaled(chart: Chart, steps: int = 64) -> bool:
    """Whether norms are about as large as the loss scale: gradients have not been unscaled yet."""
    scale, norms = chart["loss_scale"].latest, chart["grad_norm"].last(steps)
    return bool(norms.size) and scale >= 1024 and 0.05 * scale < median(norms) < 30 * scale


def is_pinned(chart: Chart, steps: int = 64) -> bool:
    """Whether the gradient norm varies by less than 3 % although batches differ."""
    norms = chart["grad_norm"].last(steps)
    if norms.size < steps or not float(np.ptp(norms)) < 0.03 * float(norms.min()):
        return False
    return np.unique(chart["input_checksum"].last(8)).size > 2


def is_cut_by_value(chart: Chart, samples: int = 6, tensors: int = 2) -> bool:
    """Whether gradients of several tensors have the same norm at each sample, although batches differ.

    Each of their values is then the threshold or its negative, because all were above it before clipping.

    >>> chart = Chart()
    >>> for step in range(6):
    ...     norms = {"grad_norm": [0.01 * step + 0.3, 2e-5, 3.162278e-6]}
    ...     chart.add({"type": "tensors", "step": step, "vitals": norms})
    ...     chart.put(step, "input_checksum", 0.1 * step)
    >>> is_cut_by_value(chart)
    True
    """
    rows = chart.tensors("grad_norm").matrix(samples)
    if len(rows) < samples or np.unique(chart["input_checksum"].last(samples)).size < 3:
        return False
    low, high = rows.min(axis=0), rows.max(axis=0)
    return int(((low > 0) & (high < (1 + 1e-5) * low)).sum()) >= tensors
