"""Checks: problems that can be found before the first training step. One file per check, one line in the table.

>>> [check.name for check in build(select=("CK01",))]
['parameter-initialization']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from torchdoctor.checks.accumulation_equals_batch import AccumulationEqualsBatch
from torchdoctor.checks.attention_behaviour import AttentionBehaviour
from torchdoctor.checks.batch_independence import BatchIndependence
from torchdoctor.checks.causal_leakage import CausalLeakage
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.compile_agrees import CompileAgrees
from torchdoctor.checks.data_quality import DataQuality
from torchdoctor.checks.decay_on_norms_and_biases import DecayOnNormsAndBiases
from torchdoctor.checks.determinism import Determinism
from torchdoctor.checks.forward_shapes import ForwardShapes
from torchdoctor.checks.gradient_flow import GradientFlow
from torchdoctor.checks.initial_loss import InitialLoss
from torchdoctor.checks.labels_in_range import LabelsInRange
from torchdoctor.checks.loader_speed import LoaderSpeed
from torchdoctor.checks.loss_misuse import LossMisuse
from torchdoctor.checks.memory_use import MemoryUse
from torchdoctor.checks.normalization_layers import NormalizationLayers
from torchdoctor.checks.numerical_stability import NumericalStability
from torchdoctor.checks.optimizer_coverage import OptimizerCoverage
from torchdoctor.checks.overfit_one_batch import OverfitOneBatch
from torchdoctor.checks.parameter_initialization import ParameterInitialization
from torchdoctor.checks.position_embeddings import PositionEmbeddings
from torchdoctor.checks.state_dict_round_trip import StateDictRoundTrip
from torchdoctor.checks.tied_weights import TiedWeights
from torchdoctor.checks.train_eval_difference import TrainEvalDifference
from torchdoctor.checks.train_validation_overlap import TrainValidationOverlap
from torchdoctor.checks.unused_parameters import UnusedParameters
from torchdoctor.checks.uses_its_input import UsesItsInput
from torchdoctor.errors import SettingsError, did_you_mean, stands_for

__all__ = ["CHECKS", "CannotTell", "Check", "Outcome", "build"]

CHECKS: tuple[type[Check], ...] = (
    ParameterInitialization,
    ForwardShapes,
    GradientFlow,
    MemoryUse,
    NumericalStability,
    AttentionBehaviour,
    PositionEmbeddings,
    NormalizationLayers,
    DataQuality,
    LabelsInRange,
    LossMisuse,
    InitialLoss,
    OptimizerCoverage,
    DecayOnNormsAndBiases,
    TiedWeights,
    UnusedParameters,
    UsesItsInput,
    BatchIndependence,
    CausalLeakage,
    Determinism,
    AccumulationEqualsBatch,
    StateDictRoundTrip,
    TrainValidationOverlap,
    TrainEvalDifference,
    OverfitOneBatch,
    LoaderSpeed,
    CompileAgrees,
)
"""Every check, in the order in which they run: the cheap ones first."""


def build(
    *,
    quick: bool = False,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Check, ...]:
    """The requested checks, with their thresholds. A check selected by name also runs in a quick check-up.

    >>> build(select=["gradient-flwo"])
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SettingsError: select: there is no check 'gradient-flwo'. Did you mean 'gradient-flow'?
    """
    selected, ignored = _meant(select, "select"), _meant(ignore, "ignore")
    values = {
        name: dict(given) for token, given in (thresholds or {}).items() for name in _meant([token], "thresholds")
    }
    built = []
    for kind in CHECKS:
        known = [item.name for item in fields(kind)]
        for key in values.get(kind.name, {}):
            if key not in known:
                near = did_you_mean(key, known) if known else "It has none."
                raise SettingsError(f"{kind.name} has no threshold {key!r}. {near}")
        wanted = kind.name in selected if selected else kind.quick or not quick
        if wanted and kind.name not in ignored:
            built.append(kind(**values.get(kind.name, {})))
    return tuple(built)


def _meant(tokens: Iterable[str], setting: str) -> set[str]:
    """The check names that these names, codes and code prefixes stand for."""
    if isinstance(tokens, str):
        tokens = [item.strip() for item in tokens.split(",") if item.strip()]
    chosen: set[str] = set()
    for token in tokens:
        meant = {kind.name for kind in CHECKS if stands_for(str(token), (kind.name, kind.code, kind.code[:2]))}
        if not meant:
            known = [word for kind in CHECKS for word in (kind.name, kind.code)]
            raise SettingsError(f"{setting}: there is no check {token!r}. {did_you_mean(str(token), known)}")
        chosen |= meant
    return chosen
