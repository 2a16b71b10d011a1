"""Finds where a non-finite value comes from, at the first forward pass after one was seen.

Hooks on every module would cost time at each step. So they are put on for a single training pass when gradients or
losses have become non-finite, and taken off again. The search separates a bad input from broken weights and from a
module that makes the value itself. If all inputs and weights are finite, the value comes from arithmetic between
modules. Broken weights are named: one update with a non-finite gradient breaks all trainable weights and points to
none; if only a few are broken, or some that do not learn, it started there. A compiled model has nothing to hook
inside, so nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.context import tensors_in
from torchdoctor.vitals.graph_nodes import HEAD, parents_of
from torchdoctor.vitals.hooks import Handle, Hook
from torchdoctor.vitals.loss_graph import undefined_operation
from torchdoctor.vitals.patient import tensor_names, unwrap_model

MOST_MODULES = 2000
MOST_NAMES = 8
"""Maximum number of broken weights that are named."""


class OriginSearch:
    """One armed forward pass: flags on the device, in order of execution, read together at the end."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._models = models
        self._handles: list[Handle] = []
        self._names: dict[int, str] = {}
        self._weights: dict[Tensor, str] = {}
        self._found: list[tuple[str, str, Tensor]] = []
        self._flags: list[Tensor] = []
        self._undefined: dict[str, str] = {}
        """Modules with an operation that is undefined for some finite inputs, and that operation."""
        self._entries = 0
        """Tensors that whole models got as input."""

    @property
    def armed(self) -> bool:
        """Whether the hooks are on."""
        return bool(self._handles)

    def arm(self) -> None:
        """Put hooks on every leaf module that runs eagerly."""
        self._weights = tensor_names(self._models, ())
        for prefix, model in self._models.items():
            if model is not unwrap_model(model) and type(model).__name__ == "OptimizedModule":
                continue
            hook = Hook(self, "_entered")
            self._handles.append(unwrap_model(model).register_forward_pre_hook(hook, with_kwargs=True))
            for name, module in unwrap_model(model).named_modules():
                if any(True for _ in module.children()) or len(self._handles) >= MOST_MODULES:
                    continue
                full = ".".join(part for part in (prefix, name) if part) or type(module).__name__
                self._names[id(module)] = full
                self._handles.append(module.register_forward_hook(Hook(self, "_passed")))

    def _entered(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Look at a whole model's inputs and at parameters outside its layers; tokens count as finite inputs."""
        given = [*tensors_in(args), *tensors_in(kwargs)]
        self._entries += len(given)
        self._look("", "entry", given)
        for name, module in model.named_modules():
            if any(True for _ in module.children()):
                self._look(name or type(model).__name__, "held", list(module.parameters(recurse=False)))

    def _passed(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            return
        weights = [tensor for tensor in module.parameters(recurse=False)]
        for kind, tensors in (("input", tensors_in(inputs)), ("weights", weights), ("output", tensors_in(output))):
            self._look(name, kind, tensors)
        if len(self._undefined) < MOST_NAMES and (operation := _undefined(inputs, output)):
            self._undefined.setdefault(name, operation)

    def _look(self, name: str, kind: str, tensors: Iterable[Tensor]) -> None:
        if (
            torch.compiler.is_compiling()
            or torch._C._current_graph_task_id() != -1
            or len(self._flags) > 3 * MOST_MODULES
        ):
            return
        with torch.no_grad():
            for tensor in tensors:
                if tensor.is_floating_point() and not tensor.is_sparse:
                    self._found.append((name, kind, tensor))
                    self._flags.append(torch.isfinite(tensor.detach()).all())

    def disarm(self) -> dict[str, Any] | None:
        """Take the hooks off; returns module and kind of the first non-finite value, or None if all were finite."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        flags, found, entered, names = self._flags, self._found, self._entries > 0, self._weights
        undefined = self._undefined
        self._flags, self._found, self._entries, self._weights, self._undefined = [], [], 0, {}, {}
        if not flags:
            return None
        device = flags[0].device
        # This waits for the device, once, after training has already failed.
        finite = torch.stack([flag.to(device) for flag in flags]).tolist()
        pairs = list(zip(found, finite, strict=True))
        spoilt = {item[2]: names[item[2]] for item, fine in pairs if not fine and item[2] in names}
        broken = ""
        for (module, kind, _), fine in pairs:
            if kind == "entry":
                entered = entered and fine
            elif kind == "held":
                broken = broken or ("" if fine else module)
            elif not fine and kind == "input" and entered:
                held = {"module": broken, **_weights(spoilt, undefined)}
                return held if broken else {"module": module, "kind": "between"}
            elif not fine and kind == "weights":
                return {"module": module, **_weights(spoilt, undefined)}
            elif not fine:
                return {"module": module, "kind": kind}
        return None


def _weights(spoilt: Mapping[Tensor, str], undefined: Mapping[str, str]) -> dict[str, Any]:
    """Describe non-finite weights, those that do not learn first: no update has broken them; and what may have."""
    resting = [name for tensor, name in spoilt.items() if not tensor.requires_grad]
    learning = [name for tensor, name in spoilt.items() if tensor.requires_grad]
    named = (resting or learning)[:MOST_NAMES]
    return {"kind": "weights", "tensors": named, "broken": len(learning), "resting": len(resting)} | (
        {"undefined": dict(undefined)} if undefined else {}
    )


def _undefined(inputs: Any, output: Any) -> str:
    """An operation between a module's inputs and its output that is undefined for some finite inputs; "" if none."""
    waiting = [node for tensor in tensors_in(output) if (node := tensor.grad_fn) is not None]
    seen = {node for tensor in tensors_in(inputs) if (node := tensor.grad_fn) is not None}
    for _ in range(HEAD):
        node = waiting.pop() if waiting else None
        if node is None:
            break
        if node not in seen:
            seen.add(node)
            if operation := undefined_operation(node):
                return operation
            waiting += parents_of(node)
    return ""
