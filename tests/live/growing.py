"""Journals that grow while somebody watches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torchdoctor.journal.lines import encode
from torchdoctor.live.sight import Sight
from torchdoctor.live.ward import Ward

HEADER = {"type": "header", "step": 0, "schema": 1, "created": "now", "context": {"model": {"class": "Net"}}}


def vitals(step: int, *, jump_at: int | None = None, nan_at: int | None = None) -> dict[str, Any]:
    noise = math.sin(step * 7.3)
    loss = math.nan if nan_at is not None and step >= nan_at else 1.0 + 3 * math.exp(-step / 80) + 0.02 * noise
    norm = (60.0 if step == jump_at else 1.0) * (1 + 0.1 * noise)
    return {"type": "vitals", "step": step, "vitals": {"loss": loss, "grad_norm": norm, "lr": 1e-3}}


def lines(*records: dict[str, Any]) -> str:
    return "".join(f"{encode(record)}\n" for record in records)


def steps(start: int, stop: int, **faults: int) -> str:
    return lines(*(vitals(step, **faults) for step in range(start, stop)))


def append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def seen(ward: Ward) -> tuple[Sight, ...]:
    """What is to be seen after everything that is there now has been read."""
    ward._search_due = float("-inf")  # not to wait for the next search
    ward.poll()
    while ward.more:
        ward.poll()
    return ward.sights()
