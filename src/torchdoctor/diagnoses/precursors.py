"""Measurements from before something broke: the early warning signs of large runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Evidence
from torchdoctor.records import number_text
from torchdoctor.series import Array, median

EDGE = 2.0
"""Ratio of curvature to slope along a step above which the step increases the loss: the edge of stability."""
LARGE_LOGIT = 50.0
"""Attention logit above which the softmax is practically one-hot."""
FAR_LEVEL = 30.0
"""Absolute log-sum-exp above which the outputs have drifted: no classifier needs so much."""
STALE = 3.0
"""Ratio of gradients to Adam's running average of their size above which the average lags behind."""
JUST_BEFORE = 60
"""Steps before the onset within which a sample still counts."""


def values_before(chart: Chart, vital: str, onset: int) -> Array:
    """The stored values of a vital from before a step.

    >>> values_before(Chart.of(curvature=[1.0, 2.0, 3.0]), "curvature", 2).tolist()
    [1.0, 2.0]
    """
    series = chart[vital]
    return series.values[: int(np.searchsorted(series.steps, onset))]


def about_the_step(chart: Chart, onset: int) -> Iterator[Evidence]:
    """Whether steps overshot, if curvature was measured: evidence for or against steps that are too long."""
    looks = values_before(chart, "step_curvature", onset)[-4:]
    level = median(looks)
    if level > EDGE:
        text = f"steps increased the loss: curvature along them was {number_text(level)} times the slope"
        yield Evidence(2.0 if looks.size > 1 else 1.0, f"{text}, and {number_text(EDGE)} is the edge of stability")
    elif 0.01 < level < 0.5 * EDGE:
        text = f"steps were short enough: curvature along them was {number_text(level)} times the slope"
        yield Evidence(-1.5 if looks.size > 1 else -0.7, text)


def about_growth(chart: Chart, onset: int) -> Iterator[Evidence]:
    """Attention logits and the log-sum-exp of the outputs: both grow if the learning rate is too high."""
    logits = values_before(chart, "attention_logit", onset)
    if logits.size > 1 and logits[-1] > LARGE_LOGIT and logits[-1] > 3 * logits[0]:
        sizes = f"from {number_text(float(logits[0]))} to {number_text(float(logits[-1]))}"
        yield Evidence(1.0, f"the largest attention logit had grown {sizes} before the onset")
    levels = values_before(chart, "logit_drift", onset)
    if levels.size > 1 and abs(levels[-1]) > FAR_LEVEL and abs(levels[-1]) > 3 * abs(levels[0]):
        sizes = f"from {number_text(float(levels[0]))} to {number_text(float(levels[-1]))}"
        yield Evidence(0.7, f"the log-sum-exp of the outputs had drifted {sizes} before the onset")


def about_staleness(chart: Chart, onset: int, beta2: float) -> Iterator[Evidence]:
    """Whether gradients had just outgrown Adam's running average of their size."""
    series = chart["adam_staleness"]
    seen = values_before(chart, "adam_staleness", onset)
    if seen.size < 4 or series.steps[seen.size - 1] < onset - JUST_BEFORE:
        return
    usual, last = median(seen[:-1]), float(seen[-1])
    if last > STALE * max(usual, 1.0):
        step = int(series.steps[seen.size - 1])
        text = f"at step {step}, gradients were {number_text(last)} times Adam's running average of their size"
        yield Evidence(1.5, f"{text}, which lags behind with a beta2 of {beta2:g}")
