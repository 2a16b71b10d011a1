"""Diagnoses: why. One file a cause, one line in the table."""

from __future__ import annotations

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.bad_batch import BadBatch
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.clip_missing import ClipMissing
from torchdoctor.diagnoses.converged import Converged
from torchdoctor.diagnoses.lr_too_high import LrTooHigh
from torchdoctor.diagnoses.lr_too_low import LrTooLow
from torchdoctor.diagnoses.memorization import Memorization
from torchdoctor.diagnoses.missing_skip_connections import MissingSkipConnections
from torchdoctor.diagnoses.nan_in_data import NanInData
from torchdoctor.diagnoses.numeric_precision import NumericPrecision
from torchdoctor.diagnoses.ranking import group, rank_causes
from torchdoctor.diagnoses.saturating_nonlinearity import SaturatingNonlinearity
from torchdoctor.diagnoses.schedule_error import ScheduleError
from torchdoctor.diagnoses.under_regularized import UnderRegularized
from torchdoctor.diagnoses.unknown import Unknown
from torchdoctor.diagnoses.warmup_missing import WarmupMissing
from torchdoctor.records import Diagnosis

__all__ = ["CAUSES", "Cause", "Evidence", "Problem", "group", "rank"]

CAUSES: tuple[type[Cause], ...] = (
    LrTooHigh,
    LrTooLow,
    WarmupMissing,
    ScheduleError,
    ClipMissing,
    BadBatch,
    NanInData,
    NumericPrecision,
    SaturatingNonlinearity,
    MissingSkipConnections,
    Memorization,
    UnderRegularized,
    Converged,
    Unknown,
)


def rank(chart: Chart) -> tuple[Diagnosis, ...]:
    """The causes of every problem on the chart: worst problem first, then by probability, `unknown` included.

    >>> from torchdoctor.records import Symptom
    >>> chart = Chart.of(loss=[2.0] * 70, lr=[1e-3] * 60 + [0.1] * 10)
    >>> chart.episodes += [Symptom("loss-spike", "LO01", "warning", 0.9, 61, 69),
    ...                    Symptom("loss-divergence", "LO02", "warning", 0.9, 65, 69)]
    >>> rank(chart)[0].cause
    'lr-too-high'
    """
    return rank_causes(chart, [cause() for cause in CAUSES])
