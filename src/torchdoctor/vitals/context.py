"""The run's setup for the journal's header, from an allow-list: never the environment."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from torchdoctor.vitals.patient import unwrap_model

SETTINGS = frozenset(
    [
        "alpha",
        "amsgrad",
        "base_momentum",
        "beta2_decay",
        "betas",
        "capturable",
        "centered",
        "d",
        "dampening",
        "decoupled_weight_decay",
        "differentiable",
        "eps",
        "etas",
        "foreach",
        "fused",
        "history_size",
        "initial_accumulator_value",
        "initial_lr",
        "lambd",
        "lr_decay",
        "max_eval",
        "max_iter",
        "max_lr",
        "max_momentum",
        "maximize",
        "min_lr",
        "momentum",
        "momentum_decay",
        "nesterov",
        "ns_coefficients",
        "ns_steps",
        "rho",
        "step_sizes",
        "t0",
        "tolerance_change",
        "tolerance_grad",
        "weight_decay",
    ]
)
"""Names of torch's optimizer and scheduler settings that are numbers and flags; the learning rate is a vital."""
WORDS = frozenset({"adjust_lr_fn", "line_search_fn"})
"""Settings that are strings."""

TARGETS = frozenset({"labels", "label", "targets", "target", "y"})
"""Keys of the targets in a batch that is a dict."""


def describe(
    models: Mapping[str, nn.Module], optimizers: Sequence[Optimizer], scheduler: Any, scaler: Any
) -> dict[str, Any]:
    """The context part of the header."""
    inner = [unwrap_model(model) for model in models.values()]
    tensors = [tensor for model in inner for tensor in model.parameters()]
    rates = {
        module.p for model in inner for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)
    }
    return {
        "model": {
            "class": ", ".join(type(model).__name__ for model in inner),
            "parameters": sum(tensor.numel() for tensor in tensors),
            "trainable": sum(tensor.numel() for tensor in tensors if tensor.requires_grad),
            "tensors": len(tensors),
            "compiled": any(type(model).__name__ == "OptimizedModule" for model in models.values()),
        },
        "optimizer": optimizer_facts(optimizers),
        "scheduler": None if scheduler is None else type(scheduler).__name__,
        "scaler": None if scaler is None else type(scaler).__name__,
        "dropout": sorted(rate for rate in rates if rate > 0),
        "precision": sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}),
        "devices": sorted({_device_name(tensor.device) for tensor in tensors}),
        "world_size": world_size(),
        "seed": torch.initial_seed(),
    }


def optimizer_facts(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """Class, number of parameter groups and first learning rate of each optimizer."""
    return [
        {"class": type(item).__name__, "groups": len(item.param_groups), **_built_with(item)} for item in optimizers
    ]


def _built_with(optimizer: Optimizer) -> dict[str, float]:
    """The learning rate that the optimizer starts with, before a loop sets its own."""
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if isinstance(rate, torch.Tensor) and rate.numel() == 1 and not rate.is_meta:
        rate = rate.item()
    return {"lr": float(rate)} if isinstance(rate, int | float) else {}


def versions(own: str) -> dict[str, str]:
    """The versions that matter for a bug report."""
    return {
        "torchdoctor": own,
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.system(),
    }


def group_settings(group: Mapping[str, Any], defaults: Collection[str] = ()) -> dict[str, Any]:
    """The hyperparameters of a parameter group: numbers and flags that torch, or this optimizer, has a name for.

    Anything else in a group is private: it may be a password.

    >>> group_settings({"params": [], "lr": 0.1, "momentum": 0.9, "key": "secret", "pin": 1234, "d0": 1e-6}, {"d0"})
    {'momentum': 0.9, 'd0': 1e-06}
    """
    settings: dict[str, Any] = {}
    for name, value in group.items():
        if name in WORDS and isinstance(value, str):
            settings[name] = value
        if name in ("params", "lr") or not (name in SETTINGS or name in defaults):
            continue
        if isinstance(value, bool | int | float):
            settings[name] = value
        elif isinstance(value, tuple | list) and all(isinstance(item, int | float) for item in value):
            settings[name] = list(value)
    return settings


def world_size() -> int:
    """Number of processes that train together."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """This process's rank."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def batch_facts(inputs: Any) -> dict[str, Any]:
    """Batch size, input shape and precision, from the inputs of a forward pass."""
    facts: dict[str, Any] = {}
    first = next((item for item in tensors_in(inputs) if item.dim()), None)
    if first is not None:
        facts["batch_size"] = int(first.shape[0])
        facts["input_shape"] = list(first.shape)
        kind = first.device.type
        if torch.is_autocast_enabled(kind):
            facts["autocast"] = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
    return facts


def data_facts(loader: Any) -> dict[str, Any]:
    """What a loader says about its data: number of samples, number of batches, samples in the last batch.

    A stream has no size, and with a custom batch sampler there is no batch size.
    """
    try:
        facts = {"batch_size": loader.batch_size, "dataset_size": len(loader.dataset)}
        if loader.batch_size and not loader.drop_last and (rest := len(loader.sampler) % loader.batch_size):
            facts |= {"epoch_batches": len(loader), "last_batch": rest}
    except (AttributeError, TypeError, NotImplementedError):
        return {}
    return facts


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [item for part in value for item in tensors_in(part)]


def shown_batch(batch: Any) -> list[torch.Tensor]:
    """The tensors of a logged batch, inputs first and targets last; from a dict without targets, only the inputs.

    >>> ids, mask, labels = torch.zeros(1), torch.ones(1), torch.ones(1)
    >>> shown_batch(({"labels": labels, "ids": ids, "mask": mask},))[-1] is labels
    True
    >>> len(shown_batch(({"ids": ids, "mask": mask},)))
    1
    """
    if isinstance(batch, tuple | list) and len(batch) == 1:
        return shown_batch(batch[0])
    if not isinstance(batch, Mapping):
        return tensors_in(batch)
    targets = [key for key in batch if str(key).lower() in TARGETS]
    inputs = tensors_in([item for key, item in batch.items() if key not in targets])
    return [*inputs, *tensors_in(batch[targets[0]])] if targets else inputs[:1]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
