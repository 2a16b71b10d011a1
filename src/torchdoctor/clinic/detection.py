"""Are injected faults found, how soon, and is a run without them left in peace?

>>> alarms = [Alarm(40, "loss-spike", "warning"), Alarm(101, "gradient-explosion", "critical")]
>>> found = match(Injection(100, ScaleGradients(20, at=100)), alarms)
>>> found.alarm.name, found.delay
('gradient-explosion', 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import NamedTuple

from torchdoctor.clinic.data import Corpus
from torchdoctor.clinic.faults import (
    Fault,
    FreezeLayer,
    JumpLearningRate,
    NanBatch,
    OutlierBatch,
    RemoveDropout,
    ScaleGradients,
)
from torchdoctor.clinic.injection import Injection, inject
from torchdoctor.clinic.patient import Patient, Recipe
from torchdoctor.doctor import Doctor
from torchdoctor.records import Record, Severity

ALARMING: tuple[Severity, ...] = ("warning", "critical")
IN_TIME = 3
"""Steps within which an acute fault has to be found."""


class Alarm(NamedTuple):
    """A finding that reached warning or worse, and the step whose readings raised it."""

    step: int
    name: str
    severity: Severity


class Alarms(list[Alarm]):
    """The alarms of a run, collected from its journal records; an episode that only spreads raises none again.

    >>> alarms = Alarms()
    >>> event = {"type": "symptom", "event": "opened", "step": 7, "name": "loss-spike", "severity": "warning"}
    >>> alarms.hear(event), alarms.hear(event | {"event": "changed", "step": 8}), len(alarms)
    (True, False, 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str, Severity] = {}

    def hear(self, record: Record) -> bool:
        """Take note of a record; True if it raised an alarm."""
        if record["type"] != "symptom":
            return False
        name, severity = record["name"], record["severity"]
        if record["event"] == "closed":
            self._open.pop(name, None)
            return False
        if severity not in ALARMING or self._open.get(name) == severity:
            return False
        self._open[name] = severity
        self.append(Alarm(record["step"], name, severity))
        return True


class Detection(NamedTuple):
    """An injection, and the alarm that answered it."""

    injection: Injection
    alarm: Alarm | None

    @property
    def delay(self) -> int | None:
        """Steps from the fault to the alarm."""
        return None if self.alarm is None else self.alarm.step - self.injection.step

    @property
    def in_time(self) -> bool:
        """Whether the alarm came soon enough."""
        return self.delay is not None and self.delay <= IN_TIME


def match(injection: Injection, alarms: Iterable[Alarm]) -> Detection:
    """The first alarm at or after an injection that counts as finding it."""
    names = injection.fault.found_as
    return Detection(
        injection, next((alarm for alarm in alarms if alarm.step >= injection.step and alarm.name in names), None)
    )


def watched_run(
    recipe: Recipe, faults: Sequence[Fault] = (), *, until: int | None = None, corpus: Corpus | None = None
) -> tuple[list[Detection], list[Alarm]]:
    """Train by a recipe under a doctor's eyes, up to a step, and say what became of each fault, and every alarm."""
    patient = Patient(recipe, corpus)
    alarms = Alarms()

    def listen(record: Record) -> None:
        alarms.hear(record)

    with ExitStack() as stack:
        doctor = stack.enter_context(
            Doctor(patient.model, patient.optimizer, scheduler=patient.scheduler, settings={"quiet": True})
        )
        doctor.subscribe(listen)
        injector = None
        if faults:
            injector = stack.enter_context(inject(*faults, model=patient.model, optimizer=patient.optimizer))
        for _ in islice(patient.train(doctor, injector), until):
            pass
        doctor.diagnose()
    log = injector.log if injector is not None else []
    return [match(injection, alarms) for injection in log], alarms


def acute_faults(at: int | Sequence[int]) -> tuple[tuple[Fault, ...], ...]:
    """The faults that must be found within `IN_TIME` steps, each alone, and two at once."""
    return (
        (ScaleGradients(20, at=at),),
        (ScaleGradients(1e-8, at=at),),
        (NanBatch(at=_last(at)),),
        (OutlierBatch(at=at),),
        (JumpLearningRate(100, at=_last(at)),),
        (ScaleGradients(1e-8, at=_last(at)), JumpLearningRate(100, at=_last(at))),
    )


def chronic_faults(at: int) -> tuple[tuple[Fault, ...], ...]:
    """The faults whose symptoms need longer than a few steps."""
    return (FreezeLayer("blocks.0", at=at),), (RemoveDropout(at=at),)


def _last(at: int | Sequence[int]) -> int:
    """Where a fault ends the run, there is only one to be seen in it."""
    return at if isinstance(at, int) else at[-1]
