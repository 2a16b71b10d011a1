"""Diagnoses: why a run went wrong. Each cause has one file, and one line in the table below."""

from __future__ import annotations

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.accumulation_error import AccumulationError
from torchdoctor.diagnoses.adversarial_imbalance import AdversarialImbalance
from torchdoctor.diagnoses.bad_batch import BadBatch
from torchdoctor.diagnoses.bad_initialization import BadInitialization
from torchdoctor.diagnoses.batch_size_unsuited import BatchSizeUnsuited
from torchdoctor.diagnoses.batchnorm_misuse import BatchnormMisuse
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.class_imbalance import ClassImbalance
from torchdoctor.diagnoses.clip_missing import ClipMissing
from torchdoctor.diagnoses.clip_too_tight import ClipTooTight
from torchdoctor.diagnoses.converged import Converged
from torchdoctor.diagnoses.data_order import DataOrder
from torchdoctor.diagnoses.detached_graph import DetachedGraph
from torchdoctor.diagnoses.eval_mode_in_training import EvalModeInTraining
from torchdoctor.diagnoses.frozen_by_mistake import FrozenByMistake
from torchdoctor.diagnoses.hardware_fault import HardwareFault
from torchdoctor.diagnoses.information_leak import InformationLeak
from torchdoctor.diagnoses.insufficient_capacity import InsufficientCapacity
from torchdoctor.diagnoses.label_noise_or_misalignment import LabelNoiseOrMisalignment
from torchdoctor.diagnoses.loss_misuse import LossMisuse
from torchdoctor.diagnoses.lr_too_high import LrTooHigh
from torchdoctor.diagnoses.lr_too_low import LrTooLow
from torchdoctor.diagnoses.memorization import Memorization
from torchdoctor.diagnoses.memory_leak import MemoryLeak
from torchdoctor.diagnoses.missing_normalization import MissingNormalization
from torchdoctor.diagnoses.missing_skip_connections import MissingSkipConnections
from torchdoctor.diagnoses.missing_zero_grad import MissingZeroGrad
from torchdoctor.diagnoses.mode_collapse import ModeCollapse
from torchdoctor.diagnoses.nan_in_data import NanInData
from torchdoctor.diagnoses.numeric_precision import NumericPrecision
from torchdoctor.diagnoses.optimizer_misconfigured import OptimizerMisconfigured
from torchdoctor.diagnoses.over_regularized import OverRegularized
from torchdoctor.diagnoses.parameters_not_in_optimizer import ParametersNotInOptimizer
from torchdoctor.diagnoses.policy_collapse import PolicyCollapse
from torchdoctor.diagnoses.ranking import group, rank_causes
from torchdoctor.diagnoses.repeated_batch import RepeatedBatch
from torchdoctor.diagnoses.representation_collapse import RepresentationCollapse
from torchdoctor.diagnoses.resume_error import ResumeError
from torchdoctor.diagnoses.saddle_point import SaddlePoint
from torchdoctor.diagnoses.saturating_nonlinearity import SaturatingNonlinearity
from torchdoctor.diagnoses.schedule_error import ScheduleError
from torchdoctor.diagnoses.slow_data_loading import SlowDataLoading
from torchdoctor.diagnoses.stale_loss import StaleLoss
from torchdoctor.diagnoses.stale_parameters import StaleParameters
from torchdoctor.diagnoses.stopped_too_early import StoppedTooEarly
from torchdoctor.diagnoses.train_val_mismatch import TrainValMismatch
from torchdoctor.diagnoses.under_regularized import UnderRegularized
from torchdoctor.diagnoses.unknown import Unknown
from torchdoctor.diagnoses.unnormalized_inputs import UnnormalizedInputs
from torchdoctor.diagnoses.unnormalized_targets import UnnormalizedTargets
from torchdoctor.diagnoses.warmup_missing import WarmupMissing
from torchdoctor.records import Diagnosis

__all__ = ["CAUSES", "Cause", "Evidence", "Problem", "group", "rank"]

CAUSES: tuple[type[Cause], ...] = (
    LrTooHigh,
    LrTooLow,
    WarmupMissing,
    ScheduleError,
    ClipMissing,
    ClipTooTight,
    OptimizerMisconfigured,
    MissingZeroGrad,
    AccumulationError,
    ParametersNotInOptimizer,
    StaleParameters,
    FrozenByMistake,
    DetachedGraph,
    StaleLoss,
    LossMisuse,
    EvalModeInTraining,
    BatchnormMisuse,
    BadBatch,
    NanInData,
    NumericPrecision,
    UnnormalizedInputs,
    UnnormalizedTargets,
    ClassImbalance,
    DataOrder,
    RepeatedBatch,
    InformationLeak,
    BadInitialization,
    SaturatingNonlinearity,
    MissingNormalization,
    MissingSkipConnections,
    Memorization,
    UnderRegularized,
    OverRegularized,
    InsufficientCapacity,
    StoppedTooEarly,
    TrainValMismatch,
    BatchSizeUnsuited,
    SaddlePoint,
    HardwareFault,
    SlowDataLoading,
    MemoryLeak,
    AdversarialImbalance,
    LabelNoiseOrMisalignment,
    ModeCollapse,
    PolicyCollapse,
    RepresentationCollapse,
    ResumeError,
    Converged,
    Unknown,
)


def rank(chart: Chart) -> tuple[Diagnosis, ...]:
    """The causes of every problem on the chart: worst problem first, then most likely cause first, with `unknown`.

    >>> from torchdoctor.records import Symptom
    >>> chart = Chart.of(loss=[2.0] * 70, lr=[1e-3] * 60 + [0.1] * 10)
    >>> chart.episodes += [Symptom("loss-spike", "LO01", "warning", 0.9, 61, 69),
    ...                    Symptom("loss-divergence", "LO02", "warning", 0.9, 65, 69)]
    >>> rank(chart)[0].cause
    'lr-too-high'
    """
    return rank_causes(chart, [cause() for cause in CAUSES])
