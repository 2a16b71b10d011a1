"""What a sink is: a place that findings go to."""

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
    """Takes what was found, as records, and the last report. It may be slow and it may raise: it has its own thread.

    What it has not delivered when it raises, it keeps: `take` is called again, later, with what is new since then.
    A sink may have ``interval``, the seconds between two calls, ``vitals``, true where it wants the latest measured
    values now and then, and ``pushes``, true where it knocks at somebody's door: of a finished run it gets the report.
    """

    def take(self, records: Sequence[Record]) -> None:
        """Records that were concluded since the last call, in order."""

    def close(self, report: Report | None) -> None:
        """The run is over; the report is None where it ended without one."""


@dataclass(frozen=True)
class Subject:
    """What a sink is told of the run when it is opened."""

    run: str = "run"
    """The run's name."""
    least: Severity = "warning"
    """The severity from which on findings are sent."""


Open = Callable[[str, Subject], Sink]
"""Opens a sink by what stands after the colon of its name."""


class SinkError(TorchDoctorError):
    """A delivery that failed; its text holds nothing that is secret."""


def reason(error: Exception) -> str:
    """Why a delivery failed, in a few words that may be logged."""
    text = printable(error)[:200]
    return text if isinstance(error, SinkError) else f"{type(error).__name__}: {text}" if text else type(error).__name__


def library(name: str, sink: str) -> Any:
    """An optional library, or what to install.

    >>> library("no_such_library", "mlflow")
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SettingsError: the sink 'mlflow' needs a library that is not installed: pip install mlflow
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise SettingsError(f"the sink {sink!r} needs a library that is not installed: pip install {sink}") from error
