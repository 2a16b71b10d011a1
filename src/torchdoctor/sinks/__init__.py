"""Sinks: send findings to the places where people already look.

One file per sink, and one table. A sink is named in the settings, ``sinks = ["tensorboard:runs/exp", "wandb"]``, or
given as an existing object: `Doctor.send_to`.

>>> open_sink("tensorbord:runs", Subject())
Traceback (most recent call last):
...
torchdoctor.errors.SettingsError: there is no sink 'tensorbord'. Did you mean 'tensorboard'?
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from torchdoctor.errors import SettingsError, TorchDoctorError, did_you_mean
from torchdoctor.records import Severity
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import printable
from torchdoctor.sinks.courier import Couriers as Couriers
from torchdoctor.sinks.function import Function
from torchdoctor.sinks.messages import as_records
from torchdoctor.sinks.mlflow_run import around_mlflow, open_mlflow
from torchdoctor.sinks.prometheus import open_prometheus
from torchdoctor.sinks.sink import Open, Sink, SinkError, reason
from torchdoctor.sinks.sink import Subject as Subject
from torchdoctor.sinks.tensorboard_text import TensorBoard, open_tensorboard
from torchdoctor.sinks.trackio_run import around_trackio, open_trackio
from torchdoctor.sinks.wandb_run import WandbRun, open_wandb
from torchdoctor.sinks.webhook import open_discord, open_slack, open_webhook

SINKS: Mapping[str, Open] = {
    "discord": open_discord,
    "mlflow": open_mlflow,
    "prometheus": open_prometheus,
    "slack": open_slack,
    "tensorboard": open_tensorboard,
    "trackio": open_trackio,
    "wandb": open_wandb,
    "webhook": open_webhook,
}
ONE_RUN = frozenset({"mlflow", "prometheus", "tensorboard"})
"""Sinks whose target holds one run: a second run would overwrite the first."""
PATIENCE = (1.0, 3.0)
"""Seconds before the second and the third attempt to send a finished report."""
EXPECTED = "a name such as 'tensorboard:runs/exp', a SummaryWriter, a W&B, MLflow or Trackio run, or a function"


def check_name(given: str) -> str:
    """The part of a name before the colon, if there is such a sink."""
    name = given.partition(":")[0].strip()
    if name.lower() in ("http", "https") or name.startswith("$"):  # the address is a secret, never shown in errors
        raise SettingsError("put the sink before the address: webhook:ADDRESS, slack:ADDRESS or discord:ADDRESS.")
    if name not in SINKS:
        raise SettingsError(f"there is no sink {printable(name)!r}. {did_you_mean(name, SINKS)}")
    return name


def open_sink(given: Any, subject: Subject) -> tuple[Sink, str]:
    """The sink for a name or an object, and its label for logs."""
    if isinstance(given, ModuleType) and given.__name__ in SINKS:
        given = given.__name__
    if isinstance(given, str):
        name = check_name(given)
        return SINKS[name](given.partition(":")[2].strip(), subject), f"the sink {name}"
    family = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    if "wandb" in family:
        return WandbRun(given, subject), "the sink wandb"
    if "mlflow" in family:
        return around_mlflow(given, subject), "the sink mlflow"
    if "trackio" in family:
        return around_trackio(given, subject), "the sink trackio"
    if hasattr(given, "add_text") and hasattr(given, "add_scalar"):
        return TensorBoard(given, subject), "the sink tensorboard"
    if isinstance(given, Sink) and not isinstance(given, type):
        return given, f"the sink {type(given).__name__}"
    if callable(given):
        return Function(given), f"the sink {getattr(given, '__name__', type(given).__name__)}"
    raise SettingsError(f"a sink is {EXPECTED}, not {type(given).__name__}.")


def send_all(reports: Sequence[tuple[str, Report]], sinks: Sequence[str], least: Severity) -> list[str]:
    """Send the reports of finished runs, each under its name, to several sinks; returns the errors."""
    troubles = []
    for sink in sinks:
        if len(reports) > 1 and check_name(sink) in ONE_RUN:
            kind = check_name(sink)
            troubles.append(f"the sink {kind} takes one run at a time, not {len(reports)}: nothing was sent to it.")
            continue
        for name, report in reports:
            try:
                send(report, sink, Subject(name, least))
            except TorchDoctorError as error:
                troubles.append(str(error))
    return troubles


def send(report: Report, given: Any, subject: Subject) -> None:
    """Send a finished report now; if the third attempt fails too, raise an error."""
    sink, label = open_sink(given, subject)
    # A person gets one message for the whole run, not one per episode.
    records = [] if getattr(sink, "pushes", False) else as_records(report)
    for pause in (*PATIENCE, None):
        try:
            sink.take(records)
            sink.close(report)
            return
        except Exception as error:
            if pause is None:
                raise SinkError(f"{label} did not accept the report: {reason(error)}.") from error
        records = []  # the sink keeps what it has not delivered
        time.sleep(pause)
