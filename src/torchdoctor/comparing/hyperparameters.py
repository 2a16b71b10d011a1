"""A run's settings as flat names and plain values, from any source and under any common name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.comparing.summary import Curve

Value = str | float | int | bool | None
Settings = Mapping[str, Value]

LEFT_OUT = frozenset(
    (
        *("tensors", "trainable", "input_shape", "groups", "environment", "scaler", "initial_lr", "params"),
        *("steps_per_epoch", "step", "source", "run", "clock", "logged_every", "columns", "better"),
        *("maximize", "differentiable", "foreach", "capturable", "fused"),
    )
)
"""Names that are derived from others, or do not affect training."""
ALIASES = {
    "learning_rate": "lr",
    "lr0": "lr",
    "base_lr": "lr",
    "max_lr": "lr",
    "init_lr": "lr",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "train_micro_batch_size_per_gpu": "batch_size",
    "global_batch_size": "batch_size",
    "batch": "batch_size",
    "bs": "batch_size",
    "wd": "weight_decay",
    "random_seed": "seed",
    "manual_seed": "seed",
    "n_params": "parameters",
    "num_params": "parameters",
    "num_parameters": "parameters",
    "model_parameters": "parameters",
    "total_params": "parameters",
    "optim": "optimizer",
    "lr_scheduler": "scheduler",
    "lr_scheduler_type": "scheduler",
}
"""Other common names for the same settings."""
HOMES = ("model", "optimizer", "config", "hparams", "hyperparameters", "params", "training", "train", "args", "cfg")
"""Sections of a configuration that are dropped from names of settings."""
TASK_FACTS = {
    "loss.kind": "loss",
    "loss.reduction": "loss reduction",
    "loss.classes": "number of classes",
}
"""Facts in a journal that describe the task, and their names in sentences."""
BEYOND = 1.5
"""If the highest learning rate used exceeds this multiple of the configured one, it counts as the run's setting."""
MOST = 300
LENGTH = 200


def hyperparameters(
    header: Mapping[str, Any], remarks: Iterable[Mapping[str, Any]], curves: Mapping[str, Curve]
) -> dict[str, Value]:
    """The settings of a run: from its header, later records, and the highest learning rate used.

    >>> context = {"model": {"class": "MLP", "parameters": 400}, "optimizer": [{"class": "SGD", "groups": 1}]}
    >>> groups = {"type": "groups", "groups": [{"lr": 0.1, "momentum": 0.9}]}
    >>> hyperparameters({"context": context}, [groups, {"type": "context", "context": {"batch_size": 32}}], {})
    {'model': 'MLP', 'parameters': 400, 'optimizer': 'SGD', 'batch_size': 32, 'momentum': 0.9, 'lr': 0.1}
    """
    found: dict[str, Value] = {}
    context: dict[str, Any] = dict(header.get("context") or {})
    groups: list[Mapping[str, Any]] = []
    rates = []
    for record in remarks:
        if record["type"] in ("header", "context"):
            context.update(record.get("context") or {})
        elif record["type"] == "groups":
            groups = groups or list(record["groups"])
            rates += [group["lr"] for group in record["groups"] if isinstance(group.get("lr"), int | float)]
        elif "schedule.class" in record.get("facts", {}):
            context["scheduler"] = record["facts"]["schedule.class"]
    _flatten(context, (), found)
    if groups:
        first = {key: value for key, value in groups[0].items() if key not in ("lr", "optimizer")}
        _flatten(first, (), found)
    told = found.get("lr")
    if not isinstance(told, int | float):
        used = [value for name, curve in curves.items() if _is_rate(name) for value in curve.values.tolist()]
        finite = [value for value in (*used, *rates) if math.isfinite(value)]
        if finite:
            found["lr"] = float(f"{max(finite):.4g}")
    elif (highest := _highest(curves)) > BEYOND * told:  # it was raised during the run
        found["lr"] = float(f"{highest:.4g}")
    return found


def _highest(curves: Mapping[str, Curve]) -> float:
    """The highest learning rate used; NaN if none was logged."""
    used = [value for value in curves["lr"].values.tolist() if math.isfinite(value)] if "lr" in curves else []
    return max(used, default=math.nan)


def task_facts(remarks: Iterable[Mapping[str, Any]]) -> dict[str, Value]:
    """What a watched run records about its task: loss, loss reduction, number of classes and of input axes.

    >>> facts = {"type": "facts", "facts": {"loss.kind": "mse"}}
    >>> task_facts([facts, {"type": "context", "context": {"input_shape": [48, 1, 12, 12]}}])
    {'loss': 'mse', 'number of input axes': 4}
    """
    found: dict[str, Value] = {}
    for record in remarks:
        for key, value in (record.get("facts") or {}).items():
            if key in TASK_FACTS and isinstance(value, str | int):
                found.setdefault(TASK_FACTS[key], value)
        shape = (record.get("context") or {}).get("input_shape")
        if isinstance(shape, list):
            found.setdefault("number of input axes", len(shape))
    return found


def _is_rate(name: str) -> bool:
    return name == "lr" or name.startswith("lr/")


def _flatten(value: Any, path: tuple[str, ...], found: dict[str, Value]) -> None:
    if len(found) >= MOST:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if str(key) not in LEFT_OUT and len(path) < 6:
                _flatten(
                    item, (*path, *str(key).split("/")), found
                )  # a file next to a log joins nested names with a slash
    elif isinstance(value, list | tuple):
        if len(value) == 1 or (value and all(isinstance(item, Mapping) for item in value)):
            _flatten(value[0], path, found)
        elif value:
            _put(", ".join(str(item) for item in value[:8]), path, found)
    elif isinstance(value, bool | int | float | str):
        _put(value, path, found)


def _put(value: Value, path: tuple[str, ...], found: dict[str, Value]) -> None:
    name = canonical(path)
    if name in found:  # what the run itself used takes precedence over a settings file
        if found[name] == value:
            return
        name = ".".join(path)
    found.setdefault(name, value[:LENGTH] if isinstance(value, str) else value)


def canonical(path: tuple[str, ...]) -> str:
    """The name of a setting, shortened if its last part is well known.

    >>> canonical(("config", "optim", "learning_rate")), canonical(("model", "class")), canonical(("data", "path"))
    ('lr', 'model', 'data.path')
    """
    if path[-1] == "class" and len(path) > 1:
        return canonical(path[:-1])
    parts = [part for part in path[:-1] if part.lower() not in HOMES] + [path[-1]]
    last = re.sub(r"[\s-]+", "_", parts[-1]).strip("_").lower()
    if last in ALIASES:
        return ALIASES[last]
    return last if last in ALIASES.values() else ".".join(parts)
