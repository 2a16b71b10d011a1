"""Hyperparameters that a log contains, under the names that people commonly use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torchdoctor.chart import Chart

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
"""The names under which hyperparameters are logged."""
OPTIMIZERS = ("optim", "optimizer", "optimizer_name")


def logged_every(chart: Chart) -> int:
    """The steps between two records of a log; 1 for a run that was watched."""
    return max(1, int(chart.context.get("logged_every") or 1))


def configured(chart: Chart, name: str) -> float:
    """A number from the run's context, or from the configuration in its log; NaN if there is none.

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


def configured_name(chart: Chart, keys: Sequence[str]) -> str:
    """The value of the first of these keys that is in the log's configuration, as text; "" if there is none.

    >>> configured_name(Chart.of(context={"config": {"optim": "adamw_torch"}}), OPTIMIZERS)
    'adamw_torch'
    """
    config = chart.context.get("config")
    return next((str(config[key]) for key in keys if key in config), "") if isinstance(config, Mapping) else ""
