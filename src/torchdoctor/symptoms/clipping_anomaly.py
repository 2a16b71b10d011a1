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


@dataclass(frozen=True)
class ClippingAnomaly(Detector):
    """Clipping cuts every step to nothing, or comes too late to cut anything.

    ## What it means
    Clipping is there for rare outliers. If the threshold is a hundredth of the usual norm, each step is a hundredth of
    what the learning rate says. If `clip_grad_norm_` is called after `optimizer.step()`, it clips gradients that were
    already applied.

    ## How it is told apart
    Clipping most steps to a third or a tenth is common and healthy. Adam, LAMB and sign methods do not feel the scale
    of gradients: with them tight clipping hardly slows anything, and nothing is said. With SGD the weights must
    hardly move as well. A summed loss has norms of hundreds, and a threshold of 1 with a rate to match trains well:
    where the loss has fallen by a fifth, nothing is said. A tenth is too little as well where the weights hardly move,
    would move as usual without it, and the loss has fallen by less than that in a hundred steps. Where clipping begins,
    or becomes ten times tighter, in the middle of a run, what the loss has gained came before it: steps are a tenth of
    those that the rate was chosen for, and it is a warning whatever the loss is. Gradients that still carry a loss
    scale are another matter: the threshold then is thousands of times smaller than it was meant to be, and Adam feels
    it at its eps.

    ## What to do
    Set the threshold to about the usual norm (its 90th percentile), between `backward()` and `step()`; with a gradient
    scaler, after `scaler.unscale_(optimizer)`: before it, the norm is that of scaled gradients.

    ## How to see that it is cured
    A few percent of the steps are clipped, and update ratios are about 1e-3.

    ## Example
    >>> chart = Chart.of(grad_norm=[50.0] * 100, clip=[0.01])
    >>> chart.groups = [{"optimizer": "SGD"}]
    >>> ClippingAnomaly().check(chart).message
    'every step is clipped at 0.01, to 0.0002 of its norm of 50'
    """

    code = "GR04"
    name = "clipping-anomaly"
    reads = ("grad_norm", "facts/clip.after_step")
    suggests = ("set-clip-norm",)
    references = ("https://arxiv.org/abs/1211.5063",)
    every = 25
    closes_after = 4

    share: float = 0.01
    """Share of its norm that is left of a step that is cut to nothing."""
    steps: int = 64
    """Steps that are looked at; nine of ten must be cut so."""
    ratio: float = 1e-4
    """Share of themselves by which weights move at the most where clipping holds them back."""
    part: float = 0.1
    """Share of its norm that is left of a step that is held back,"""
    held: float = 5e-4
    """where weights move by no more than this,"""
    useful: float = 1e-3
    """and would move by at least this much without clipping, but not by a hundred times as much."""
    tighter: float = 0.1
    """What is left of the threshold, or of steps, where clipping begins in the middle of a run."""

    def check(self, chart: Chart) -> Symptom | None:
        """Too late, or too tight for an optimizer that feels it."""
        if chart.fact("clip.after_step"):
            message = "gradients are clipped after the step that applies them: clip between backward() and step()"
            return self.symptom(chart, "warning", message, since=chart.facts["clip.after_step"].step, confidence=0.95)
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
            message = f"clipped at {number_text(clip)} while the norm, times the loss scale, is "
            message += f"{number_text(median(norms))}: scaler.unscale_(optimizer) comes first"
            return self.symptom(chart, "warning", message, value=clip, limit=median(norms), confidence=0.9)
        if not plain or not float(np.mean(clip < self.part * norms)) > 0.9:
            return None
        typical, moved = median(norms), median_ratio(chart)
        cut = float(np.mean(clip < self.share * norms)) > 0.9 and not moved > self.ratio
        if not (cut and not has_gained(chart["loss"])) and not self._is_held_back(chart, moved, clip / typical):
            return None
        severity: Severity = "warning" if moved <= self.held else "info"  # unknown: NaN is neither
        left = number_text(clip / typical)
        message = f"every step is clipped at {number_text(clip)}, to {left} of its norm of {number_text(typical)}"
        return self.symptom(chart, severity, message, value=clip, limit=self.share * typical)

    def _has_begun_late(self, chart: Chart) -> Symptom | None:
        """Steps are cut to a tenth since some step in the middle of the run, and were whole before it."""
        norms, clips, rates = chart["grad_norm"], chart["clip"], chart["lr"]
        last = norms.last(self.steps)
        if norms.count < 2 * self.steps:
            return None
        if clips:
            since, left = int(clips.steps[-1]), clips.latest / median(last)
            tight = len(clips) == 1 or clips.latest < self.tighter * clips.values[-2]
            tight = tight and float(np.mean(clips.latest < self.tighter * last)) > 0.9
        elif is_pinned(chart):  # by value, or by hand: what is measured comes after it
            since = _under(norms, 1.1 * norms.latest)
            left = norms.latest / _level_before(norms, since)
            tight = left < self.tighter
        else:
            return None
        if not tight or since - norms.outline.buckets()[0][0] < self.steps or chart.step - since + 1 < self.steps:
            return None
        if not rates.latest < 3 * _level_before(rates, since):  # raised to make up for it
            return None
        message = f"since step {since} every step is clipped, to {number_text(left)} of what it was before"
        return self.symptom(chart, "warning", message, value=left, limit=self.tighter, since=since)

    def _is_held_back(self, chart: Chart, moved: float, left: float) -> bool:
        """Whether the loss is nearly where it began, and steps would be of a useful size without clipping."""
        losses, rates = chart["loss"], chart["lr"]
        if losses.count < 100 or not 0 < moved <= self.held or not rates.latest > 0.5 * rates.outline.highest:
            return False
        start = Progress.of(losses).start
        whole = moved / left
        return self.useful <= whole <= 100 * self.useful and losses.baseline(128).recent > 0.8 * start > 0


def _under(series: Series, limit: float) -> int:
    """The first step since which a vital has been under a limit."""
    since = series.step
    for bucket in reversed(series.outline.buckets()):
        if bucket[3] > limit:
            break
        since = bucket[0]
    return since


def _level_before(series: Series, step: int) -> float:
    """The typical value of a vital before a step, NaN where there is none."""
    earlier = np.array([bucket[2] for bucket in series.outline.buckets() if bucket[0] < step])
    return median(earlier[-64:]) if earlier.size else math.nan


def is_scaled(chart: Chart, steps: int = 64) -> bool:
    """Whether norms are those of an ordinary gradient times a large loss scale: nobody has unscaled them yet."""
    scale, norms = chart["loss_scale"].latest, chart["grad_norm"].last(steps)
    return bool(norms.size) and scale >= 1024 and 0.05 * scale < median(norms) < 30 * scale


def is_pinned(chart: Chart, steps: int = 64) -> bool:
    """Whether the gradient norm is the same at each step but for some hundredths, although batches differ."""
    norms = chart["grad_norm"].last(steps)
    if norms.size < steps or not float(np.ptp(norms)) < 0.03 * float(norms.min()):
        return False
    return np.unique(chart["input_checksum"].last(8)).size > 2


def is_cut_by_value(chart: Chart, samples: int = 6, tensors: int = 2) -> bool:
    """Whether gradients of several tensors have one norm to the last digits at each look, although batches differ.

    Then each of their values is the threshold, or its negative: that is what is left where all of them were above it.

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
