"""Others who look at the same runs: what they are given is the run's metrics, what counts is whether they speak.

The packages are optional (``pip install 'torchdoctor[peers]'``). Their findings have names of their own, so they are
judged generously: any finding on a sick run counts as finding the fault, whatever it says; on a healthy run a finding
of warning or above is a false alarm, as ours would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from torchdoctor.records import Record

Row = dict[str, float]
Finding = dict[str, Any]
METRICS = {"loss": "loss", "grad_norm": "grad_norm", "lr": "lr", "val_loss": "val_loss", "g_loss": "loss"}
"""Our vitals, and the names under which a user would log them; of two players, the generator's loss."""


def metrics(records: Iterable[Record]) -> dict[int, Row]:
    """The metrics of a run, step by step.

    >>> metrics([{"type": "vitals", "step": 3, "vitals": {"loss": 2.0, "seconds": 0.1}}])
    {3: {'loss': 2.0}}
    """
    rows: dict[int, Row] = {}
    for record in records:
        if record["type"] in ("vitals", "validation"):
            kept = {METRICS[name]: value for name, value in record["vitals"].items() if name in METRICS}
            if kept:
                rows.setdefault(record["step"], {}).update(kept)
    return rows


def training_doctor(rows: dict[int, Row]) -> list[Finding]:
    """The findings of the PyPI package training-doctor, asked at each step as its documentation shows."""
    from training_doctor import Doctor  # type: ignore[import-not-found,import-untyped,unused-ignore]

    doctor = Doctor()
    found = []
    for step, row in sorted(rows.items()):
        for item in doctor.log(step=step, **row):
            found.append({"name": item.detector_name, "severity": item.severity.value, "step": step})
    return found


def runmedic(rows: dict[int, Row]) -> list[Finding]:
    """The findings of the PyPI package runmedic, which reads the whole of a run's log."""
    from runmedic import roles  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from runmedic.checks import run_checks  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from runmedic.model import Run  # type: ignore[import-not-found,import-untyped,unused-ignore]

    run = Run(name="run", source="jsonl", path="run")
    for step, row in sorted(rows.items()):
        for name, value in row.items():
            run.get(name).add(step, value)
    run.finalize()
    found = run_checks(run, roles.detect(run))
    last = max(rows, default=0)
    return [
        {"name": item.check, "severity": item.severity, "step": last if item.step is None else _whole(item.step, last)}
        for item in found
    ]


def _whole(step: float, last: int) -> int:
    return int(step) if math.isfinite(step) else last


PEERS: dict[str, tuple[str, Callable[[dict[int, Row]], list[Finding]]]] = {
    "training-doctor": ("training_doctor", training_doctor),
    "runmedic": ("runmedic", runmedic),
}
"""By the name on PyPI: the module, and what asks it."""


def available() -> dict[str, Callable[[dict[int, Row]], list[Finding]]]:
    """The peers that are installed here."""
    return {name: ask for name, (module, ask) in PEERS.items() if find_spec(module) is not None}
