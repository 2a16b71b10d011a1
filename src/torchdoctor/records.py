"""The records that cross stages: frozen, JSON in and out, free of torch.

Everything that the doctor learns is a *journal record*: a dict with ``type`` and ``step``. The chart is
fed by these records alone, live and offline, which is why both give the same report:

==============  ====================================================================================
type            further keys
==============  ====================================================================================
``header``      ``schema``, ``created``, ``versions``, ``tensors`` (names, in the order of every
                per-tensor list), ``context`` (model, optimizer, ...: see ``vitals/context.py``)
``context``     ``context``: learnt later (batch size, precision); ``tensors``, ``modules`` when they changed
``groups``      ``groups``: a list of {"lr": .., ...} per parameter group, whenever one changed
``vitals``      ``vitals``: {name: number}: one training step
``validation``  ``vitals``: {"val_loss": .., "val_<metric>": ..}
``tensors``     ``vitals``: {"grad_norm": [..], "weight_norm": [..], "update_ratio": [..]}: sampled steps
``modules``     ``vitals``: {"act_rms": [..], ...}: sampled steps, in the order of ``modules`` in a context
``facts``       ``facts``: {dotted key: value}: structural observations, when first made and when changed
``origin``      ``module``, ``kind``: where a non-finite value was first seen in a forward pass
``symptom``     ``event`` ("opened", "changed", "closed") and the fields of `Symptom`
``diagnosis``   the fields of `Diagnosis` (one record for each cause, when the ranking changed)
``phase``       ``first_step``, ``stable``, ``trend``, ``message``: see ``phases.py``
``note``        ``text``: something that the report must say (what could not be measured, and why)
``end``         the run was closed in good order
==============  ====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""The version of the journal's format, written in its header."""

Severity = Literal["info", "warning", "critical"]
Safety = Literal["show", "ask", "apply"]
Health = Literal["healthy", "watch", "sick", "critical"]
Record = Mapping[str, Any]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
INFORMATIVE = frozenset({"multiple-pathologies", "converged"})
"""Findings that describe the report or good news, and leave a run's health alone."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One episode of one pathology.

    >>> print(Symptom("loss-spike", "LO01", "warning", 0.9, 120, 122, message="loss 9.1 is 4.2 times its recent 2.2"))
    step 120: LO01 loss-spike (warning): loss 9.1 is 4.2 times its recent 2.2
    """

    name: str
    code: str
    severity: Severity
    confidence: float
    first_step: int
    last_step: int
    count: int = 1
    where: tuple[str, ...] = ()
    rank: int | None = None
    value: float | None = None
    limit: float | None = None
    message: str = ""

    def __str__(self) -> str:
        return f"step {self.first_step}: {self.code} {self.name} ({self.severity}): {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the journal keeps it."""
        return asdict(self) | {"where": list(self.where)}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change to make: data, never code that is run."""

    action: str
    code: str
    confidence: float
    safety: Safety = "show"
    parameters: Mapping[str, float | str | bool] = field(default_factory=dict)
    priority: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.code}  ({self.action}, confidence {self.confidence:.2f}): {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the journal keeps it."""
        return asdict(self) | {"parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One possible cause of one problem; probabilities sum to 1 within a problem, ``unknown`` included."""

    problem: int
    cause: str
    probability: float
    evidence: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the journal keeps it."""
        return {
            "problem": self.problem,
            "cause": self.cause,
            "probability": self.probability,
            "evidence": list(self.evidence),
            "symptoms": list(self.symptoms),
            "suggestions": [suggestion.to_dict() for suggestion in self.suggestions],
        }


def worst(severities: list[Severity]) -> Severity | None:
    """The most severe of some severities, None where there are none.

    >>> worst(["info", "critical", "warning"])
    'critical'
    """
    return max(severities, key=SEVERITIES.index, default=None)


def number_text(value: float) -> str:
    """A number as a person would write it in a sentence.

    >>> number_text(0.00012345), number_text(1234567.0), number_text(2.5), number_text(float("nan"))
    ('1.23e-04', '1.23e+06', '2.5', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
