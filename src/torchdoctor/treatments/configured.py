"""What a run says of its hyper-parameters, under the names that people log them by; and which rates are usual."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.findings import dropout, has_attention, highest, optimizer_names, weight_decay
from torchdoctor.diagnoses.lr_too_high import USUAL_ADAM, USUAL_ATTENTION, USUAL_SGD

NAMES: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning_rate", "lr", "base_lr", "max_lr", "lr0"),
    "batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size", "total_batch_size"),
    "weight_decay": ("weight_decay", "wd"),
    "dropout": ("dropout", "dropout_rate", "hidden_dropout_prob", "attn_pdrop"),
    "total_steps": ("max_steps", "total_steps", "max_iters", "num_training_steps"),
    "clip": ("max_grad_norm", "grad_clip", "gradient_clip_val", "clip_grad_norm"),
    "parameters": ("parameters", "num_parameters", "n_params"),
    "dataset_size": ("dataset_size", "train_size", "num_train_samples"),
}
"""The names under which hyper-parameters are logged."""
OPTIMIZERS = ("optim", "optimizer", "optimizer_name")
RATELESS = ("prodigy", "dadapt", "adadelta", "adafactor", "schedulefree", "lbfgs", "rprop")
"""Optimizers to which a rate of 1 means something else."""
LARGE, USUAL_SIZE, USUAL_RATE, SHRINKS = 1e7, 125e6, 6e-4, 0.3
"""What Adam trains a model of this size at, and by which power of the size the rate shrinks; small models bear more."""
FAR = 5.0
"""Times the usual rate of its size from which on a rate is high."""
FIRST_ADAM, FIRST_SGD, FIRST_UNKNOWN = 1e-3, 0.1, 1e-2
"""Rates to begin with where one is beyond all that is usual."""


def configured(chart: Chart, name: str) -> float:
    """A number of the run's context, or of the configuration that its log holds; NaN where there is none.

    >>> configured(Chart.of(context={"config": {"hidden_dropout_prob": 0.1}}), "dropout")
    0.1
    """
    places: list[Mapping[str, Any]] = [chart.context]
    places += [item for key in ("config", "model") if isinstance(item := chart.context.get(key), Mapping)]
    for key in (name, *NAMES.get(name, ())):
        for place in places:
            value = place.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
    return math.nan


def configured_dropout(chart: Chart) -> float:
    """The dropout that is set, as measured or as logged; NaN where unknown."""
    seen = dropout(chart)
    return configured(chart, "dropout") if math.isnan(seen) else seen


def configured_decay(chart: Chart) -> float:
    """The weight decay that is set, as measured or as logged; NaN where unknown."""
    seen = weight_decay(chart)
    return configured(chart, "weight_decay") if math.isnan(seen) else seen


def configured_optimizer(chart: Chart) -> str:
    """The name of the optimizer, as measured or as logged; empty where unknown."""
    config = chart.context.get("config")
    logged = next((config[key] for key in OPTIMIZERS if key in config), "") if isinstance(config, Mapping) else ""
    return optimizer_names(chart) or str(logged)


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
    name = configured_optimizer(chart).lower()
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
