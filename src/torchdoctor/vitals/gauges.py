"""The gauges of sampled steps: one file a gauge, one line here."""

from __future__ import annotations

from torchdoctor.vitals.activations import ActivationGauge
from torchdoctor.vitals.batches import BatchGauge
from torchdoctor.vitals.census import GraphCensus
from torchdoctor.vitals.gauge import Gauge, Tell
from torchdoctor.vitals.machine import MachineGauge
from torchdoctor.vitals.modes import ModeCensus
from torchdoctor.vitals.optimizer_state import OptimizerStateGauge
from torchdoctor.vitals.outputs import OutputGauge
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.schedule import ScheduleGauge
from torchdoctor.vitals.zeroing import ZeroingLedger


def build_gauges(setup: Setup, tell: Tell) -> list[Gauge]:
    """All of them; `tell` takes structural facts."""
    return [
        GraphCensus(setup, tell),
        ZeroingLedger(setup, tell),
        ModeCensus(setup, tell),
        OptimizerStateGauge(setup),
        ScheduleGauge(setup, tell),
        ActivationGauge(setup.models, tell),
        BatchGauge(setup.models, setup.loss_fn, tell),
        OutputGauge(setup.models, setup.loss_fn, tell),
        MachineGauge(setup),
    ]
