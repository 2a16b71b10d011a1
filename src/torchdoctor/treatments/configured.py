"""The highest learning rate of a run, measured or logged, and the usual learning rates."""

from __future__ import annotations

import math

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import highest
from torchdoctor.diagnoses.configuration import configured
from torchdoctor.diagnoses.findings import has_attention, optimizer_names
from torchdoctor.diagnoses.lr_too_high import USUAL_ADAM, USUAL_ATTENTION, USUAL_SGD

RATELESS = ("prodigy", "dadapt", "adadelta", "adafactor", "schedulefree", "lbfgs", "rprop")
"""Optimizers whose learning rates have a different scale: 1 may be usual."""
LARGE, USUAL_SIZE, USUAL_RATE, SHRINKS = 1e7, 125e6, 6e-4, 0.3
"""Smallest model that is judged by size; a size and its usual learning rate with Adam; and the power it shrinks by."""
FAR = 5.0
"""Multiple of the usual learning rate for its size above which a learning rate is too high."""
FIRST_ADAM, FIRST_SGD, FIRST_UNKNOWN = 1e-3, 0.1, 1e-2
"""Learning rates to begin with if that of the run is far too high."""


def highest_rate(chart: Chart) -> float:
    """The highest learning rate of the run, measured or configured; NaN if unknown."""
    return highest(chart["lr"], 0, chart.step) if chart["lr"] else configured(chart, "lr")


def usual_rate(chart: Chart, rate: float) -> float:
    """A learning rate to begin with if that of the run is too high for its optimizer and size; else NaN.

    >>> usual_rate(Chart.of(context={"config": {"optim": "adamw_torch"}}), 5.0)
    0.001
    >>> usual_rate(Chart.of(context={"config": {"optim": "sgd"}}), 0.4)
    nan
    """
    name = optimizer_names(chart).lower()
    if any(other in name.replace("_", "") for other in RATELESS):
        return math.nan
    if "adam" in name or (not name and chart.context.get("source") == "Hugging Face"):  # AdamW is its default
        size = configured(chart, "parameters")
        if size >= LARGE and rate > FAR * usual_of_size(size):
            return usual_of_size(size)
        return FIRST_ADAM if rate > (USUAL_ATTENTION if has_attention(chart) else USUAL_ADAM) else math.nan
    return (FIRST_SGD if name else FIRST_UNKNOWN) if rate > USUAL_SGD else math.nan


def usual_of_size(parameters: float) -> float:
    """The approximate learning rate at which Adam trains models of this size."""
    return float(USUAL_RATE * (USUAL_SIZE / parameters) ** SHRINKS)
