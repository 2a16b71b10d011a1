"""The highest learning rate of a run, as measured or as logged, and which rates are usual."""

from __future__ import annotations

import math

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.configuration import configured
from torchdoctor.diagnoses.findings import has_attention, highest, optimizer_names
from torchdoctor.diagnoses.lr_too_high import USUAL_ADAM, USUAL_ATTENTION, USUAL_SGD

RATELESS = ("prodigy", "dadapt", "adadelta", "adafactor", "schedulefree", "lbfgs", "rprop")
"""Optimizers to which a rate of 1 means something else."""
LARGE, USUAL_SIZE, USUAL_RATE, SHRINKS = 1e7, 125e6, 6e-4, 0.3
"""What Adam trains a model of this size at, and by which power of the size the rate shrinks; small models bear more."""
FAR = 5.0
"""Times the usual rate of its size from which on a rate is high."""
FIRST_ADAM, FIRST_SGD, FIRST_UNKNOWN = 1e-3, 0.1, 1e-2
"""Rates to begin with where one is beyond all that is usual."""


def highest_rate(chart: Chart) -> float:
    """The highest learning rate of the run, as measured or as logged; NaN where unknown."""
    return highest(chart["lr"], 0, chart.step) if chart["lr"] else configured(chart, "lr")


def usual_rate(chart: Chart, rate: float) -> float:
    """A rate to begin with, where the run's is beyond what its optimizer and size are trained at; else NaN.

    >>> usual_rate(Chart.of(context={"config": {"optim": "adamw_torch"}}), 5.0)
    0.001
    >>> usual_rate(Chart.of(context={"config": {"optim": "sgd"}}), 0.4)
    nan
    """
    name = optimizer_names(chart).lower()
    if any(other in name.replace("_", "") for other in RATELESS):
        return math.nan
    if "adam" in name or (not name and chart.context.get("source") == "Hugging Face"):  # whose default it is
        size = configured(chart, "parameters")
        if size >= LARGE and rate > FAR * usual_of_size(size):
            return usual_of_size(size)
        return FIRST_ADAM if rate > (USUAL_ATTENTION if has_attention(chart) else USUAL_ADAM) else math.nan
    return (FIRST_SGD if name else FIRST_UNKNOWN) if rate > USUAL_SGD else math.nan


def usual_of_size(parameters: float) -> float:
    """What models of this size are trained with Adam at, about."""
    return float(USUAL_RATE * (USUAL_SIZE / parameters) ** SHRINKS)
