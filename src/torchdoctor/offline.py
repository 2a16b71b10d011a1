"""The diagnosis of a run read from a file, by the same examination that a live run gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.errors import TorchDoctorError
from torchdoctor.examination import Examination
from torchdoctor.records import NOT_SOUGHT
from torchdoctor.reports.report import Report
from torchdoctor.settings import CHOICES, JUDGING, Settings
from torchdoctor.sources import Run, read


def diagnose(run: Run | str | Path, *, settings: Settings | Mapping[str, Any] | str | Path | None = None) -> Report:
    """Diagnose a run that was read, or the log or journal at a path.

    For a journal, this is the report that the live run would have given after its last record with these settings.
    Without settings, they are those of the nearest configuration file; if that does not say how to judge, those that
    the live run was judged with. The notes of the report list what could not be read, and which settings were used if
    that matters.
    """
    found = run if isinstance(run, Run) else read(run)
    chosen = Settings.load(settings)
    if settings is None:
        chosen = as_watched(found, chosen)
    report = examine(found, chosen).report()
    notes = (*found.notes, *_judged_as(found, chosen, given=settings is not None), *_left_out(found, chosen))
    return replace(report, notes=(*report.notes, *notes)) if notes else report


def as_watched(run: Run, settings: Settings) -> Settings:
    """These settings, judging as the live run did unless they say themselves how to judge.

    What a journal says is not trusted: settings that do not exist here are left out.
    """
    then = run.header.get("settings")
    if not isinstance(then, Mapping) or settings.judging():
        return settings
    try:
        same = replace(settings, **{name: then[name] for name in JUDGING if name in then})
        Examination(same, live=False)
    except (TorchDoctorError, TypeError):
        return settings
    return same


def _judged_as(run: Run, settings: Settings, *, given: bool) -> tuple[str, ...]:
    """A note if the live run was judged with other settings, so that its own findings may differ from this report.

    Also if its settings are used here without being `given`. Empty for other logs, and for journals that do not record
    their settings.
    """
    then, now = run.header.get("settings"), settings.judging()
    if not isinstance(then, Mapping):
        return ()
    other = [name for name in JUDGING if then.get(name) != now.get(name)]
    named = other or [name for name in JUDGING if name in then and not given]
    if not named:
        return ()
    names = ", ".join(f"{name} {then[name]}" if then.get(name) in CHOICES.get(name, ()) else name for name in named)
    if not other:
        return (f"this report uses the settings with which the run was judged during training ({names}).",)
    return (f"during training, this run was judged with other settings ({names}) than in this report.",)


def _left_out(run: Run, settings: Settings) -> tuple[str, ...]:
    """A note that some findings were not looked for in a log, so that their absence means nothing.

    Not for journals of runs that were watched with the same settings: there the whole run was judged like that.
    """
    then = run.header.get("settings")
    mine = {name: list(names) for name in ("select", "ignore") if (names := getattr(settings, name))}
    if not mine or (isinstance(then, Mapping) and all(then.get(name) == names for name, names in mine.items())):
        return ()
    words = {"select": "anything but ", "ignore": ""}
    return (NOT_SOUGHT + "; ".join(words[name] + ", ".join(names) for name, names in mine.items()),)


def examine(run: Run, settings: Settings) -> Examination:
    """An examination into which the whole run was entered."""
    examination = Examination(settings, live=False)
    for piece in run.pieces:
        examination.enter(piece)
    return examination
