"""What was measured before something broke: the early signs that large runs are watched for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Evidence
from torchdoctor.records import number_text
from torchdoctor.series import Array, median

EDGE = 2.0
"""Curvature over slope along a step, above which the step ends higher than it began: the edge of stability."""
LARGE_LOGIT = 50.0
"""An attention logit with which a softmax is one-hot."""
FAR_LEVEL = 30.0
"""A log-sum-exp that no confident classifier needs."""
STALE = 3.0
"""How many times larger than Adam's second average expected gradients are when it lags behind."""
JUST_BEFORE = 60
"""Steps in which a sample is still news of what comes."""


def values_before(chart: Chart, vital: str, onset: int) -> Array:
    """The kept values of a vital from before a step.

    >>> values_before(Chart.of(curvature=[1.0, 2.0, 3.0]), "curvature", 2).tolist()
    [1.0, 2.0]
    """
    series = chart[vital]
    return series.values[: int(np.searchsorted(series.steps, onset))]


def about_the_step(chart: Chart, onset: int) -> Iterator[Evidence]:
    """Whether steps went beyond the valley's floor, where curvature was measured: for and against their length."""
    looks = values_before(chart, "step_curvature", onset)[-4:]
    level = median(looks)
    if level > EDGE:
        text = f"steps ended higher than they began: curvature along them was {number_text(level)} times their slope"
        yield Evidence(2.0 if looks.size > 1 else 1.0, f"{text}, {number_text(EDGE)} is the edge of stability")
    elif 0.01 < level < 0.5 * EDGE:
        text = f"steps ended before the valley's floor: curvature along them was {number_text(level)} times their slope"
        yield Evidence(-1.5 if looks.size > 1 else -0.7, text)


def about_growth(chart: Chart, onset: int) -> Iterator[Evidence]:
    """Attention logits and the common level of the outputs, both of which grow at rates that are too high."""
    logits = values_before(chart, "attention_logit", onset)
    if logits.size > 1 and logits[-1] > LARGE_LOGIT and logits[-1] > 3 * logits[0]:
        sizes = f"from {number_text(float(logits[0]))} to {number_text(float(logits[-1]))}"
        yield Evidence(1.0, f"the largest attention logit had grown {sizes} before it began")
    levels = values_before(chart, "logit_drift", onset)
    if levels.size > 1 and abs(levels[-1]) > FAR_LEVEL and abs(levels[-1]) > 3 * abs(levels[0]):
        sizes = f"from {number_text(float(levels[0]))} to {number_text(float(levels[-1]))}"
        yield Evidence(0.7, f"the outputs' common level, their log-sum-exp, had drifted {sizes} before it began")


def about_staleness(chart: Chart, onset: int, beta2: float) -> Iterator[Evidence]:
    """Whether gradients had just outgrown what Adam's second average remembers."""
    series = chart["adam_staleness"]
    seen = values_before(chart, "adam_staleness", onset)
    if seen.size < 4 or series.steps[seen.size - 1] < onset - JUST_BEFORE:
        return
    usual, last = median(seen[:-1]), float(seen[-1])
    if last > STALE * max(usual, 1.0):
        step = int(series.steps[seen.size - 1])
        text = f"at step {step} gradients were {number_text(last)} times what Adam's second average expected"
        yield Evidence(1.5, f"{text}: beta2 of {number_text(beta2)} lags behind")
