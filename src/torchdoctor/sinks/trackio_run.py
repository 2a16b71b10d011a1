"""Trackio: an alert for each episode, and one for the whole run; it has its own way to pass them on to Slack.

``trackio`` is the run that ``trackio.init()`` made before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchdoctor.errors import SettingsError
from torchdoctor.records import Record
from torchdoctor.reports.report import Report
from torchdoctor.sinks.messages import Bulletin, Message, summary
from torchdoctor.sinks.sink import Subject, library


class TrackioRun:
    """Alerts of a Trackio run."""

    pushes = True

    def __init__(self, run: Any, subject: Subject) -> None:
        self._run, self._subject = run, subject
        self._bulletin = Bulletin(subject)
        self._levels = library("trackio", "trackio").AlertLevel

    def take(self, records: Sequence[Record]) -> None:
        """Send alerts."""
        waiting = self._bulletin.waiting
        self._bulletin.read(records)
        while waiting:
            if waiting[0].event != "closed":
                self._alert(waiting[0])
            waiting.popleft()

    def close(self, report: Report | None) -> None:
        """Send the summary, unless the run was healthy."""
        last = summary(report, self._subject)
        if last is not None:
            self._alert(last)

    def _alert(self, message: Message) -> None:
        step = message.report.step if message.event == "summary" else message.symptom.first_step
        self._run.alert(title=message.title, text=message.text, level=self._levels[message.level], step=step)


def around_trackio(run: Any, subject: Subject) -> TrackioRun:
    """A Trackio run."""
    if not hasattr(run, "alert"):
        raise SettingsError("this version of Trackio has no alerts: pip install --upgrade trackio")
    return TrackioRun(run, subject)


def open_trackio(target: str, subject: Subject) -> TrackioRun:
    """``trackio``."""
    trackio = library("trackio", "trackio")
    if target:
        raise SettingsError(f"trackio takes nothing after its name, not {target!r}: call trackio.init() before.")
    if not hasattr(trackio, "alert"):
        raise SettingsError("this version of Trackio has no alerts: pip install --upgrade trackio")
    run = library("trackio.context_vars", "trackio").current_run.get()
    if run is None:
        raise SettingsError("no Trackio run is active: call trackio.init() before.")
    return around_trackio(run, subject)
