"""A model with its loss, a batch and an optimizer, and the ways to run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.checks import calling
from torchdoctor.checks.calling import Calling
from torchdoctor.checks.nested import first, leading, moved, tensors
from torchdoctor.checks.untouched import untouched
from torchdoctor.errors import PatientError
from torchdoctor.vitals.patient import listed_optimizers, named_models, unwrap_model

Watcher = Callable[[str, nn.Module, Any, Any], None]
NO_GRAPH = "does not require grad"
"""Text of torch's error for a derivative while gradients are disabled."""


@dataclass
class Runnable:
    """A model with all that is needed to run it. Made by `of`.

    Checks may change it freely: the check-up restores everything after each of them.
    """

    models: Mapping[str, nn.Module]
    loss_fn: Any
    inputs: Any
    """The inputs of the batch, as the model takes them: a tensor, a tuple of arguments or a dict of keywords."""
    targets: Any
    """Its targets; None if there are none."""
    optimizers: list[Optimizer] = field(default_factory=list)
    scheduler: Any = None
    loader: Any = None
    validation: Any = None
    """A validation batch, in the form of the batch."""
    target_key: str | None = None
    batch_type: type = tuple
    whole: int = 0
    """Samples in the batch as given; `samples` may be fewer."""
    whole_size: int = 0
    """Numbers or tokens in the inputs of the batch as given."""
    given: tuple[Any, Any] = (None, None)
    """Inputs and targets as given, for checks that read the data without running the model."""
    memory: int | None = None
    """The requested memory limit in bytes."""
    quick: bool = False
    deadline: float = float("inf")
    calling: Calling = Calling(False, "raw")
    broken: str = ""
    """Why the model does not run on the batch; empty if it does."""
    no_loss: str = ""
    """Why no loss can be computed; empty if it can."""
    needs_graph: bool = False
    """Whether model or loss compute derivatives themselves (forces, a differential equation) and so need gradients."""
    hindrance: str = ""
    """What a check found that prevents later ones from running; empty if nothing does."""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, model: Any, loss_fn: Any = None, batch: Any = None, optimizer: Any = None, **more: Any) -> Self:
        """A subject from a user's objects; the batch is copied to the model's device, so the original is unchanged.

        >>> batch = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
        >>> subject = Runnable.of(nn.Linear(3, 2), nn.CrossEntropyLoss(), batch)
        >>> subject.samples, bool(subject.loss() < 2)
        (4, True)
        """
        models = {name: unwrap_model(item) for name, item in named_models(model).items()}
        lazy = [name for item in models.values() for name, p in item.named_parameters() if _is_lazy(p)]
        if lazy:
            raise PatientError(f"{lazy[0]} has no shape yet: run a lazy model on one batch before the check-up.")
        if batch is None:
            raise PatientError(
                "a check-up needs a batch: (inputs, targets) or a dict, as the training loader yields it."
            )
        optimizers = [] if optimizer is None else listed_optimizers(optimizer)
        device = next(p.device for item in models.values() for p in item.parameters())
        inputs, targets, key = calling.split(moved(batch, device))
        subject = cls(models, loss_fn, inputs, targets, optimizers, target_key=key, batch_type=type(batch), **more)
        subject.whole = subject.samples
        subject.whole_size = subject.size
        subject.given = inputs, targets
        return subject

    def find_calling(self) -> None:
        """Find out how the model and the loss are called, and whether they run at all."""
        several = len(self.models) > 1
        room = not several and calling.room_for_targets(self.model, self.inputs, self.target_key)
        room = room and self.targets is not None
        reasons: list[tuple[Calling, str]] = []
        for way in calling.ways(self.loss_fn, several, room):
            self.calling = way
            try:
                self._try()
            except Exception as error:  # noqa: BLE001  a user's model may raise anything
                reasons.append((way, _reason(error)))
            else:
                return
        self.calling = reasons[0][0]
        if self.calling.loss == "whole":
            self.broken = self.no_loss = reasons[0][1]
            return
        for way in dict.fromkeys(Calling(item.feeds_targets, item.loss) for item, _ in reasons):
            self.calling = way
            try:
                with self.fresh(), torch.no_grad():
                    self.forward()
            except Exception as error:  # noqa: BLE001
                self.broken = self.broken or _reason(error)
            else:
                self.broken = ""
                break
        self.no_loss = next((text for way, text in reasons if way == self.calling), reasons[0][1])

    def _try(self) -> None:
        self.needs_graph = False
        with self.fresh(), torch.no_grad():
            torch.manual_seed(0)
            try:
                self.loss()
            except RuntimeError as error:
                if NO_GRAPH not in str(error):
                    raise
                self.needs_graph = True
                self.loss()

    # ── running it ───────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def model(self) -> nn.Module:
        """The model; several models are combined into a `ModuleDict`."""
        return next(iter(self.models.values())) if len(self.models) == 1 else nn.ModuleDict(dict(self.models))

    def evaluate(self) -> None:
        """Switch to eval mode; the check-up restores the mode."""
        self.model.train(False)

    def forward(self, inputs: Any = None, targets: Any = None) -> Any:
        """The model's output, on other inputs if they are given."""
        with torch.set_grad_enabled(self.needs_graph or torch.is_grad_enabled()):
            return self._forward(inputs, targets)

    def _forward(self, inputs: Any, targets: Any) -> Any:
        if len(self.models) > 1:
            raise RuntimeError(
                "there are several models and no loss that calls them: pass loss_fn(models, batch), which runs them all"
            )
        if inputs is None:
            inputs, targets = self.inputs, self.targets if targets is None else targets
        if not self.calling.feeds_targets:
            return calling.feed(self.model, inputs)
        targets = self.fitting_targets(inputs) if targets is None else targets
        if isinstance(inputs, Mapping):
            return calling.feed(self.model, inputs, **{self.target_key or "targets": targets})
        return calling.feed(self.model, inputs, targets)

    def loss(self, inputs: Any = None, targets: Any = None) -> Tensor:
        """The loss on the batch, or on another one: one number, with its graph."""
        with torch.set_grad_enabled(self.needs_graph or torch.is_grad_enabled()):
            return self._loss(inputs, targets)

    def _loss(self, inputs: Any, targets: Any) -> Tensor:
        if inputs is None:
            inputs, targets = self.inputs, self.targets if targets is None else targets
        elif targets is None:
            targets = self.fitting_targets(inputs)
        if self.calling.loss == "whole":
            models = self.model if len(self.models) == 1 else dict(self.models)
            return calling.total(self.loss_fn(models, self.batch_of(inputs, targets)))
        return self.loss_of(self.forward(inputs, targets), targets, inputs)

    def loss_of(self, output: Any, targets: Any = None, inputs: Any = None) -> Tensor:
        """The loss of an output that is already computed."""
        targets = self.targets if targets is None else targets
        if self.calling.loss == "own":
            found = calling.own_loss(output)
            if found is None:
                raise TypeError(
                    f"the model returns {_described(output)} without a loss, and no loss function was given"
                )
            return found
        if self.calling.loss != "raw":
            output = calling.prediction(output)
            if output is None:
                raise TypeError("the model's output holds no tensor from which a loss could be computed")
        if self.calling.loss == "flat":
            output, targets = calling.flattened(output, targets)
        if targets is None and not calling.takes_targets(self.loss_fn):
            return calling.total(self.loss_fn(output))
        if targets is None:  # a reconstruction
            targets = self.inputs if inputs is None else inputs
        return calling.total(self.loss_fn(output, targets))

    def prediction(self, output: Any = None) -> Tensor | None:
        """The tensor in an output (by default the batch's) that is the prediction."""
        return calling.prediction(self.forward() if output is None else output)

    def gradients(self, loss: Tensor | None = None) -> dict[str, Tensor | None]:
        """The gradient of every trainable parameter by name, None if the loss does not depend on it."""
        for parameter in self.parameters.values():
            parameter.grad = None
        (self.loss() if loss is None else loss).backward()  # type: ignore[no-untyped-call]
        found = {name: _dense(p.grad) for name, p in self.parameters.items() if p.requires_grad}
        for parameter in self.parameters.values():
            parameter.grad = None
        return found

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Call `watcher(name, module, args, output)` for each module that runs inside."""
        handles = []
        for name, module in self.modules.items():
            hook = _hook(name, watcher)
            handles.append(module.register_forward_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def running(self, names: list[str]) -> Iterator[None]:
        """Keep the names of the running modules in a list, the innermost last."""
        handles: list[Any] = []

        def enters(name: str) -> Callable[[nn.Module, Any], None]:
            return lambda module, args: names.append(name)

        def leaves(module: nn.Module, args: Any, output: Any) -> None:
            if names:
                names.pop()

        for name, module in self.modules.items():
            handles.append(module.register_forward_pre_hook(enters(name)))
            handles.append(module.register_forward_hook(leaves, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def fresh(self) -> AbstractContextManager[None]:
        """A context after which everything is restored."""
        return untouched(*self.things)

    def sized(self, samples: int) -> Self:
        """The subject with only the first samples."""
        inputs, targets = first(self.inputs, samples, self.samples), first(self.targets, samples, self.samples)
        return replace(self, inputs=inputs, targets=targets)

    def batch_of(self, inputs: Any, targets: Any) -> Any:
        """Inputs and targets in the form in which the batch was given."""
        if isinstance(inputs, Mapping) and self.target_key:
            return {**inputs, self.target_key: targets}
        if issubclass(self.batch_type, tuple | list) and targets is not None:
            parts = [*inputs, targets] if isinstance(inputs, tuple) else [inputs, targets]
            return parts if issubclass(self.batch_type, list) else tuple(parts)
        return inputs

    def fitting_targets(self, inputs: Any) -> Any:
        """Targets for other inputs: the batch's if they fit, else the same values repeated to the right shape."""
        if self.targets is None or inputs is self.inputs:
            return self.targets
        old, new, target = leading(self.inputs), leading(inputs), self.targets
        if old is None or new is None or not isinstance(target, Tensor) or old.shape == new.shape or not target.dim():
            return target
        shape = list(target.shape)
        for axis in range(min(len(shape), old.dim(), new.dim())):
            if shape[axis] == old.shape[axis]:
                shape[axis] = new.shape[axis]
        flat = target.flatten()
        count = int(torch.Size(shape).numel())
        return flat.repeat(-(-count // max(1, flat.numel())))[:count].view(shape)

    @property
    def seconds_left(self) -> float:
        """The remaining time of the check-up."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def things(self) -> tuple[Any, ...]:
        """Everything that a check may change."""
        return (
            dict(self.models),
            self.optimizers,
            self.scheduler,
            self.loss_fn,
            self.inputs,
            self.targets,
            self.loader,
            self.validation,
        )

    # ── its parts ────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by name; a shared one appears once."""
        return {
            f"{prefix}.{name}" if prefix else name: parameter
            for prefix, model in self.models.items()
            for name, parameter in model.named_parameters()
        }

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """All modules by name, the model itself as "model" or by its own name."""
        return {
            ".".join(filter(None, (prefix, name))) or "model": module
            for prefix, model in self.models.items()
            for name, module in model.named_modules()
        }

    @property
    def samples(self) -> int:
        """Samples in the batch: the first dimension of its inputs, or 1."""
        found = leading(self.inputs)
        return int(found.shape[0]) if found is not None and found.dim() else 1

    @property
    def size(self) -> int:
        """Numbers or tokens in the first input."""
        found = leading(self.inputs)
        return 1 if found is None else found.numel()

    @cached_property
    def divisible(self) -> bool:
        """Whether part of the samples is a valid batch: every tensor has one entry per sample, and none is a graph."""
        found = list(tensors((self.inputs, self.targets)))
        kept = [item for model in self.models.values() for item in model.buffers() if item.shape[:1] == (self.samples,)]
        square = (
            item.dim() == 2 and item.is_floating_point() and item.shape[0] == item.shape[1] for item in found + kept
        )
        return bool(found) and not any(square) and all(item.shape[0] == self.samples for item in found)

    @cached_property
    def device(self) -> torch.device:
        """The model's device."""
        return next(iter(self.parameters.values())).device


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _is_lazy(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, nn.UninitializedParameter)


def _hook(name: str, watcher: Watcher) -> Callable[[nn.Module, Any, Any], None]:
    return lambda module, args, output: watcher(name, module, args, output)


def _reason(error: Exception) -> str:
    """An error in the user's code, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"
