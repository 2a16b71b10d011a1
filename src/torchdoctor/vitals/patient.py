"""What is being watched: models, optimizers and their tensors, with the user's names."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from torchdoctor.errors import PatientError

WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}


@dataclass(frozen=True)
class Setup:
    """What was passed to the doctor."""

    models: Mapping[str, nn.Module]
    optimizers: list[Optimizer]
    """Those that are watched now: the list changes if another one takes over."""
    loss_fn: Any = None
    scheduler: Any = None
    scaler: Any = None
    folder: Path | None = None
    """Folder of the journal."""
    curvature: float = 0.0
    """Share of the run's time that measuring curvature may take."""


def unwrap_model(model: nn.Module) -> nn.Module:
    """The module inside DDP, DataParallel and compiled wrappers, in any nesting."""
    while (attribute := WRAPPERS.get(type(model).__name__)) is not None and hasattr(model, attribute):
        model = getattr(model, attribute)
    return model


def unwrap_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside a wrapper such as Accelerate's or SAM, whose own hooks never or not always fire."""
    seen = [optimizer]
    while (inner := _inner_optimizer(optimizer)) is not None and not any(inner is item for item in seen):
        optimizer = inner
        seen.append(inner)
    return optimizer


def _inner_optimizer(optimizer: Any) -> Optimizer | None:
    """The optimizer that a wrapper holds: as `optimizer`, or by any name if it has the wrapper's parameter groups."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):
        return inner
    groups = getattr(optimizer, "param_groups", None)
    for inner in getattr(optimizer, "__dict__", {}).values() if isinstance(groups, list) and groups else ():
        if isinstance(inner, Optimizer) and inner is not optimizer:
            own: Any = getattr(inner, "param_groups", ())
            if len(own) == len(groups or ()) and all(map(operator.is_, own, groups or ())):
                return inner
    return None


def named_models(model: Any) -> dict[str, nn.Module]:
    """The models by name; a single one has the empty name, so that its tensors keep their own names."""
    if isinstance(model, nn.Module):
        models = {"": model}
    elif isinstance(model, Mapping):
        models = {str(name): item for name, item in model.items()}
    elif isinstance(model, Sequence) and not isinstance(model, str):
        models = {str(index): item for index, item in enumerate(model)}
    else:
        models = {"": model}
    for item in models.values():
        if not isinstance(item, nn.Module):
            raise PatientError(
                f"model must be an nn.Module, or a list or dict of them, not {_kind(item)}. "
                "Pass the module whose parameters the optimizer updates."
            )
    parameters = [tensor for item in models.values() for tensor in item.parameters()]
    if not parameters:
        raise PatientError(
            "the model has no parameters, so there is nothing to watch. Pass the module that is being trained."
        )
    if any(is_lazy(tensor) for tensor in parameters):
        raise PatientError("the model has parameters without a shape: run one batch through a lazy model first.")
    if any(tensor.is_meta and tensor.requires_grad for tensor in parameters) or all(p.is_meta for p in parameters):
        raise PatientError(
            "the model has parameters on the meta device, which hold no values: allocate them first, with "
            "model.to_empty(device=...), load the weights, and build the optimizer from the new parameters."
        )
    names: dict[nn.Module, str] = {}
    for name, item in models.items():
        names.setdefault(item, name)  # one that was passed twice is watched once
    return {name: item for item, name in names.items()}


def _kind(item: Any) -> str:
    return f"the class {item.__name__}" if isinstance(item, type) else type(item).__name__


def listed_optimizers(optimizer: Any) -> list[Optimizer]:
    """The torch optimizers, unwrapped, each once."""
    given = list(optimizer) if isinstance(optimizer, Sequence | set) else [optimizer]
    optimizers = [unwrap_optimizer(item) for item in given]
    for item in optimizers:
        if not isinstance(item, Optimizer):
            raise PatientError(
                f"optimizer must be a torch.optim.Optimizer, or a list of them, not {_kind(item)}. "
                "Pass the object whose step() the loop calls."
            )
        if not (hasattr(item, "param_groups") and hasattr(item, "_optimizer_step_pre_hooks")):
            raise PatientError(
                f"{type(item).__name__} is not ready: its __init__ did not call super().__init__(params, defaults), "
                "so it has no parameter groups."
            )
    if not optimizers:
        raise PatientError("no optimizer was given: pass the one whose step() the loop calls.")
    return list({id(item): item for item in optimizers}.values())


def tensor_names(models: Mapping[str, nn.Module], optimizers: Sequence[Optimizer]) -> dict[Tensor, str]:
    """Every watched tensor and its name: first the models' in order, then those that only an optimizer holds."""
    names: dict[Tensor, str] = {}
    for prefix, model in models.items():
        for name, parameter in unwrap_model(model).named_parameters():
            clean = name.replace("_orig_mod.", "")
            names.setdefault(parameter, f"{prefix}.{clean}" if prefix else clean)
    for number, optimizer in enumerate(optimizers):
        for position, tensor in enumerate(optimizer_tensors(optimizer)):
            names.setdefault(tensor, f"optimizer{number}.parameter{position}")
    return names


def own_tensors(model: nn.Module) -> list[Tensor]:
    """The parameters of a model in any order, some of them twice: ten times faster than naming them."""
    modules = {id(model): model}
    waiting = [model]
    while waiting:
        inner = {id(item): item for item in waiting.pop()._modules.values() if item is not None}
        waiting += [item for key, item in inner.items() if key not in modules]
        modules |= inner
    return [tensor for module in modules.values() for tensor in module._parameters.values() if tensor is not None]


def optimizer_tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    """The tensors of an optimizer, group by group."""
    for group in optimizer.param_groups:
        yield from group["params"]


def matched(models: Mapping[str, nn.Module], optimizers: Sequence[Optimizer], scheduler: Any) -> list[Optimizer]:
    """The optimizers, those of the models first; raises an error if none is, or if the scheduler belongs to none.

    One of several optimizers may hold only other tensors, such as a temperature or a multiplier learned with the
    networks. The first one's learning rate is the run's.
    """
    known = {id(tensor) for model in models.values() for tensor in model.parameters()}
    ordered = sorted(optimizers, key=lambda item: not _holds(item, known))
    driven = getattr(scheduler, "optimizer", None)
    if not _holds(ordered[0], known):
        raise PatientError(
            f"{type(ordered[0]).__name__} holds none of the model's parameters: it was built for another model, or "
            "before the model's parameters were replaced. Build the optimizer from this model's parameters()."
        )
    ours = {id(tensor) for item in ordered if _holds(item, known) for tensor in optimizer_tensors(item)}
    if hasattr(driven, "param_groups") and not _holds(driven, known | ours):
        raise PatientError(
            f"{type(scheduler).__name__} sets the learning rate of another optimizer, which holds none of the model's "
            "parameters. Pass the scheduler of the optimizer that trains this model, or none."
        )
    return ordered


def _holds(optimizer: Any, known: Collection[int]) -> bool:
    """Whether an optimizer holds any of these tensors, given by their ids."""
    return any(id(tensor) in known for tensor in optimizer_tensors(optimizer))


def other_networks(setup: Setup) -> list[str]:
    """Sentences about optimizers that hold none of the models' tensors, but the weights of another network."""
    parts = [*setup.models.values(), *([setup.loss_fn] if isinstance(setup.loss_fn, nn.Module) else [])]
    known = {id(tensor) for part in parts for tensor in part.parameters()}
    return [
        f"a given {type(optimizer).__name__} holds none of the model's parameters, but those of another network: its "
        "settings are recorded, but its network is not watched. Give Doctor that model too, or leave its optimizer out."
        for optimizer in setup.optimizers
        if not _holds(optimizer, known) and sum(tensor.dim() > 1 for tensor in optimizer_tensors(optimizer)) > 1
    ]


def repeated_layers(setup: Setup) -> list[str]:
    """Sentences about lists that hold one layer several times, as `nn.ModuleList([Block()] * 16)` does.

    >>> block, head = nn.Linear(8, 8), nn.Linear(8, 2)
    >>> [text] = repeated_layers(Setup({"": nn.Sequential(*[block] * 3, nn.ReLU(), nn.ReLU(), head)}, ()))
    >>> print(text[:63])
    the model holds the same Linear 3 times, with one set of weight
    """
    found = []
    for name, model in setup.models.items():
        for path, module in unwrap_model(model).named_modules(prefix=name):
            if not isinstance(module, nn.ModuleList | nn.Sequential):
                continue
            for layer, times in Counter(item for item in module._modules.values() if item is not None).items():
                if times > 1 and any(tensor.requires_grad for tensor in layer.parameters()):
                    found.append(
                        f"{path or 'the model'} holds the same {type(layer).__name__} {times} times, with one set of "
                        f"weights for all. If {times} layers were meant, build each one, as in nn.ModuleList(Block() "
                        f"for _ in range({times})); [Block()] * {times} repeats the first."
                    )
    return found
