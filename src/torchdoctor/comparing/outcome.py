"""How well each run did: the metric for the ranking, the scores, and which runs diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.comparing.summary import Curve, Floats, Summary
from torchdoctor.errors import TorchDoctorError, did_you_mean
from torchdoctor.records import number_text
from torchdoctor.sources.words import HIGHER, words_of

LAST_SHARE, LAST_POINTS = 0.05, 20
"""A final value is the mean of the last points: this share of them, but at least this many."""
ABOVE_START = 1.2
"""A loss that ends above this multiple of its start, and above twice its median, has diverged."""
DIVERGING = frozenset({"nan-or-inf", "loss-divergence"})
LATE = 0.05
"""If an episode lasts into this last share of the run, the run did not recover from it."""


@dataclass(frozen=True)
class Metric:
    """The metric that runs are ranked by."""

    name: str
    kind: str
    """"best": the best value of a validation metric; "final": the mean of the last values."""
    lower: bool = True
    """Whether lower is better."""

    @property
    def words(self) -> str:
        """The metric, as used in a sentence."""
        plain = self.name.removeprefix("val_").replace("_", " ")
        return f"{self.kind} {'validation ' if self.name.startswith('val_') else ''}{plain}"


@dataclass(frozen=True)
class Outcome:
    """How one run did."""

    score: float
    """The value of the metric; NaN if the run does not have it."""
    best_validation: float
    best_step: int | None
    final_loss: float
    final: float
    """The metric at the end of the run, without early stopping."""
    roughness: float
    """How much the loss typically jumps from one point to the next in the second half, as a share of its level."""
    diverged: str
    """Why the run counts as diverged; empty if it does not."""


def choose(summaries: Sequence[Summary], wish: str | None = None) -> Metric | None:
    """The requested metric, else the first of validation loss, loss and others that half of the runs have."""
    counts: dict[str, int] = {}
    for summary in summaries:
        for name in summary.curves:
            counts[name] = counts.get(name, 0) + 1
    if wish is not None:
        if wish not in counts:
            raise TorchDoctorError(f"no run has a metric {wish!r}. {did_you_mean(wish, counts)}")
        return _metric(wish)
    half = len(summaries) / 2
    others = sorted((name for name in counts if name.startswith("val_") or name.endswith("loss")), key=_plainness)
    for name in ("val_loss", "loss", *others):
        if counts.get(name, 0) >= half:
            return _metric(name)
    return None


def _plainness(name: str) -> tuple[bool, str]:
    return not name.startswith("val_"), name


def _metric(name: str) -> Metric:
    higher = not name.endswith("loss") and not HIGHER.isdisjoint(words_of(name))
    return Metric(name, "best" if name.startswith("val_") else "final", lower=not higher)


def outcome(summary: Summary, metric: Metric | None) -> Outcome:
    """How a run did."""
    loss = summary.curve("loss")
    validation = summary.curve("val_loss")
    best, step = _best(validation, lower=True)
    chosen = summary.curve(metric.name) if metric is not None else None
    score = final = math.nan
    if metric is not None and chosen is not None:
        score = _best(chosen, lower=metric.lower)[0] if metric.kind == "best" else final_value(chosen)
        final = float(chosen.values[-1]) if metric.kind == "best" else score
    return Outcome(
        score=score,
        best_validation=best,
        best_step=step,
        final_loss=math.nan if loss is None else final_value(loss),
        final=final,
        roughness=math.nan if loss is None else roughness(loss),
        diverged=_diverged(summary, loss, chosen if metric is not None and metric.kind == "final" else None),
    )


def _best(curve: Curve | None, *, lower: bool) -> tuple[float, int | None]:
    if curve is None or not np.isfinite(curve.values).any():
        return math.nan, None
    values = np.where(np.isfinite(curve.values), curve.values if lower else -curve.values, math.inf)
    place = int(np.argmin(values))
    return float(curve.values[place]), int(curve.steps[place])


def final_value(curve: Curve) -> float:
    """The mean of the last values; NaN if the very last one is not finite."""
    if not len(curve.values) or not math.isfinite(curve.values[-1]):
        return math.nan
    last = curve.values[-max(LAST_POINTS, int(LAST_SHARE * len(curve.values))) :]
    return float(last[np.isfinite(last)].mean())


def roughness(curve: Curve) -> float:
    """The robust spread of step-to-step changes in the second half, relative to the level there.

    >>> wave = np.where(np.arange(200) % 2 == 0, 1.1, 0.9)
    >>> round(roughness(Curve(np.arange(200), wave)), 2)
    0.21
    """
    half = curve.values[len(curve.values) // 2 :]
    half = half[np.isfinite(half)]
    level = abs(float(np.median(half))) if len(half) else 0.0
    if len(half) < 10 or level == 0:
        return math.nan
    return float(1.4826 * np.median(np.abs(np.diff(half))) / math.sqrt(2) / level)


def _diverged(summary: Summary, loss: Curve | None, chosen: Curve | None) -> str:
    """Why a run counts as diverged, by its loss, its findings and the final value that it is ranked by."""
    if lost := _lost(loss):
        return f"the loss is {number_text(lost[0])} from {summary.clock} {lost[1]} on"
    for finding in summary.findings:
        lasting = finding.last_step >= (1 - LATE) * (summary.steps - 1)
        if finding.name in DIVERGING and finding.severity != "info" and lasting:
            return f"{finding.name} at {summary.clock} {finding.first_step}"
    if lost := _lost(chosen):
        return f"the metric is {number_text(lost[0])} from {summary.clock} {lost[1]} on"
    if loss is not None and len(loss.values) >= 2 * LAST_POINTS:
        values: Floats = loss.values[np.isfinite(loss.values)]
        start, end = float(np.median(values[:LAST_POINTS])), float(np.median(values[-LAST_POINTS:]))
        if start > 0 and end > ABOVE_START * start and end > 2 * float(np.median(values)):
            return f"the loss ended at {number_text(end)}, above the initial {number_text(start)}"
    return ""


def _lost(curve: Curve | None) -> tuple[float, int] | None:
    """The last value of a curve and the step from which on none is finite, if there is such a step.

    >>> _lost(Curve(np.arange(4), np.array([2.0, math.nan, 1.0, math.nan])))
    (nan, 3)
    """
    if curve is None or not len(curve.values) or math.isfinite(curve.values[-1]):
        return None
    well = np.flatnonzero(np.isfinite(curve.values))
    return float(curve.values[-1]), int(curve.steps[well[-1] + 1 if len(well) else 0])


def ranked(outcomes: Sequence[Outcome], metric: Metric | None) -> list[int]:
    """The places of the runs, best first; runs without a score come after, and diverged runs last."""

    def key(place: int) -> tuple[bool, bool, float]:
        found = outcomes[place]
        missing = not math.isfinite(found.score)
        cost = found.score if metric is None or metric.lower else -found.score
        return bool(found.diverged), missing, 0.0 if missing else cost

    return sorted(range(len(outcomes)), key=key)


def costs(outcomes: Sequence[Outcome], metric: Metric) -> tuple[Floats, bool]:
    """Costs for statistics: lower is better, infinite for diverged runs, NaN for runs without a score.

    If all scores are positive and lower is better, costs are their logarithms and the second value is True: differences
    are then log ratios, independent of the loss's scale.
    """
    scores = np.array([item.score for item in outcomes])
    lost = np.array([bool(item.diverged) for item in outcomes])
    known = scores[np.isfinite(scores) & ~lost]
    log = bool(metric.lower and len(known) and (known > 0).all())
    with np.errstate(divide="ignore", invalid="ignore"):
        made: Floats = np.log(scores) if log else (scores if metric.lower else -scores)
    made[lost] = math.inf
    return made, log
