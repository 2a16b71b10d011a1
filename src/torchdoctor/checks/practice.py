"""A short training on the batch, for checks that examine its result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import nn

from torchdoctor.checks.subject import Subject


class Practice:
    """Trains a subject in place, with Adam.

    >>> subject = Subject.of(nn.Linear(2, 1), nn.MSELoss(), (torch.ones(2, 2), torch.ones(2, 1)))
    >>> losses = Practice(subject, 0.1).go_on(30)
    >>> losses[-1] < losses[0]
    True
    """

    def __init__(self, subject: Subject, rate: float = 3e-3) -> None:
        self._subject = subject
        self._parameters = list(trainable(subject))
        self._optimizer = torch.optim.Adam(self._parameters, lr=rate)

    def go_on(self, steps: int, end: float = math.inf) -> list[float]:
        """The losses of some more steps: fewer if a loss is not finite or time is up."""
        self._subject.model.train()
        losses: list[float] = []
        while len(losses) < steps:
            self._optimizer.zero_grad()
            loss = self._subject.loss()
            value = float(loss.detach())
            if not math.isfinite(value) or not loss.requires_grad:
                break
            losses.append(value)
            loss.backward()  # type: ignore[no-untyped-call]
            for parameter in self._parameters:
                if parameter.grad is not None and parameter.grad.is_sparse:  # clipping and Adam need dense gradients
                    parameter.grad = parameter.grad.to_dense()
            nn.utils.clip_grad_norm_(self._parameters, 1.0)
            self._optimizer.step()
            if time.monotonic() > end:
                break
        self._optimizer.zero_grad()
        return losses


def trainable(subject: Subject) -> Iterator[nn.Parameter]:
    """The trainable parameters of the model, and of the loss if it has any."""
    seen: set[int] = set()
    for module in (subject.model, subject.loss_fn):
        for parameter in module.parameters() if isinstance(module, nn.Module) else ():
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
