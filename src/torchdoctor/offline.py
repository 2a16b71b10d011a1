"""The diagnosis of a run that was read: the same examination that a live run gets."""

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
    """Examine a run that was read, or the journal at a path.

    The report is the one that the live run would have given after its last record, with these settings; what could
    not be read of the file, and that the live run was judged with others, is among its notes.
    """
    found = run if isinstance(run, Run) else read(run)
    chosen = Settings.load(settings)
    report = examine(found, chosen).report()
    notes = (*found.notes, *_judged_otherwise(found, chosen), *_left_out(found, chosen))
    return replace(report, notes=(*report.notes, *notes)) if notes else report


def _judged_otherwise(run: Run, settings: Settings) -> tuple[str, ...]:
    """That a journal's own findings were made with other settings, which a report by these would not be held against.

    Journals that do not say with which, and other logs, have none.
    """
    then, now = run.header.get("settings"), settings.judging()
    if not isinstance(then, Mapping):
        return ()
    other = [name for name in JUDGING if then.get(name) != now.get(name)]
    if not other:
        return ()
    names = ", ".join(f"{name} {then[name]}" if then.get(name) in CHOICES.get(name, ()) else name for name in other)
    return (f"while it went on, this run was judged with other settings ({names}) than in this report.",)


def _left_out(run: Run, settings: Settings) -> tuple[str, ...]:
    """That some findings were not looked for in a log: that nothing was found says nothing of them.

    A journal's own settings may have left them out as well; where they did not, that is said already.
    """
    if not settings.ignore or isinstance(run.header.get("settings"), Mapping):
        return ()
    return (f"not looked for, as was asked: {', '.join(settings.ignore)}",)


def examine(run: Run, settings: Settings) -> Examination:
    """The examination of everything that is in a run."""
    examination = Examination(settings, live=False)
    for piece in run.pieces:
        examination.enter(piece)
    return examination
