"""How a model and its loss are called on a batch: found once, by trying the usual ways in order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TARGET_KEYS = ("labels", "label", "targets", "target", "label_ids", "y")
"""Keys under which a dict batch may hold its targets."""
PREDICTION_KEYS = ("logits", "prediction", "predictions", "output", "outputs", "last_hidden_state", "sample")
"""Keys or attributes under which an output may hold its prediction."""
MODEL_WORDS = frozenset({"model", "models", "module", "net", "nets", "network"})
"""A loss whose first parameter has one of these names takes the model and the batch, and runs the whole step."""


@dataclass(frozen=True)
class Calling:
    """One way to get from a batch to a loss."""

    feeds_targets: bool
    """Whether the targets are passed to the model, which may compute its loss itself (nanoGPT, Hugging Face)."""
    loss: str
    """Who computes the loss: "own" the model; "whole" ``loss_fn(model, batch)``; else the form of the output passed."""


def split(batch: Any) -> tuple[Any, Any, str | None]:
    """Inputs, targets (None if there are none), and the key of the targets in a dict.

    >>> split({"input_ids": 1, "labels": 2}), split((1, 2, 3)), split(1)
    (({'input_ids': 1}, 2, 'labels'), ((1, 2), 3, None), (1, None, None))
    """
    if isinstance(batch, Mapping):
        key = next((name for name in TARGET_KEYS if name in batch), None)
        return {name: value for name, value in batch.items() if name != key}, batch.get(key) if key else None, key
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        if len(batch) == 2:
            return batch[0], batch[1], None
        return (tuple(batch[:-1]), batch[-1], None) if len(batch) > 2 else (batch[0] if batch else None, None, None)
    return batch, None, None


def feed(model: nn.Module, inputs: Any, *more: Any, **named: Any) -> Any:
    """Call the model on its inputs: a dict as keywords if it accepts these names, a tuple as arguments."""
    if isinstance(inputs, Mapping):
        if accepts(model, {*inputs, *named}):
            return model(**inputs, **named)
        return model(inputs, *more, **named)
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
        return model(*inputs, *more, **named)
    return model(inputs, *more, **named)


def accepts(model: nn.Module, names: set[str]) -> bool:
    """Whether forward accepts keywords of these names."""
    known, anything = _parameters(model.forward)
    return anything or all(name in known for name in names)


def names_of(model: nn.Module, inputs: Any) -> list[str]:
    """The parameter names of several inputs that are passed one by one; empty if they are not."""
    known, _ = _parameters(model.forward)
    if isinstance(inputs, Mapping):
        return [name for name in inputs if name in known] if accepts(model, set(inputs)) else []
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
        return known[: len(inputs)] if len(known) >= len(inputs) else []
    return []


def room_for_targets(model: nn.Module, inputs: Any, key: str | None) -> bool:
    """Whether forward has a parameter for the targets besides its inputs."""
    known, anything = _parameters(model.forward)
    if isinstance(inputs, Mapping):
        return key is not None and (anything or key in known)
    given = len(inputs) if isinstance(inputs, tuple) and not hasattr(inputs, "_fields") else 1
    return len(known) > given


def _parameters(function: Callable[..., Any]) -> tuple[list[str], bool]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], True
    open_kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    anything = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters)
    return [item.name for item in parameters if item.kind not in open_kinds], anything


def prediction(output: Any) -> Tensor | None:
    """What a model predicts: its output, or the tensor in it that is not a loss."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        named = [output[key] for key in PREDICTION_KEYS if key in output]
        return prediction([*named, *(value for key, value in output.items() if "loss" not in str(key))])
    if isinstance(output, list | tuple):
        found = [item for item in output if isinstance(item, Tensor)]
        real = [item for item in found if item.is_floating_point() and item.dim()]
        nested = (prediction(item) for item in output if isinstance(item, list | tuple | Mapping))
        return real[0] if real else next((item for item in nested if item is not None), None)
    return next(
        (item for key in PREDICTION_KEYS if isinstance(item := getattr(output, key, None), Tensor)),
        None,
    )


def own_loss(output: Any) -> Tensor | None:
    """The loss in a model's output: ``.loss``, a dict of losses, a scalar beside the logits, or the output itself."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() and output.numel() == 1 else None
    if isinstance(output, Mapping):
        if isinstance(output.get("loss"), Tensor):
            return total(output["loss"])
        losses = [value for key, value in output.items() if "loss" in str(key) and isinstance(value, Tensor)]
        return total(losses) if losses else None
    if isinstance(getattr(output, "loss", None), Tensor):
        return total(output.loss)
    if isinstance(output, list | tuple):
        return next(
            (item for item in output if isinstance(item, Tensor) and item.is_floating_point() and item.numel() == 1),
            None,
        )
    return None


def total(loss: Any) -> Tensor:
    """One number: the mean of a loss without reduction, the sum of several losses."""
    if isinstance(loss, Tensor):
        return loss if loss.dim() == 0 else loss.mean()
    parts = list(loss.values()) if isinstance(loss, Mapping) else list(loss) if isinstance(loss, Sequence) else []
    parts = [item for item in parts if isinstance(item, Tensor)]
    if not parts:
        raise TypeError(f"the loss is a {type(loss).__name__}, expected a tensor or several tensors")
    return torch.stack([total(item) for item in parts]).sum()


def wants_model(loss_fn: Any) -> bool:
    """Whether a loss runs the whole step: ``loss_fn(model, batch)``."""
    names, _ = _parameters(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn)
    return bool(names) and names[0] in MODEL_WORDS


def takes_targets(loss_fn: Any) -> bool:
    """Whether a loss takes a second argument."""
    names, anything = _parameters(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn)
    return anything or len(names) != 1


def ways(loss_fn: Any, several: bool, room: bool) -> Iterator[Calling]:
    """The usual ways, the most likely first."""
    if loss_fn is None:
        if room:
            yield Calling(True, "own")
        yield Calling(False, "own")
        return
    if several or wants_model(loss_fn):
        yield Calling(False, "whole")
        return
    known = isinstance(loss_fn, nn.Module) and type(loss_fn).__module__.startswith("torch.nn")
    for kind in ("prediction", "raw", "flat") if known else ("raw", "prediction", "flat"):
        yield Calling(False, kind)
    if room:
        for kind in ("raw", "prediction", "flat"):
            yield Calling(True, kind)


def flattened(output: Tensor, targets: Any) -> tuple[Tensor, Any]:
    """Logits of every position as one long batch, if the targets are one class per position."""
    if isinstance(targets, Tensor) and output.dim() > 2 and output.shape[:-1] == targets.shape:
        return output.flatten(0, -2), targets.flatten()
    return output, targets
