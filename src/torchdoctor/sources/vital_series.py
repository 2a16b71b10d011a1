"""The vitals of a run as series, for plots and comparisons: every step, without thinning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchdoctor.records import Record

Steps = list[int]
Values = list[float]


def vital_series(records: Iterable[Record]) -> dict[str, tuple[Steps, Values]]:
    """By vital, the steps at which it was recorded and its values; validation as ``val_loss`` and the like.

    >>> records = [{"type": "vitals", "step": step, "vitals": {"loss": 2.0 - step}} for step in (0, 1)]
    >>> vital_series(records)
    {'loss': ([0, 1], [2.0, 1.0])}
    """
    found: dict[str, tuple[Steps, Values]] = {}
    for record in records:
        if record["type"] in ("vitals", "validation"):
            _add(found, record["step"], record["vitals"])
        elif record["type"] == "groups":  # a learning rate that rarely changes is recorded when it does
            groups = [group for group in record["groups"] if isinstance(group.get("lr"), int | float)]
            name = "lr" if len(groups) == 1 else "lr/{}"
            _add(found, record["step"], {name.format(place): group["lr"] for place, group in enumerate(groups)})
    return found


def _add(found: dict[str, tuple[Steps, Values]], step: int, vitals: Mapping[str, Any]) -> None:
    for name, value in vitals.items():
        steps, values = found.setdefault(name, ([], []))
        if not steps or steps[-1] != step:
            steps.append(step)
            values.append(float(value))
