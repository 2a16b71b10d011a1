"""The learning-rate range test: raise the learning rate from nearly zero until the loss rises, and read the curve.

The usual test (Smith 2015, fast.ai) fails in known ways, which are handled here:

- The loss of each step's own batch is noisy. Here the curve is the loss of the same few batches throughout, with the
  same dropout.
- The learning rate rises quickly and momentum lags behind, so the lowest loss is reached at learning rates too high
  for training. Here candidate learning rates are tried for some steps each, from the same weights and on the same
  batches, and the best one is suggested.
- Trailing smoothing shifts the curve to higher learning rates. Here smoothing is centered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdoctor.checks import calling
from torchdoctor.checks.loading import as_batch, drawn_from, usual_loss
from torchdoctor.checks.lr_curve import read_curve
from torchdoctor.checks.lr_search import search
from torchdoctor.checks.nested import moved
from torchdoctor.checks.subject import Subject
from torchdoctor.checks.untouched import Memory, untouched
from torchdoctor.errors import PatientError
from torchdoctor.records import number_text
from torchdoctor.series import Array

STOP = 4.0
"""The sweep ends when the loss reaches this multiple of the first one."""
PROBES = 4
"""Batches on which the loss is measured."""
FEWEST = 20
"""Fewest steps of a sweep or a trial."""


@dataclass(frozen=True)
class LrRange:
    """The result of a range test."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    """The loss of each step's own batch, before the step."""
    measured: tuple[float, ...]
    """The loss of the same batches throughout, after each step."""
    smoothed: tuple[float, ...]
    steepest: float | None
    """The learning rate at which the loss falls fastest."""
    maximum: float | None
    """The highest safe learning rate: beyond it the loss rises, or a trial did worse."""
    suggestion: float | None
    """The learning rate to train with; None if the loss fell at none."""
    stopped: str
    """Why the sweep ended."""
    trials: tuple[tuple[float, float], ...] = ()
    """(learning rate, loss at the end) of each trial."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("suggestion", "steepest", "maximum", "stopped", "lrs", "losses", "measured", "smoothed")
        found = {name: _plain(getattr(self, name)) for name in names}
        return found | {"trials": [list(pair) for pair in self.trials], "notes": list(self.notes)}

    def __str__(self) -> str:
        if self.suggestion is None:
            lines = [f"No learning rate is suggested: {self.stopped}."]
        else:
            lines = [f"Suggested learning rate: {self.suggestion:.2g}"]
            lines.append(f"Steepest descent at {self.steepest:.2g}, safe maximum {self.maximum:.2g}.")
            lines.append(f"The sweep of {len(self.lrs)} steps ended because {self.stopped}.")
        lines += [f"Note: {note}." for note in self.notes]
        return "\n".join(lines)

    def save(self, path: str | Path) -> Path:
        """Draw the curve: .png (needs matplotlib) or .html."""
        from torchdoctor.reports.plots import lr_range_figure, save

        return save(lr_range_figure(self.to_dict()), Path(path))


def lr_range(
    model: Any,
    loss_fn: Any = None,
    batches: Any = None,
    optimizer: Any = None,
    *,
    start: float = 1e-7,
    end: float = 10.0,
    steps: int = 200,
    trials: int = 100,
) -> LrRange:
    """Find a learning rate: sweep from `start` to `end`, then try candidates for `trials` steps each.

    `batches` is what the loop trains on: a loader, a list of batches, or one batch. Without an optimizer AdamW is used.
    Model, optimizer, loader and random state are left exactly as they were found. `trials=0` only reads the curve.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(64, 4)
    >>> found = lr_range(torch.nn.Linear(4, 1), torch.nn.MSELoss(), (x, x.sum(1, keepdim=True)), steps=60, trials=20)
    >>> 1e-3 < found.suggestion < 10
    True
    """
    if not (0 < start < end and math.isfinite(end)) or steps < FEWEST:
        raise PatientError(f"start must be above 0 and below end, and steps at least {FEWEST}.")
    if batches is None:
        raise PatientError("a range test needs data: a loader, a list of batches, or one batch.")
    with untouched(*drawn_from(batches)):
        sweep = _Sweep.of(model, loss_fn, batches, optimizer)
    memory = Memory([*sweep.subject.things, sweep.optimizer, *drawn_from(batches)])
    try:
        return sweep.run(memory.restore, np.geomspace(start, end, steps), trials)
    finally:
        memory.restore()


@dataclass
class _Sweep:
    """Training steps at given learning rates."""

    subject: Subject
    optimizer: torch.optim.Optimizer
    batches: Iterable[Any]
    shares: list[float]
    """Of each parameter group, its learning rate relative to the highest."""
    probes: list[Any]
    notes: tuple[str, ...]
    lost: float = math.inf
    """Loss from which training counts as diverged."""

    @classmethod
    def of(cls, model: Any, loss_fn: Any, batches: Any, optimizer: Any) -> _Sweep:
        batch, loader = as_batch(batches, "batches")
        source = [batch] if loader is None else loader
        loss_fn = usual_loss(model, batch) if loss_fn is None else loss_fn
        subject = Subject.of(model, loss_fn, batch, optimizer)
        subject.find_calling()
        if subject.broken or subject.no_loss:
            raise PatientError(f"the loss cannot be computed: {subject.broken or subject.no_loss}.")
        if len(subject.optimizers) > 1:
            raise PatientError("there are several optimizers: test one model with its own optimizer at a time.")
        trainable = [parameter for parameter in subject.parameters.values() if parameter.requires_grad]
        if not trainable:
            raise PatientError("no parameter requires a gradient: there is nothing to train.")
        notes = []
        if not subject.optimizers:
            notes.append("no optimizer was given, so AdamW was used; other optimizers need other learning rates")
        used = subject.optimizers[0] if subject.optimizers else torch.optim.AdamW(trainable)
        rates = [float(group["lr"]) for group in used.param_groups]
        shares = [rate / max(rates) for rate in rates] if min(rates) > 0 else [1.0] * len(rates)
        probes = [item for item, _ in zip(_endless(source), range(PROBES), strict=False)]
        if loader is None or (hasattr(source, "__len__") and len(source) < 2):
            probes = probes[:1]
            notes.append("there was only one batch: a learning rate that memorizes it may not suit all data")
        return cls(subject, used, source, shares, probes, tuple(notes))

    def run(self, restore: Callable[[], None], rates: Array, trials: int) -> LrRange:
        lrs, losses, measured, stopped = self._swept(rates)
        curve = read_curve(np.array(lrs), np.array(measured))
        tried: tuple[tuple[float, float], ...] = ()
        suggestion, maximum = curve.suggestion, curve.maximum
        if suggestion is None:
            stopped = f"the loss did not fall from {number_text(measured[0])} at any learning rate; {stopped}"
        elif trials:
            # Batches may differ a lot in loss: the first steps, at tiny learning rates, show by how much.
            self.lost = max(self.lost, STOP * max(losses[: max(1, len(losses) // 10)]))
            found = search(partial(self._trial, restore), suggestion, max(trials, FEWEST), measured[0])
            if any(math.isfinite(loss) for _, loss in found.trials):
                suggestion, maximum, tried = found.suggestion, found.maximum, found.trials
        return LrRange(
            tuple(lrs),
            tuple(losses),
            tuple(measured),
            tuple(curve.smoothed.tolist()),
            curve.steepest,
            maximum,
            suggestion,
            stopped,
            tried,
            self.notes,
        )

    def _swept(self, rates: Array) -> tuple[list[float], list[float], list[float], str]:
        first = self._measured()
        if not math.isfinite(first):
            raise PatientError(f"the loss is {first} before the first step. `torchdoctor check` finds out why.")
        self.lost = first + (STOP - 1) * max(abs(first), 1e-12)
        lrs, losses, measured, best = [], [], [], first
        for lr, batch in zip(rates.tolist(), _endless(self.batches), strict=False):
            losses.append(self._step(batch, lr))
            lrs.append(lr)
            measured.append(self._measured())
            best = min(best, measured[-1])
            if not math.isfinite(losses[-1]) or not math.isfinite(measured[-1]):
                return lrs, losses, measured, f"the loss was not finite at {lr:.2g}"
            if measured[-1] > max(self.lost, first + (STOP - 1) * (first - best)):
                return lrs, losses, measured, f"the loss diverged at {lr:.2g}"
        return lrs, losses, measured, f"it reached {rates[-1]:.2g}"

    def _trial(self, restore: Callable[[], None], lr: float, steps: int) -> float:
        """The loss after so many steps, with warm-up and decay to zero as in a real run; infinite if diverged."""
        restore()
        warmup = max(1, steps // 20)
        for step, batch in zip(range(steps), _endless(self.batches), strict=False):
            done = (step - warmup) / max(1, steps - warmup)
            share = (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * done))
            # Without this test, the decay would repair runs that such a learning rate ruins.
            if not self._step(batch, lr * share) < self.lost:
                return math.inf
        found = self._measured()
        return found if math.isfinite(found) else math.inf

    def _step(self, batch: Any, lr: float) -> float:
        for group, share in zip(self.optimizer.param_groups, self.shares, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * share)
            else:
                group["lr"] = lr * share
        self.subject.model.train()
        loss = self._loss(batch)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())

    def _loss(self, batch: Any) -> Tensor:
        inputs, targets, _ = calling.split(moved(batch, self.subject.device))
        return self.subject.loss(inputs, targets)

    def _measured(self) -> float:
        """The loss of the same batches with the same dropout at every step."""
        device = self.subject.device
        devices = [device] if device.type == "cuda" else []
        self.subject.model.train()
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(0)
            return float(sum(float(self._loss(batch)) for batch in self.probes) / len(self.probes))


def _endless(source: Iterable[Any]) -> Iterator[Any]:
    while True:
        begun = False
        for batch in source:
            begun = True
            yield as_batch(batch, "batches")[0]
        if not begun:
            return


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def optimizer_named(name: str, model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    """An optimizer of `torch.optim` over the trainable parameters; a range test ignores its learning rate."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    made: torch.optim.Optimizer = getattr(torch.optim, name)(trainable, lr=1e-3, **options)
    return made
