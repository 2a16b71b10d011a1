"""Faults on purpose: give a training loop a known illness and see whether the alarm goes off.

The loop stays as it is; only faults of the data need one line in it::

    doctor = Doctor(model, optimizer)
    with inject(ScaleGradients(20, at=paper_schedule()), model=model, optimizer=optimizer) as injector:
        for x, y in loader:
            x, y = injector.batch(x, y)      # only for NanBatch and OutlierBatch
            loss_fn(model(x), y).backward()
            optimizer.step(); optimizer.zero_grad()
    print(*injector.log)

Several faults may be given, at the same step too. Steps are the optimizer's, counted from 0 where the ``with``
begins; one that a GradScaler skips does not count. On exit hooks, ``requires_grad``, dropout and learning rates are
as they were; the global random state is never drawn from. Attach what watches the run first, so that it sees a step
before the fault is taken back.

>>> from torchdoctor.clinic import ScaleGradients
>>> model = torch.nn.Linear(2, 1)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> with inject(ScaleGradients(20, at=1), model=model, optimizer=optimizer) as injector:
...     for _ in range(3):
...         model(torch.ones(4, 2)).mean().backward()
...         print(model.bias.grad.item())
...         optimizer.step(); optimizer.zero_grad()
1.0
20.0
1.0
>>> print(*injector.log)
step 1: gradients x 20
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.clinic.faults import Fault, Undo
from torchdoctor.errors import PatientError


def paper_schedule(first: int = 500, every: int = 2000, most: int = 2) -> tuple[int, ...]:
    """The paper's steps: from iteration 500, every 2000, at most two in a run.

    >>> paper_schedule()
    (500, 2500)
    """
    return tuple(first + every * index for index in range(most))


def inject(*faults: Fault, model: nn.Module, optimizer: Optimizer) -> Injector:
    """A context in which the faults happen to the model and optimizer of a loop."""
    return Injector(faults, model, optimizer)


class Injection(NamedTuple):
    """What was done to the run, and when."""

    step: int
    fault: Fault

    def __str__(self) -> str:
        return f"step {self.step}: {self.fault}"


class Injector:
    """Makes faults happen at their steps, and keeps a log of them; made by `inject`."""

    def __init__(self, faults: Sequence[Fault], model: nn.Module, optimizer: Optimizer) -> None:
        if not faults or not all(isinstance(fault, Fault) for fault in faults):
            raise PatientError(f"inject takes one fault or more, such as ScaleGradients(20, at=500), not {faults!r}.")
        if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
            raise PatientError(f"faults need a model with trainable parameters, not {type(model).__name__}.")
        while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):  # wrapped, as by Accelerate
            optimizer = inner
        if not isinstance(optimizer, Optimizer):
            raise PatientError(f"an injector counts the steps of a torch optimizer, not of {type(optimizer).__name__}.")
        for fault in faults:
            fault.check(model)
        self.log: list[Injection] = []
        self.step = 0
        self._faults, self._model, self._optimizer = tuple(faults), model, optimizer
        self._handles: list[Any] = []
        self._lasting: dict[int, Undo] = {}
        self._after_step: list[Undo] = []
        self._tuned = self._corrupted = False

    def __enter__(self) -> Injector:
        # Before accumulation, not after: with micro-batches a hook on .grad would scale earlier contributions again.
        for parameter in self._model.parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._gradient))  # type: ignore[no-untyped-call]
        self._handles.append(self._optimizer.register_step_post_hook(self._stepped))
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        try:
            self._take_back()
        except PatientError:
            if kind is None:  # else the step was interrupted, and that is what the caller must see
                raise
        finally:
            for undo in reversed(self._lasting.values()):
                undo()
            self._lasting.clear()

    def batch(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors of a batch, corrupted if it is their turn; call it on every batch before the forward pass."""
        if not self._corrupted:  # of several micro-batches in a step, one is enough
            for fault in self._active():
                tensors, undo = fault.corrupt(tensors, self._model)
                self._after_step.append(undo)
            self._corrupted = True
        return tensors

    def batches(self, loader: Iterable[Sequence[Tensor]]) -> Iterator[tuple[Tensor, ...]]:
        """The batches of a loader, each passed through `batch`."""
        for tensors in loader:
            yield self.batch(*tensors)

    def _active(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.active(self.step)]

    def _begin(self) -> None:
        """Before the forward pass of a step: start and end what lasts."""
        for number, fault in enumerate(self._faults):
            if fault.active(self.step) and number not in self._lasting:
                self._lasting[number] = fault.begin(self._model)
            elif not fault.active(self.step) and number in self._lasting:
                self._lasting.pop(number)()

    @torch.no_grad()
    def _gradient(self, gradient: Tensor) -> Tensor:
        active = self._active()
        if not self._tuned:  # by the first gradient the scheduler has stepped, and the optimizer has not
            self._after_step += [fault.tune(self._optimizer) for fault in active]
            self._tuned = True
        for fault in active:
            gradient = fault.gradient(gradient)
        return gradient

    def _stepped(self, *_: Any) -> None:
        self._take_back()
        for fault in self._active():
            if fault.in_data and not self._corrupted:
                raise PatientError(
                    f"'{fault}' was due at step {self.step}, but no batch came by: "
                    "write `x, y = injector.batch(x, y)` before the forward pass."
                )
            if self.step in fault.starts:
                self.log.append(Injection(self.step, fault))
        self.step += 1
        self._tuned = self._corrupted = False
        self._begin()

    def _take_back(self) -> None:
        while self._after_step:
            self._after_step.pop()()
