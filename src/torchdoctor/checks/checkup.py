"""The check-up: runs every check in turn, each on the model exactly as it was given."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from torchdoctor.checks import build
from torchdoctor.checks.check import CannotTell, Check
from torchdoctor.checks.indices import indices_in_range
from torchdoctor.checks.nested import leading, moved
from torchdoctor.checks.subject import Subject
from torchdoctor.checks.untouched import Memory
from torchdoctor.checks.unwatched import unwatched
from torchdoctor.errors import check_loss
from torchdoctor.records import CheckResult
from torchdoctor.reports.checkup import Checkup

__all__ = ["Checkup", "checkup"]

BUDGET, QUICK_BUDGET = 60.0, 5.0
PASSES, QUICK_PASSES = 150, 75
"""Passes of the whole batch that must fit the budget; otherwise the batch is reduced."""
SHORTEST = 32
"""Fewest tokens kept of a sequence, if a few whole samples would still take too long."""
FEWEST = 4
"""Samples kept in a reduced batch: enough for BatchNorm and to compare one sample with others."""

Progress = Callable[[str, int, int], None]
"""Called with a check's name, its number from 0, and how many there are."""


def checkup(  # noqa: PLR0913  one call with all that a run consists of
    model: Any,
    loss_fn: Any = None,
    batch: Any = None,
    optimizer: Any = None,
    *,
    scheduler: Any = None,
    loader: Any = None,
    validation: Any = None,
    quick: bool = False,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
    budget: float | None = None,
    memory: int | None = None,
    progress: Progress | None = None,
) -> Checkup:
    """Check a model, its loss and a batch before training; everything is left exactly as it was found.

    Args:
        model: the module to train, or a list or dict of modules.
        loss_fn: ``loss_fn(outputs, targets)``; None if the model returns its loss; ``loss_fn(model, batch)`` if it
            runs the whole step (its first parameter is named so, or there are several models).
        batch: ``(inputs, targets)`` or a dict, as the training loop gets it.
        optimizer: the optimizer, or a list of optimizers, whose parameter groups are checked.
        scheduler: the learning-rate scheduler, so that it is restored like the rest.
        loader: the training data loader, to check duplicates, overlap and loading speed.
        validation: a validation batch in the form of `batch`, to check overlap.
        quick: only the checks that need a pass or two.
        select: only these checks, by name or code.
        ignore: skip these checks.
        thresholds: by check: ``{"overfit-one-batch": {"steps": 200}}``.
        budget: time limit in seconds: 60 by default, 5 if quick; checks that do not fit are reported as skipped.
        memory: bytes that a training pass may take: 1 GB by default.
        progress: called before each check with its name, its number and the number of checks.

    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> result = checkup(net, torch.nn.CrossEntropyLoss(), (torch.randn(8, 8), torch.arange(8) % 3), quick=True)
    >>> result["parameter-initialization"].status
    'passed'
    """
    checks = build(quick=quick, select=select, ignore=ignore, thresholds=thresholds)
    started = time.monotonic()
    seconds = (QUICK_BUDGET if quick else BUDGET) if budget is None else budget
    check_loss(loss_fn)
    subject = Subject.of(
        model,
        loss_fn,
        batch,
        optimizer,
        scheduler=scheduler,
        loader=loader,
        validation=validation,
        memory=memory,
        quick=quick,
        deadline=started + seconds,
    )
    subject.validation = None if validation is None else moved(validation, subject.device)
    results = []
    with unwatched(subject), indices_in_range(subject.device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training loop will show the model's own warnings
        kept = Memory(subject.things)
        try:
            subject = prepared(subject, kept, seconds)
            for number, check in enumerate(checks):
                if progress is not None:
                    progress(check.name, number, len(checks))
                results.append(result_of(check, subject, kept, seconds))
            context = _context(subject, seconds)
        finally:
            kept.restore()
    return Checkup(tuple(results), tuple(subject.notes), context, time.monotonic() - started)


def prepared(subject: Subject, kept: Memory, seconds: float) -> Subject:
    """Find out how the model is called, and reduce the batch to fit the budget."""
    small = subject.sized(FEWEST) if subject.divisible and subject.whole > FEWEST else subject
    small.find_calling()
    if small.broken and small is not subject:  # the model may need a fixed batch size
        subject.find_calling()
        small = subject
    kept.restore()
    if small is subject or small.no_loss:
        subject.calling, subject.broken, subject.no_loss = small.calling, small.broken, small.no_loss
        subject.needs_graph = small.needs_graph
        return subject
    subject.calling, subject.needs_graph = small.calling, small.needs_graph
    allowed = seconds / (QUICK_PASSES if subject.quick else PASSES)
    took = _pass_time(small, kept)
    most = int(FEWEST * allowed / max(took, 1e-9))
    if most >= subject.whole:
        return subject
    if most < FEWEST and small.kind == "language-model" and small.tokens is not None:
        small = _shorter(small, kept, max(SHORTEST, small.tokens.shape[1] * most // FEWEST))
    reduced = small if most < FEWEST else subject.sized(most)
    subject.notes.append(
        f"the batch was reduced from {subject.extent} to {reduced.extent}: a pass over {FEWEST} samples takes "
        f"{took:.2f} s, and the time limit is {seconds:g} s"
    )
    return reduced


def _pass_time(subject: Subject, kept: Memory) -> float:
    """Seconds for a forward and backward pass: the faster of two, because the first one includes one-time costs."""
    times = []
    try:
        for _ in range(2):
            begun = time.monotonic()
            subject.gradients()
            times.append(time.monotonic() - begun)
    except Exception:  # noqa: BLE001  the checks will report it
        return 0.0
    finally:
        kept.restore()
    return min(times)


def _shorter(subject: Subject, kept: Memory, length: int) -> Subject:
    """The subject with sequences cut to a length, if the model accepts that."""
    try:
        short = subject.shortened(length)
        short.loss()
    except Exception:  # noqa: BLE001  a model for a single length
        return subject
    finally:
        kept.restore()
    return short


def result_of(check: Check, subject: Subject, kept: Memory, seconds: float) -> CheckResult:
    """One check's result; any exception makes it skipped with a reason, without a traceback."""
    begun = time.monotonic()

    def skipped(reason: str, **details: Any) -> CheckResult:
        spent = time.monotonic() - begun
        return CheckResult(check.name, check.code, "skipped", reason, seconds=spent, details=details)

    if subject.seconds_left <= 0 and not check.static:
        return skipped(f"the time limit of {seconds:g} s is used up: raise it, or select this check", out_of_time=True)
    try:
        if check.needs_loss and (subject.broken or subject.no_loss):
            return skipped("the model and its loss do not run on the batch: see forward-shapes")
        reason = check.applies(subject)
        if reason is not None:
            return skipped(reason)
        seed()
        outcome = check.run(subject)
    except CannotTell as told:
        return skipped(str(told))
    except Exception as error:  # noqa: BLE001  a user's model may raise anything
        if subject.hindrance:
            return skipped(subject.hindrance)
        text = " ".join(str(error).split())[:300]
        return skipped(f"the check failed to run: {type(error).__name__}{f': {text}' if text else ''}")
    finally:
        kept.restore()
    failed = not outcome.passed
    return CheckResult(
        check.name,
        check.code,
        "failed" if failed else "passed",
        outcome.message,
        outcome.where,
        outcome.advice,
        outcome.severity if failed else None,
        outcome.value,
        outcome.limit,
        time.monotonic() - begun,
        check.suggests if failed else (),
        outcome.details,
    )


def seed(number: int = 0) -> None:
    """Seed every random state, so that a check gives the same result twice."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _context(subject: Subject, seconds: float) -> dict[str, Any]:
    inputs = leading(subject.inputs)
    loss = subject.loss_fn
    return {
        "model": " and ".join(type(item).__name__ for item in subject.models.values()),
        "parameters": sum(item.numel() for item in subject.parameters.values()),
        "kind": subject.kind,
        "device": str(subject.device),
        "loss": None if loss is None else getattr(loss, "__name__", type(loss).__name__),
        "samples": subject.samples,
        "samples_given": subject.whole,
        "input": None if inputs is None else list(inputs.shape),
        "quick": subject.quick,
        "budget_seconds": seconds,
        "memory_limit": subject.memory,
    }
