"""The diagnosis of a run read from a file, by the same examination that a live run gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.examination import Examination
from torchdoctor.reports.report import Report
from torchdoctor.settings import CHOICES, JUDGING, Settings
from torchdoctor.sources import Run, read


def diagnose(run: Run | str | Path, *, settings: Settings | Mapping[str, Any] | str | Path | None = None) -> Report:
    """Diagnose a run that was read, or the log or journal at a path.

    For a journal, this is the report that the live run would have given after its last record with these settings. The
    notes of the report list what could not be read, and whether the live run used other settings.
    """
    found = run if isinstance(run, Run) else read(run)
    chosen = Settings.load(settings)
    report = examine(found, chosen).report()
    notes = (*found.notes, *_judged_otherwise(found, chosen), *_left_out(found, chosen))
    return replace(report, notes=(*report.notes, *notes)) if notes else report


def _judged_otherwise(run: Run, settings: Settings) -> tuple[str, ...]:
    """A note if the live run was judged with other settings, so that its own findings may differ from this report.

    Empty for other logs, and for journals that do not record their settings.
    """
    then, now = run.header.get("settings"), settings.judging()
    if not isinstance(then, Mapping):
        return ()
    other = [name for name in JUDGING if then.get(name) != now.get(name)]
    if not other:
        return ()
    names = ", ".join(f"{name} {then[name]}" if then.get(name) in CHOICES.get(name, ()) else name for name in other)
    return (f"during training, this run was judged with other settings ({names}) than in this report.",)


def _left_out(run: Run, settings: Settings) -> tuple[str, ...]:
    """A note that some findings were not looked for in a log, so that their absence means nothing.

    Not for journals that record their settings: there `_judged_otherwise` covers the difference.
    """
    if not settings.ignore or isinstance(run.header.get("settings"), Mapping):
        return ()
    return (f"not looked for, as requested: {', '.join(settings.ignore)}",)


def examine(run: Run, settings: Settings) -> Examination:
    """An examination into which the whole run was entered."""
    examination = Examination(settings, live=False)
    for piece in run.pieces:
        examination.enter(piece)
    return examination
