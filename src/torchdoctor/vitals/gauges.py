"""The gauges of sampled steps: one file per gauge, one line here."""

from __future__ import annotations

from torchdoctor.vitals.acting import ActingGauge
from torchdoctor.vitals.activations import ActivationGauge
from torchdoctor.vitals.axes import AxesCensus
from torchdoctor.vitals.batches import BatchGauge
from torchdoctor.vitals.census import GraphCensus
from torchdoctor.vitals.curvature import CurvatureGauge
from torchdoctor.vitals.gauge import Gauge, Tell
from torchdoctor.vitals.kept_graphs import KeptGraphs
from torchdoctor.vitals.left_behind import LeftBehind
from torchdoctor.vitals.machine import MachineGauge
from torchdoctor.vitals.modes import ModeCensus
from torchdoctor.vitals.noise import NoiseGauge
from torchdoctor.vitals.optimizer_state import OptimizerStateGauge
from torchdoctor.vitals.outputs import OutputGauge
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.ranks import RankGauge
from torchdoctor.vitals.recall import RecallGauge
from torchdoctor.vitals.schedule import ScheduleGauge
from torchdoctor.vitals.state_witness import StateWitness
from torchdoctor.vitals.validation import ValidationGauge
from torchdoctor.vitals.zeroing import ZeroingLedger


def build_gauges(setup: Setup, tell: Tell) -> list[Gauge]:
    """Build all gauges; `tell` takes structural facts."""
    return [
        GraphCensus(setup, tell),
        LeftBehind(setup, tell),
        KeptGraphs(tell),
        ZeroingLedger(setup, tell),
        ModeCensus(setup, tell),
        AxesCensus(setup.models, tell),
        OptimizerStateGauge(setup),
        StateWitness(setup, tell),
        NoiseGauge(setup, tell),
        ScheduleGauge(setup, tell),
        ActivationGauge(setup.models, tell),
        BatchGauge(setup.models, setup.loss_fn, tell),
        OutputGauge(setup.models, setup.loss_fn, tell),
        ValidationGauge(setup.models, tell, setup.loss_fn),
        RecallGauge(setup.models, setup.loss_fn, tell),
        ActingGauge(setup.models, tell),
        MachineGauge(setup),
        *([RankGauge(setup, tell)] if RankGauge.wanted(setup) else []),
        *([CurvatureGauge(setup, tell)] if setup.curvature > 0 else []),
    ]
