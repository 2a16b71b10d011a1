"""The diagnosis of a run that was read: the same examination that a live run gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.examination import Examination
from torchdoctor.reports.report import Report
from torchdoctor.settings import Settings
from torchdoctor.sources import Run, read


def diagnose(run: Run | str | Path, *, settings: Settings | Mapping[str, Any] | str | Path | None = None) -> Report:
    """Examine a run that was read, or the journal at a path.

    The report is the one that the live run would have given after its last record; what could not be read of the
    file is among its notes.
    """
    found = run if isinstance(run, Run) else read(run)
    report = examine(found, Settings.load(settings)).report()
    return replace(report, notes=(*report.notes, *found.notes)) if found.notes else report


def examine(run: Run, settings: Settings) -> Examination:
    """The examination of everything that is in a run."""
    examination = Examination(settings, live=False)
    for piece in run.pieces:
        examination.enter(piece)
    return examination
