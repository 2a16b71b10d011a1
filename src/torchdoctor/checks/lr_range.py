"""The learning-rate range test: raise the rate from almost nothing until the loss turns up, and read the curve.

As it is usually done (Smith 2015, fast.ai) it fails in known ways, and each has its remedy here. The loss of each
step's own batch is noisy: the curve is that of the same few batches all the way, measured with the same dropout. The
rate rises so quickly, and momentum remembers so long, that the lowest loss is reached at rates at which training would
not last: the rates that the curve offers are tried, each for some steps from the same weights and over the same
batches, and the best of them is suggested. Smoothing that trails behind moves the curve to higher rates: ours is
centred.
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
"""The sweep ends where the loss is so many times the first one."""
PROBES = 4
"""Batches that the loss is measured on."""
FEWEST = 20
"""Steps of a sweep, and of a trial, that mean anything."""


@dataclass(frozen=True)
class LrRange:
    """What a range test found."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    """Of each step's own batch, before the step."""
    measured: tuple[float, ...]
    """Of the same batches all the way, after each step."""
    smoothed: tuple[float, ...]
    steepest: float | None
    """Where the loss falls most for each step up in rate."""
    maximum: float | None
    """The highest rate that is safe: beyond it the loss turns up, or a trial went worse."""
    suggestion: float | None
    """The rate to train with; None where the loss fell at none."""
    stopped: str
    """Why the sweep ended."""
    trials: tuple[tuple[float, float], ...] = ()
    """(rate, loss at the end) of each rate that was tried."""
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
    """Find a learning rate: sweep from `start` to `end`, then try what the curve offers for `trials` steps each.

    `batches` is what the loop trains on: a loader, a list of batches, or one batch. Without an optimizer AdamW is used.
    Model, optimizer, loader and random state are left exactly as they were found. `trials=0` reads the curve alone.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(64, 4)
    >>> found = lr_range(torch.nn.Linear(4, 1), torch.nn.MSELoss(), (x, x.sum(1, keepdim=True)), steps=60, trials=20)
    >>> 1e-3 < found.suggestion < 10
    True
    """
    if not (0 < start < end and math.isfinite(end)) or steps < FEWEST:
        raise PatientError(f"a sweep goes from a small rate to a larger one in at least {FEWEST} steps.")
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
    """Training steps at rates of our choice."""

    subject: Subject
    optimizer: torch.optim.Optimizer
    batches: Iterable[Any]
    shares: list[float]
    """Of each parameter group, its rate relative to the highest."""
    probes: list[Any]
    notes: tuple[str, ...]
    lost: float = math.inf
    """A loss at which training is taken for lost."""

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
            notes.append("no optimizer was given: AdamW was used; the rate of another is another")
        used = subject.optimizers[0] if subject.optimizers else torch.optim.AdamW(trainable)
        rates = [float(group["lr"]) for group in used.param_groups]
        shares = [rate / max(rates) for rate in rates] if min(rates) > 0 else [1.0] * len(rates)
        probes = [item for item, _ in zip(_endless(source), range(PROBES), strict=False)]
        if loader is None or (hasattr(source, "__len__") and len(source) < 2):
            probes = probes[:1]
            notes.append("there was one batch only: a rate that learns it by heart need not be the best for all data")
        return cls(subject, used, source, shares, probes, tuple(notes))

    def run(self, restore: Callable[[], None], rates: Array, trials: int) -> LrRange:
        lrs, losses, measured, stopped = self._swept(rates)
        curve = read_curve(np.array(lrs), np.array(measured))
        tried: tuple[tuple[float, float], ...] = ()
        suggestion, maximum = curve.suggestion, curve.maximum
        if suggestion is None:
            stopped = f"the loss fell at no rate, from {number_text(measured[0])} on; {stopped}"
        elif trials:
            # Batches of a skewed problem differ: those at rates of nearly nothing show by how much.
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
                return lrs, losses, measured, f"the loss was no number at {lr:.2g}"
            if measured[-1] > max(self.lost, first + (STOP - 1) * (first - best)):
                return lrs, losses, measured, f"the loss diverged at {lr:.2g}"
        return lrs, losses, measured, f"it reached {rates[-1]:.2g}"

    def _trial(self, restore: Callable[[], None], lr: float, steps: int) -> float:
        """The loss after so many steps, with a warm-up and a decay to nothing, as a run would end; infinite if lost."""
        restore()
        warmup = max(1, steps // 20)
        for step, batch in zip(range(steps), _endless(self.batches), strict=False):
            done = (step - warmup) / max(1, steps - warmup)
            share = (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * done))
            # A decay to nothing would heal what a run at this rate would not survive.
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
        """The loss of the same batches with the same dropout, whatever step it is."""
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
    """An optimizer of `torch.optim` over what is trainable in the model; its rate does not matter to a range test."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    made: torch.optim.Optimizer = getattr(torch.optim, name)(trainable, lr=1e-3, **options)
    return made
