"""What the first training batch shows of a run: its size, its precision, and the data set that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from torchdoctor.guard import guarded
from torchdoctor.records import Record
from torchdoctor.vitals.clock import Clock
from torchdoctor.vitals.context import batch_facts, data_facts
from torchdoctor.vitals.hooks import Handle, Hook


class FirstBatch:
    """Hooks on the models until the first training batch; `emit` takes the record of what it shows."""

    def __init__(
        self,
        models: Iterable[nn.Module],
        clock: Clock,
        emit: Callable[[Sequence[Record]], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._models, self._clock, self._emit, self.failed = list(models), clock, emit, failed
        self._handles: list[Handle] = []
        self._data: dict[str, Any] = {}
        """The facts of the loader that began last."""

    def attach(self) -> None:
        """Put the hooks on."""
        for model in self._models:
            self._handles.append(model.register_forward_pre_hook(Hook(self, "first_batch"), with_kwargs=True))

    def detach(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @guarded
    def first_batch(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Read batch size and precision from the first forward pass, then remove this hook."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # batches of an evaluation may differ
            return
        self.detach()
        facts = batch_facts((args, kwargs))
        if facts:
            if self._data.get("batch_size") == facts["batch_size"]:
                facts |= self._data
            self._emit([{"type": "context", "step": self._clock.label(self._clock.count), "context": facts}])

    def loader_begins(self, loader: Any) -> None:
        """The first training batch comes from the loader that began last before it: read its facts now."""
        if self._handles:
            self._data = data_facts(loader)
