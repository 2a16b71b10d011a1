"""Symptoms: what is observed. Each pathology has its own file and one line in the table.

>>> from torchdoctor.settings import Settings
>>> [detector.name for detector in build(Settings(select=("GR",)))]
['gradient-explosion', 'gradient-vanishing', 'gradient-instability', 'clipping-anomaly']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

from torchdoctor.errors import SettingsError, did_you_mean, stands_for
from torchdoctor.settings import Settings
from torchdoctor.symptoms.activation_explosion import ActivationExplosion
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.batch_size_advice import BatchSizeAdvice
from torchdoctor.symptoms.clipping_anomaly import ClippingAnomaly
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.data_starvation import DataStarvation
from torchdoctor.symptoms.dead_units import DeadUnits
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.double_descent import DoubleDescent
from torchdoctor.symptoms.entropy_collapse import EntropyCollapse
from torchdoctor.symptoms.frozen_weights import FrozenWeights
from torchdoctor.symptoms.gradient_explosion import GradientExplosion
from torchdoctor.symptoms.gradient_instability import GradientInstability
from torchdoctor.symptoms.gradient_vanishing import GradientVanishing
from torchdoctor.symptoms.gradients_not_cleared import GradientsNotCleared
from torchdoctor.symptoms.identical_units import IdenticalUnits
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.learning_rate_vanished import LearningRateVanished
from torchdoctor.symptoms.lopsided_losses import LopsidedLosses
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.loss_oscillation import LossOscillation
from torchdoctor.symptoms.loss_plateau import LossPlateau
from torchdoctor.symptoms.loss_spike import LossSpike
from torchdoctor.symptoms.memory_growth import MemoryGrowth
from torchdoctor.symptoms.multiple_pathologies import MultiplePathologies
from torchdoctor.symptoms.nan_or_inf import NanOrInf
from torchdoctor.symptoms.no_gradient import NoGradient
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.optimizer_advice import OptimizerAdvice
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.paper import PAPER_DETECTORS
from torchdoctor.symptoms.rank_divergence import RankDivergence
from torchdoctor.symptoms.saturated_activations import SaturatedActivations
from torchdoctor.symptoms.schedule_anomaly import ScheduleAnomaly
from torchdoctor.symptoms.skipped_steps import SkippedSteps
from torchdoctor.symptoms.slow_learning import SlowLearning
from torchdoctor.symptoms.small_normalization_batch import SmallNormalizationBatch
from torchdoctor.symptoms.state_overwritten import StateOverwritten
from torchdoctor.symptoms.step_time_regression import StepTimeRegression
from torchdoctor.symptoms.straggler_rank import StragglerRank
from torchdoctor.symptoms.suspicious_loss import SuspiciousLoss
from torchdoctor.symptoms.suspiciously_low_loss import SuspiciouslyLowLoss
from torchdoctor.symptoms.target_anomaly import TargetAnomaly
from torchdoctor.symptoms.underfitting import Underfitting
from torchdoctor.symptoms.uneven_position_loss import UnevenPositionLoss
from torchdoctor.symptoms.unexpected_initial_loss import UnexpectedInitialLoss
from torchdoctor.symptoms.update_ratio_abnormal import UpdateRatioAbnormal
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly
from torchdoctor.symptoms.weight_growth import WeightGrowth
from torchdoctor.symptoms.wrong_mode import WrongMode

__all__ = ["DETECTORS", "PAPER_DETECTORS", "Detector", "build"]

DETECTORS: tuple[type[Detector], ...] = (
    GradientExplosion,
    GradientVanishing,
    GradientInstability,
    ClippingAnomaly,
    LossSpike,
    LossDivergence,
    LossPlateau,
    NotLearning,
    SlowLearning,
    LossOscillation,
    SuspiciouslyLowLoss,
    LearningRateVanished,
    UpdateRatioAbnormal,
    ScheduleAnomaly,
    OptimizerAdvice,
    StateOverwritten,
    FrozenWeights,
    WeightGrowth,
    NoGradient,
    GradientsNotCleared,
    WrongMode,
    SuspiciousLoss,
    SmallNormalizationBatch,
    NanOrInf,
    SkippedSteps,
    Overfitting,
    Underfitting,
    DoubleDescent,
    ValidationAnomaly,
    DataStarvation,
    StepTimeRegression,
    MemoryGrowth,
    RankDivergence,
    StragglerRank,
    LopsidedLosses,
    EntropyCollapse,
    DeadUnits,
    SaturatedActivations,
    ActivationExplosion,
    IdenticalUnits,
    CollapsedOutput,
    UnexpectedInitialLoss,
    UnevenPositionLoss,
    InputAnomaly,
    TargetAnomaly,
    BatchAnomaly,
    BatchSizeAdvice,
    MultiplePathologies,
)


def build(settings: Settings) -> tuple[Detector, ...]:
    """The detectors selected by the settings, with their thresholds; an unknown name is an error.

    >>> build(Settings(thresholds={"gradient-explosion": {"raito": 20}}))
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SettingsError: gradient-explosion has no threshold 'raito'. Did you mean 'ratio'?
    """
    try:
        return _built(settings)
    except SettingsError as error:
        if not settings.origin:
            raise
        raise SettingsError(f"{settings.origin}: {error}") from error


def _built(settings: Settings) -> tuple[Detector, ...]:
    table = PAPER_DETECTORS if settings.preset == "paper" else DETECTORS
    selected = _chosen(settings.select, table, "select") or {kind.name for kind in table}
    ignored = _chosen(settings.ignore, (*table, *DETECTORS), "ignore")  # also what the preset lacks
    thresholds = {_one(name, table): values for name, values in settings.thresholds.items()}
    built: list[Detector] = []
    for kind in table:
        values = dict(thresholds.get(kind.name, {}))
        known = {field.name: field for field in fields(kind)}
        for key, value in values.items():
            if key not in known:
                where = " with the preset 'paper'" if settings.preset == "paper" else ""
                raise SettingsError(f"{kind.name} has no threshold {key!r}{where}. {_nearest(key, known)}")
            values[key] = _checked(f"{kind.name}.{key}", value, known[key])
        if "rule" in known:
            values.setdefault("rule", settings.rule)
        if kind.name in selected and kind.name not in ignored:
            built.append(kind(**values))
    return tuple(built)


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    return did_you_mean(key, known) if known else "It has none."


def _chosen(tokens: Iterable[str], table: tuple[type[Detector], ...], setting: str) -> set[str]:
    """The names of the findings given by name, code or the letters of a code; `*` stands for any letters."""
    chosen: set[str] = set()
    for token in tokens:
        meant = _meant(token, table)
        if not meant:
            raise SettingsError(f"{setting}: {_unknown(token, [w for kind in table for w in _words(kind)])}")
        chosen |= meant
    return chosen


def _meant(token: str, table: Iterable[type[Detector]]) -> set[str]:
    """The findings that a name, a code or a pattern fits, in any case and with - or _."""
    return {kind.name for kind in table if stands_for(token, _words(kind))}


def _words(kind: type[Detector]) -> tuple[str, ...]:
    return kind.name, kind.code, kind.code[:2]


def _one(name: str, table: tuple[type[Detector], ...]) -> str:
    meant = [kind.name for kind in table if {kind.name, kind.code.lower()} & {str(name).lower().replace("_", "-")}]
    if not meant:
        raise SettingsError(f"thresholds: {_unknown(str(name), [kind.name for kind in table])}")
    return meant[0]


def _unknown(name: str, known: Iterable[str]) -> str:
    """What is wrong with a name: no finding has it, or none in this preset; and what may be meant."""
    wrong = "the preset 'paper' has no finding" if _meant(name, DETECTORS) else "there is no finding"
    near = did_you_mean(name, set(known))
    return f"{wrong} {name!r}. {near if near.startswith('Did') else '`torchdoctor rules` lists the findings.'}"


def _checked(name: str, value: Any, field: Field[Any]) -> Any:
    """The value, if it has the type of the threshold; whole numbers are accepted as floats."""
    default = field.default
    if isinstance(default, str):
        if value not in ("either", "fixed", "adaptive"):
            raise SettingsError(f"{name} must be 'either', 'fixed' or 'adaptive', not {value!r}.")
        return value
    expected = "a whole number" if isinstance(default, int) else "a number"
    right = isinstance(value, int) if isinstance(default, int) else isinstance(value, int | float)
    if isinstance(value, bool) or not right or not math.isfinite(value) or value <= 0:
        raise SettingsError(f"{name} must be {expected} above zero (its default is {default!r}), not {value!r}.")
    return value if isinstance(default, int) else float(value)
