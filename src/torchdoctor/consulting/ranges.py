"""Healthy ranges to compare numbers with, and the values worth trying for each fix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchdoctor.consulting.question import Answers
from torchdoctor.records import Suggestion, number_text


@dataclass(frozen=True)
class Healthy:
    """A quantity with a healthy range, as a rule of thumb."""

    name: str
    healthy: str
    measure: Callable[[Answers], float]
    """Its value; NaN if not known."""
    judge: Callable[[float], str]
    """What a value means; empty if it is in range."""


@dataclass(frozen=True)
class Reading:
    """A quantity of this run, compared with its range."""

    name: str
    value: float
    healthy: str
    verdict: str
    """Empty if it is in range."""

    @property
    def words(self) -> str:
        """The reading in one line."""
        return f"{self.name} {number_text(self.value)}: {self.verdict or 'in range'} (healthy: {self.healthy})"


def _number(answers: Answers, name: str) -> float:
    value = answers.get(name)
    return value if isinstance(value, float) else math.nan


def _last(answers: Answers, name: str) -> float:
    values = answers.get(name)
    finite = [item for item in values or () if isinstance(item, float) and math.isfinite(item)]  # type: ignore[union-attr]
    return finite[-1] if finite else math.nan


def _norm(value: float) -> str:
    if value > 100:
        return "an explosion in most runs"
    if value > 10:
        return "high"
    return "suspicious, may be vanishing" if value < 0.01 else "low" if value < 0.1 else ""


def _gap(answers: Answers) -> float:
    train, validation = _last(answers, "train_losses"), _last(answers, "val_losses")
    return validation / train if train > 0 and validation > 0 else math.nan


def _spread(answers: Answers) -> float:
    first, last = _number(answers, "grad_first_layer"), _number(answers, "grad_last_layer")
    return max(first, last) / min(first, last) if min(first, last) > 0 else math.nan


HEALTHY: tuple[Healthy, ...] = (
    Healthy("typical recent gradient norm", "0.1 to 10", lambda answers: _number(answers, "grad_norm"), _norm),
    Healthy(
        "ratio of the gradient norms of the first and last layer",
        "under 100; embeddings may be larger",
        _spread,
        lambda value: "too large: the gradient does not reach all layers equally" if value > 100 else "",
    ),
    Healthy(
        "ratio of validation loss to training loss",
        "under 2",
        _gap,
        lambda value: "overfitting" if value >= 2 else "",
    ),
    Healthy(
        "share of a step spent waiting for data",
        "under 0.1, at most 0.5",
        lambda answers: _number(answers, "waiting_share"),
        lambda value: "starved for data" if value > 0.5 else "noticeable" if value > 0.1 else "",
    ),
)
"""Rules of thumb that fail for summed losses or targets in the thousands. The ranking compares a run with itself."""

RULES_OF_THUMB = (
    "Global gradient norm: 0.1 to 10; below 0.01 is suspicious, above 100 is an explosion in most runs.",
    "Gradient norms of layers: within two orders of magnitude of each other; embeddings may be larger.",
    "Pre-activations beyond 3 saturate sigmoid and tanh.",
    "Validation loss under twice the training loss; training loss under 0.1 on many tasks.",
    "Overfitting a single batch: loss under 0.01 within 1,000 steps.",
    "Learning rate range test: from 1e-7 to 10, stopped at four times the first loss.",
    "Test a fix over 100 to 1,000 steps.",
)

FIX_RANGES: Mapping[str, str] = {
    "set-clip-norm": "1.0 first, or one to two times the usual norm if that is far from 1",
    "set-clip-value": "0.5",
    "raise-dropout": "0.1 to 0.3 first, at most 0.5",
    "lower-dropout": "half of the current rate, then 0",
    "set-weight-decay": "0.01 to 0.1",
    "restart-warmup": "a few hundred steps, up to a tenth of the run",
    "set-momentum": "0.9",
    "change-batch-size": "factors of 2 to 4, learning rate scaled linearly with it, after a warm-up",
    "change-betas": "beta2 0.95 if the loss spikes, 0.999 otherwise",
    "change-eps": "1e-8; 1e-12 for tiny gradients",
    "resize-model": "half or double the width",
    "train-longer": "up to twice the steps, with the schedule extended to match",
    "adaptive-clip": "1 to 10 times the typical norm",
}
"""By action, the values worth trying."""


def fix_range(suggestion: Suggestion) -> str:
    """The values worth trying for a fix, starting with the proposed one; empty if the fix has no number.

    >>> for factor in (2.0, 0.5, 0.25, 0.1):
    ...     fix_range(Suggestion("scale-lr", "", 0.7, parameters={"factor": factor}))
    'times 2 to 10'
    'times 0.5 first, then 0.1'
    'times 0.25 first, then 0.1'
    'times 0.1 first, then a third of that'
    """
    values = suggestion.parameters
    if suggestion.action == "scale-lr":
        factor = float(values.get("factor", 0.5))
        if factor > 1:
            return "times 2 to 10" if factor <= 10 else f"times {factor:g} first, then 2 to 10 times that"
        return f"times {factor:g} first, then {'0.1' if factor > 0.1 else 'a third of that'}"
    if suggestion.action == "set-clip-norm" and (limit := float(values.get("max_norm", 1.0))) != 1:
        return f"{number_text(limit)} first; one to two times the usual norm lets ordinary steps pass"
    return FIX_RANGES.get(suggestion.action, "")


def readings(answers: Answers) -> tuple[Reading, ...]:
    """The known quantities of this run, compared with the healthy ranges.

    >>> [item.words for item in readings({"grad_norm": 0.003})]
    ['typical recent gradient norm 0.003: suspicious, may be vanishing (healthy: 0.1 to 10)']
    """
    found = [(item, item.measure(answers)) for item in HEALTHY]
    return tuple(
        Reading(item.name, value, item.healthy, item.judge(value)) for item, value in found if not math.isnan(value)
    )
