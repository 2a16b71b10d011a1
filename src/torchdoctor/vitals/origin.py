"""Where does a non-finite value come from? Asked once, at the first forward pass after one was seen.

Hooks on every module would cost each step; so they are put on for a single training pass when gradients or losses have
turned non-finite, and taken off again. What they find tells a bad input from broken weights and from a module that
makes the value itself; and, where all that the model was given and holds is finite, from arithmetic between modules.
Inside a compiled model there is nothing to hook: then nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.context import tensors_in
from torchdoctor.vitals.hooks import Handle, Hook
from torchdoctor.vitals.patient import unwrap_model

MOST_MODULES = 2000


class OriginSearch:
    """One armed forward pass: flags on the device, in order of execution, read together at the end."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._models = models
        self._handles: list[Handle] = []
        self._names: dict[int, str] = {}
        self._found: list[tuple[str, str]] = []
        self._flags: list[Tensor] = []
        self._entries = 0
        """Tensors that whole models were given."""

    @property
    def armed(self) -> bool:
        """Whether the hooks are on."""
        return bool(self._handles)

    def arm(self) -> None:
        """Put hooks on every leaf module that runs eagerly."""
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
        """What a whole model is given, and holds beside its layers' own: tokens are finite, and count as well."""
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
                    self._found.append((name, kind))
                    self._flags.append(torch.isfinite(tensor.detach()).all())

    def disarm(self) -> dict[str, Any] | None:
        """Take the hooks off and say where the first non-finite value was: module and kind, None if all was finite."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        flags, found, entered = self._flags, self._found, self._entries > 0
        self._flags, self._found, self._entries = [], [], 0
        if not flags:
            return None
        device = flags[0].device
        # A wait for the device, once, after training has already gone wrong.
        finite = torch.stack([flag.to(device) for flag in flags]).tolist()
        broken = ""
        for (module, kind), fine in zip(found, finite, strict=True):
            if kind == "entry":
                entered = entered and fine
            elif kind == "held":
                broken = broken or ("" if fine else module)
            elif not fine and kind == "input" and entered:
                return {"module": broken or module, "kind": "weights" if broken else "between"}
            elif not fine:
                return {"module": module, "kind": kind}
        return None
