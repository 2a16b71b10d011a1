"""The protocol of sinks: places that findings are sent to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from torchdoctor.errors import SettingsError, TorchDoctorError
from torchdoctor.records import Record, Severity
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import printable


@runtime_checkable
class Sink(Protocol):
    """Takes findings as records, and the last report. It may be slow and it may raise: it has its own thread.

    If it raises, it keeps what it has not delivered: `take` is called again later, with only the new records. A sink
    may have the attributes ``interval``, the seconds between two calls; ``vitals``, true if it wants the latest
    measured values; and ``pushes``, true if it notifies people: for a finished run it then gets only the report.
    """

    def take(self, records: Sequence[Record]) -> None:
        """Take the records since the last call, in order."""

    def close(self, report: Report | None) -> None:
        """The run is over; the report is None if it ended without one."""


@dataclass(frozen=True)
class Subject:
    """What a sink is told about the run when it is opened."""

    run: str = "run"
    """The run's name."""
    least: Severity = "warning"
    """The lowest severity of findings that are sent."""


Open = Callable[[str, Subject], Sink]
"""Opens a sink, given the part of its name after the colon."""


class SinkError(TorchDoctorError):
    """A delivery failed; the text holds no secrets."""


def reason(error: Exception) -> str:
    """Why a delivery failed, in a few words that may be logged."""
    text = printable(error)[:200]
    return text if isinstance(error, SinkError) else f"{type(error).__name__}: {text}" if text else type(error).__name__


def library(name: str, sink: str) -> Any:
    """Import an optional library, or say what to install.

    >>> library("no_such_library", "mlflow")
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SettingsError: the sink 'mlflow' needs a library that is not installed: pip install mlflow
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise SettingsError(f"the sink {sink!r} needs a library that is not installed: pip install {sink}") from error
