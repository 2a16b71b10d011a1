"""Where a report goes when nobody says it: beside the journal, else into the current folder, named after the run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

NAME = "report"
TELLING = 80
"""Letters of a file's name that tell enough."""
_COMMON = re.compile(
    r"(trainer_state|metrics|results?|logs?|history|train(ing)?|output|stdout|events\.out\..*)", re.IGNORECASE
)
"""Names of logs that say nothing of the run: its folder's name does."""
_JOURNAL = re.compile(r"journal(\.rank\d+)?\.jsonl$")


def report_places(paths: Sequence[Path], suffix: str = ".html") -> list[Path]:
    """A place for the report of each run; no two are the same.

    >>> paths = [Path(text) for text in ("runs/a/journal.jsonl", "logs/big gpt.csv", "sweep/7/metrics.csv")]
    >>> for place in report_places(paths):
    ...     print(place.as_posix())
    runs/a/report.html
    big-gpt-report.html
    7-metrics-report.html
    """
    found: list[Path] = []
    for path in paths:
        place = _place(path, suffix)
        number = 1
        while place in found:
            number += 1
            place = _place(path, f"-{number}{suffix}")
        found.append(place)
    return found


def run_names(paths: Sequence[Path], own: Sequence[str]) -> list[str]:
    """What to call runs on a page that others read: no path of this machine; their own names where they share a file.

    >>> paths = [Path("/home/me/runs/a/journal.jsonl"), Path("/data/mlflow.db"), Path("/data/mlflow.db")]
    >>> run_names(paths, ["", "x", "y"])
    ['a', 'mlflow.db, x', 'mlflow.db, y']
    """
    shared = Counter(paths)
    return [
        ", ".join(
            filter(None, [_folder(path) if _JOURNAL.fullmatch(path.name) else path.name, name * (shared[path] > 1)])
        )
        for path, name in zip(paths, own, strict=True)
    ]


def _folder(path: Path) -> str:
    return path.absolute().parent.name


def _place(path: Path, ending: str) -> Path:
    if _JOURNAL.fullmatch(path.name):
        return path.parent / f"{path.stem.replace('journal', NAME)}{ending}"
    stem = Path(path.name.removesuffix(".gz")).stem
    if _COMMON.fullmatch(stem):
        stem = f"{_folder(path)}-{stem}"
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:TELLING]
    return Path(f"{safe or 'run'}-{NAME}{ending}")
