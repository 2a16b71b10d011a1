"""Trackio: an alert for each episode, and one for the whole run; Trackio can forward alerts to Slack.

``trackio`` is the run that ``trackio.init()`` made before; ``trackio:PROJECT`` starts its own run when there is
something to report.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from torchdoctor.errors import SettingsError
from torchdoctor.records import Record
from torchdoctor.reports.report import Report
from torchdoctor.sinks.messages import Bulletin, Message, summary
from torchdoctor.sinks.sink import SinkError, Subject, library


class TrackioRun:
    """Alerts of a Trackio run."""

    pushes = True

    def __init__(self, run: Any, subject: Subject, project: str = "") -> None:
        self._run, self._subject, self._project = run, subject, project
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
        if self._project and self._run is not None:
            self._run.finish()

    def _alert(self, message: Message) -> None:
        step = message.report.step if message.event == "summary" else message.symptom.first_step
        if self._run is None:
            self._run = _begin(self._project, self._subject.run)
        self._run.alert(title=message.title, text=message.text, level=self._levels[message.level], step=step)


def _begin(project: str, name: str) -> Any:
    """Start our own run, in a separate context, because starting a run ends the active run of the context."""
    begin = library("trackio", "trackio").init
    quiet = {"embed", "auto_log_gpu", "auto_log_cpu"} & set(inspect.signature(begin).parameters)
    try:
        return Context().run(begin, project=project, name=name, **dict.fromkeys(quiet, False))
    except Exception as error:
        raise SinkError(f"cannot start a Trackio run in {project!r}: {type(error).__name__}: {error}") from error


def around_trackio(run: Any, subject: Subject) -> TrackioRun:
    """The sink for a Trackio run."""
    if not hasattr(run, "alert"):
        raise SettingsError("this version of Trackio has no alerts: pip install --upgrade trackio")
    return TrackioRun(run, subject)


def open_trackio(target: str, subject: Subject) -> TrackioRun:
    """``trackio``, or ``trackio:PROJECT``."""
    trackio = library("trackio", "trackio")
    if not hasattr(trackio, "alert"):
        raise SettingsError("this version of Trackio has no alerts: pip install --upgrade trackio")
    if target:
        return TrackioRun(None, subject, target)
    run = library("trackio.context_vars", "trackio").current_run.get()
    if run is None:
        raise SettingsError("no Trackio run is active: call trackio.init() first, or give trackio:PROJECT.")
    return around_trackio(run, subject)
