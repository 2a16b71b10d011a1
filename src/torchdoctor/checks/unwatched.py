"""Detaches a doctor that watches the model while it is checked, because a check-up is not training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from torchdoctor.checks.subject import Subject
from torchdoctor.vitals import roots, taps


@contextmanager
def unwatched(subject: Subject) -> Iterator[None]:
    """Remove the doctor's own hooks from a subject, and restore them in the same order."""
    tables = list(_tables(subject))
    kept = [dict(table) for table in tables]
    told: tuple[list[Any], ...] = (taps._listeners, roots._watchers, roots._followers)
    listeners = [(known, known[:]) for known in told]
    for table in tables:
        for key in [key for key, hook in table.items() if _is_ours(hook)]:
            del table[key]
    for known, _ in listeners:
        known.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, kept, strict=True):
            table.clear()
            table.update(hooks)
        taps.take_recent()
        for known, before in listeners:
            known[:] = before


def _is_ours(hook: object) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return home.startswith("torchdoctor.vitals")


def _tables(subject: Subject) -> Iterator[dict[Any, Any]]:
    """Every table of hooks."""
    loss = subject.loss_fn
    modules = [*subject.modules.values(), *(loss.modules() if isinstance(loss, nn.Module) else ())]
    for owner in (*modules, *subject.optimizers):
        yield from (value for name, value in vars(owner).items() if name.endswith("_hooks") and isinstance(value, dict))
    for parameter in subject.parameters.values():
        if isinstance(hooks := getattr(parameter, "_post_accumulate_grad_hooks", None), dict):
            yield hooks
