"""A text file for Prometheus' node exporter (``--collector.textfile.directory``), always replaced as a whole."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchdoctor.errors import SettingsError, TorchDoctorError
from torchdoctor.records import Record, Symptom
from torchdoctor.reports.formats import write_whole
from torchdoctor.reports.report import HEALTH, Report
from torchdoctor.reports.wording import printable
from torchdoctor.sinks.messages import Bulletin, is_severe
from torchdoctor.sinks.sink import Subject

INTERVAL = 10.0
"""Seconds between two versions of the file; Prometheus reads it every 15 to 60."""
VITALS = {
    "loss": ("torchdoctor_loss", "Training loss at the latest step."),
    "grad_norm": ("torchdoctor_grad_norm", "Norm of the gradients at the latest step, before clipping."),
    "lr": ("torchdoctor_learning_rate", "Learning rate at the latest step."),
    "val_loss": ("torchdoctor_validation_loss", "Validation loss, when last measured."),
}
"""The measured values that are exported, if the run has them."""
HEALTHS = tuple(HEALTH.values())


class Prometheus:
    """Keeps a file with the run's findings, its health and its latest values."""

    interval = INTERVAL
    vitals = True

    def __init__(self, path: Path, subject: Subject) -> None:
        self._path, self._subject = path, subject
        self._bulletin = Bulletin(subject)
        self._past: dict[tuple[str, str, str], Symptom] = {}
        self._values: dict[str, float] = {}
        self._running = 1
        self._write()

    def take(self, records: Sequence[Record]) -> None:
        """Rewrite the file."""
        for record in records:
            if record["type"] in ("vitals", "validation"):
                self._values.update(record["vitals"])
        self._bulletin.read(records)
        self._bulletin.waiting.clear()
        self._past |= {_key(item): item for item in self._bulletin.open.values()}
        self._write()

    def close(self, report: Report | None) -> None:
        """Write the file a last time: findings that were open at the end of the run stay at 1."""
        self._running = 0
        if report is not None:
            self._past |= {_key(item): item for item in report.symptoms if is_severe(item, self._subject.least)}
            self._bulletin.step = max(self._bulletin.step, report.step)
        self._write(report)

    def _write(self, report: Report | None = None) -> None:
        write_whole(self._path, "\n".join(self._lines(report)) + "\n", mode=0o644)  # the exporter is another user

    def _lines(self, report: Report | None) -> Iterator[str]:
        run = f'run="{_quoted(self._subject.run)}"'
        going_on = {_key(item) for item in self._bulletin.open.values()}
        yield from _head(
            "torchdoctor_finding", "1 while the finding is open, or was open when the run ended; 0 when it is over."
        )
        for code, name, severity in sorted(self._past):
            labels = f'code="{_quoted(code)}",name="{_quoted(name)}",severity="{_quoted(severity)}",{run}'
            yield f"torchdoctor_finding{{{labels}}} {int((code, name, severity) in going_on)}"
        now = report if report is not None else Report(self._bulletin.step, tuple(self._bulletin.open.values()))
        singles = [
            ("torchdoctor_health", "0 healthy, 1 worth watching, 2 sick, 3 critical.", HEALTHS.index(now.health)),
            ("torchdoctor_running", "1 while the run is running.", self._running),
            ("torchdoctor_step", "The latest training step.", self._bulletin.step),
            ("torchdoctor_written_seconds", "When this was written, in seconds since 1970.", int(time.time())),
            *((*VITALS[name], value) for name, value in self._values.items() if name in VITALS),
        ]
        for metric, meaning, value in singles:
            yield from _head(metric, meaning)
            yield f"{metric}{{{run}}} {_number(value)}"


def _head(metric: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {metric} {meaning}"
    yield f"# TYPE {metric} gauge"


def _key(symptom: Symptom) -> tuple[str, str, str]:
    return symptom.code, symptom.name, symptom.severity


def _quoted(value: str) -> str:
    return printable(value).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float | str) -> str:
    """A number as Prometheus writes it.

    >>> _number(float("nan")), _number(float("-inf")), _number(0.5), _number(3)
    ('NaN', '-Inf', '0.5', '3')
    """
    number = value if isinstance(value, int) else float(value)
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


def open_prometheus(target: str, subject: Subject) -> Prometheus:
    """``prometheus:FILE.prom``."""
    path = Path(target)
    if path.suffix != ".prom":
        raise SettingsError(
            f"prometheus needs a file name ending in .prom, the only kind that the node exporter reads: {target!r}."
        )
    try:
        return Prometheus(path, subject)
    except TorchDoctorError as error:
        raise SettingsError(str(error)) from error
