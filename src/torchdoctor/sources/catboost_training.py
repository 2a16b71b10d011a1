"""CatBoost's catboost_training.json: values in the order of the names at the top.

>>> names = {"learn_metrics": [{"name": "Logloss"}], "test_metrics": [{"name": "Logloss"}, {"name": "AUC"}]}
>>> _row({"iteration": 3, "learn": [0.5], "test": [0.6, 0.9], "passed_time": 1.5}, names)
{'iteration': 3.0, 'learn/Logloss': 0.5, 'test/Logloss': 0.6, 'test/AUC': 0.9}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchdoctor.errors import SourceError
from torchdoctor.sources.json_numbers import number_of
from torchdoctor.sources.json_table import document_of
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.opening import beginning
from torchdoctor.sources.table import Table

_BEGINNING = re.compile(r'\s*\{\s*"meta"\s*:\s*\{.*"learn_metrics"', re.DOTALL)


def recognises(path: Path) -> bool:
    """Whether the file begins as CatBoost writes it."""
    return _BEGINNING.match(beginning(path, 4096)) is not None


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The run in such a file."""
    document = document_of(path)
    names = document.get("meta") if isinstance(document, dict) else None
    rows = document.get("iterations") if isinstance(document, dict) else None
    if not isinstance(names, dict) or not isinstance(rows, list):
        raise SourceError(f"{path} is not a catboost_training.json: it has no names of metrics, or no iterations.")
    table = Table()
    for row in rows:
        if isinstance(row, dict):
            table.add(_row(row, names))
    return [table.logged(path, "CatBoost", wish)]


def _row(row: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, float]:
    found = {"iteration": number_of(row.get("iteration"))}
    for split, values in row.items():
        if isinstance(values, list):
            metrics = names.get("learn_metrics" if split == "learn" else "test_metrics")
            for metric, value in zip(metrics if isinstance(metrics, list) else [], values, strict=False):
                if isinstance(metric, dict) and isinstance(metric.get("name"), str):
                    found[f"{split}/{metric['name']}"] = number_of(value)
    return {name: value for name, value in found.items() if value is not None}
