"""Recorded runs for the tests of consulting."""

from __future__ import annotations

import math
from pathlib import Path

from torchdoctor.journal import Journal

HEADER = {
    "type": "header",
    "schema": 1,
    "context": {
        "model": {"class": "Net", "parameters": 10_000, "trainable": 10_000},
        "optimizer": [{"class": "AdamW"}],
        "batch_size": 32,
    },
}


def recorded(
    folder: Path,
    *,
    nan_at: int | None = None,
    floor: float = 1.0,
    steps: int = 300,
    norms: bool = True,
    pace: float = 80,
) -> Path:
    """A run that learns, and may break; its gradient norms grow before it does."""
    with Journal(folder, HEADER) as journal:
        for step in range(steps):
            noise = math.sin(step * 7.3)
            broken = nan_at is not None and step >= nan_at
            vitals = {"loss": math.nan if broken else floor + 3 * math.exp(-step / pace) + 0.02 * noise, "lr": 1e-3}
            if norms:
                growth = 4.0 ** max(0, step - nan_at + 4) if nan_at is not None else 1.0
                vitals["grad_norm"] = math.nan if broken else (1 + 0.1 * noise) * growth
            journal.write({"type": "vitals", "step": step, "vitals": vitals})
        journal.write({"type": "end", "step": steps - 1})
    return folder
