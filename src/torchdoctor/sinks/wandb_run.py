"""Weights & Biases: an alert for each episode, the number of open findings as a metric, the verdict in the summary.

``wandb`` is the run that is active when something is found; ``wandb:PROJECT`` starts its own run. Metrics join the row
that the loop is about to log (``commit=False``): a step of our own would make W&B drop rows of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchdoctor.errors import SettingsError
from torchdoctor.records import Record
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import verdict
from torchdoctor.sinks.messages import Bulletin, Message, summary
from torchdoctor.sinks.sink import SinkError, Subject, library


class WandbRun:
    """Alerts and metrics of a W&B run."""

    pushes = True

    def __init__(self, run: Any, subject: Subject, *, own: bool = False) -> None:
        self._given, self._subject, self._own = run, subject, own
        self._bulletin = Bulletin(subject)
        self._logged = 0

    def take(self, records: Sequence[Record]) -> None:
        """Send alerts, and the number of open findings if it changed."""
        bulletin = self._bulletin
        bulletin.read(records)
        while bulletin.waiting:
            if bulletin.waiting[0].event != "closed":
                self._alert(bulletin.waiting[0])
            bulletin.waiting.popleft()
        count = len(bulletin.open)
        if count != self._logged:
            values = {"torchdoctor/open_findings": count, "torchdoctor/step": bulletin.step}
            self._run().log(values, commit=False)
            self._logged = count

    def close(self, report: Report | None) -> None:
        """Send the summary, unless the run was healthy, and add the verdict to the run's summary."""
        last = summary(report, self._subject)
        try:
            if report is not None:
                run = self._run()
                run.summary.update({"torchdoctor/health": report.health, "torchdoctor/verdict": verdict(report)})
            if last is not None:
                self._alert(last)
        except Exception:
            if last is not None:  # a healthy run that is already finished needs no message
                raise
        finally:
            if self._own:
                self._given.finish()

    def _alert(self, message: Message) -> None:
        self._run().alert(title=message.title, text=message.text, level=message.level)

    def _run(self) -> Any:
        run = self._given if self._given is not None else library("wandb", "wandb").run
        if run is None:
            raise SinkError("no W&B run is active: call wandb.init() before training, or give wandb:PROJECT")
        return run


def open_wandb(target: str, subject: Subject) -> WandbRun:
    """``wandb``, or ``wandb:PROJECT``."""
    wandb = library("wandb", "wandb")
    if not target:
        return WandbRun(None, subject)
    try:
        run = wandb.init(project=target, name=subject.run, job_type="torchdoctor", reinit="create_new")
    except Exception as error:
        raise SettingsError(f"cannot start a W&B run in {target!r}: {type(error).__name__}: {error}") from error
    return WandbRun(run, subject, own=True)
