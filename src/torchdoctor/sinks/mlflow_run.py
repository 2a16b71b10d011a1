"""MLflow: health and findings as tags, the number of open findings as a metric, the last report as artifacts.

``mlflow`` is the run that is active when the sink is added; ``mlflow:RUN_ID`` any other run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torchdoctor.errors import SettingsError
from torchdoctor.records import Record, Symptom
from torchdoctor.reports import html
from torchdoctor.reports.formats import as_json
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import verdict
from torchdoctor.reports.wording import label
from torchdoctor.sinks.messages import Bulletin, is_severe
from torchdoctor.sinks.sink import Subject, library

TAG_LIMIT = 5000
"""Number of characters that every store accepts."""


class MlflowRun:
    """Tags, a metric and artifacts of an MLflow run."""

    def __init__(self, client: Any, run_id: str, subject: Subject) -> None:
        self._client, self._run_id, self._subject = client, run_id, subject
        self._bulletin = Bulletin(subject)
        self._seen: dict[str, Symptom] = {}
        self._logged = 0

    def take(self, records: Sequence[Record]) -> None:
        """Update the tags when an episode opens, gets worse or is over."""
        bulletin = self._bulletin
        bulletin.read(records)
        self._seen |= bulletin.open
        if bulletin.waiting:
            self._tag(Report(bulletin.step, tuple(self._seen.values())))
            bulletin.waiting.clear()
        count = len(bulletin.open)
        if count != self._logged:
            self._client.log_metric(self._run_id, "torchdoctor/open_findings", count, step=max(bulletin.step, 0))
            self._logged = count

    def close(self, report: Report | None) -> None:
        """Set the last tags, and store the report with the run's artifacts."""
        if report is None:
            return
        self._tag(report)
        self._client.log_text(self._run_id, html.render(report), "torchdoctor/report.html")
        self._client.log_text(self._run_id, as_json([("", report)]), "torchdoctor/report.json")

    def _tag(self, report: Report) -> None:
        severe = dict.fromkeys(label(item) for item in report.symptoms if is_severe(item, self._subject.least))
        for name, value in {
            "torchdoctor.health": report.health,
            "torchdoctor.findings": ", ".join(severe),
            "torchdoctor.verdict": verdict(report),
        }.items():
            self._client.set_tag(self._run_id, name, value[:TAG_LIMIT])


def open_mlflow(target: str, subject: Subject) -> MlflowRun:
    """``mlflow``, or ``mlflow:RUN_ID``."""
    mlflow = library("mlflow", "mlflow")
    return _around(mlflow.MlflowClient(), target or _active(mlflow), subject)


def around_mlflow(given: Any, subject: Subject) -> MlflowRun:
    """The sink for an MLflow run, or for the active run of a client."""
    mlflow = library("mlflow", "mlflow")
    if isinstance(given, mlflow.MlflowClient):
        return _around(given, _active(mlflow), subject)
    return _around(mlflow.MlflowClient(), given.info.run_id, subject)


def _active(mlflow: Any) -> str:
    """The active run of this thread."""
    run = mlflow.active_run()
    run_id: str = run.info.run_id if run is not None else os.environ.get("MLFLOW_RUN_ID", "")
    if not run_id:
        raise SettingsError("no MLflow run is active: call mlflow.start_run() first, or give mlflow:RUN_ID.")
    return run_id


def _around(client: Any, run_id: str, subject: Subject) -> MlflowRun:
    try:
        client.get_run(run_id)
    except Exception as error:
        raise SettingsError(f"cannot get the MLflow run {run_id!r}: {type(error).__name__}: {error}") from error
    return MlflowRun(client, run_id, subject)
