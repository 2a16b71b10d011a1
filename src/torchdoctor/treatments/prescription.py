"""From diagnoses to suggestions: what to change, how sure, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem, group
from torchdoctor.diagnoses.findings import dropout, is_brief, is_over, lr_rise, weight_decay
from torchdoctor.records import INFORMATIVE, SEVERITIES, Diagnosis, Severity, Suggestion, worst
from torchdoctor.treatments.action import ACTIONS, Action

LOWEST, HIGHEST = 0.5, 0.99
"""Suggestions under the lowest confidence are withheld; nothing is ever surer than the highest."""
LIKELY = 0.2
"""Causes at least this probable have a say in the merged list."""
WINDOW = 1000
"""Steps within which the same finding coming back counts as repeated."""

PRIORS: dict[tuple[str, str], float] = {
    ("gradient-explosion", "set-clip-norm"): 0.9,
    ("gradient-explosion", "scale-lr"): 0.9,
    ("gradient-instability", "set-clip-norm"): 0.8,
    ("gradient-instability", "scale-lr"): 0.6,
    ("gradient-vanishing", "scale-lr"): 0.7,
    ("loss-spike", "set-clip-norm"): 0.7,
    ("loss-spike", "scale-lr"): 0.6,
    ("loss-divergence", "scale-lr"): 0.85,
    ("loss-divergence", "set-clip-norm"): 0.75,
    ("loss-divergence", "roll-back"): 0.8,
    ("loss-plateau", "change-schedule"): 0.65,
    ("nan-or-inf", "skip-step"): 0.75,
    ("nan-or-inf", "roll-back"): 0.8,
    ("overfitting", "raise-dropout"): 0.8,
    ("overfitting", "stop-at-best"): 0.75,
    ("overfitting", "set-weight-decay"): 0.65,
    ("lr-too-high", "scale-lr"): 0.9,
    ("lr-too-high", "set-clip-norm"): 0.8,
    ("lr-too-high", "roll-back"): 0.75,
    ("lr-too-low", "scale-lr"): 0.75,
    ("clip-missing", "set-clip-norm"): 0.95,
    ("warmup-missing", "restart-warmup"): 0.85,
    ("warmup-missing", "scale-lr"): 0.7,
    ("schedule-error", "change-schedule"): 0.85,
    ("bad-batch", "clean-data"): 0.8,
    ("bad-batch", "set-clip-norm"): 0.75,
    ("nan-in-data", "clean-data"): 0.95,
    ("nan-in-data", "skip-step"): 0.85,
    ("numeric-precision", "change-precision"): 0.8,
    ("numeric-precision", "skip-step"): 0.7,
    ("saturating-nonlinearity", "use-relu-family"): 0.85,
    ("missing-skip-connections", "add-residuals"): 0.85,
    ("memorization", "stop-at-best"): 0.85,
    ("memorization", "augment-data"): 0.75,
    ("memorization", "raise-dropout"): 0.75,
    ("under-regularized", "raise-dropout"): 0.85,
    ("under-regularized", "set-weight-decay"): 0.75,
}
"""By finding or cause, and action: the paper's priors where it has one, else judgement, until measured."""

ACUTE = ("gradient-explosion", "gradient-instability", "loss-spike", "loss-divergence", "nan-or-inf")
"""Findings that ask for a lower learning rate; the others, if at all, for a higher one."""
BY_SLUG = {action.slug: action for action in ACTIONS}
CAUSE_ACTIONS = {cause.name: cause.suggests for cause in CAUSES}


@dataclass(frozen=True)
class Case:
    """One problem with what the engine asks about it."""

    chart: Chart
    problem: Problem

    @property
    def severity(self) -> Severity:
        """The worst of its symptoms."""
        return worst([symptom.severity for symptom in self.problem.symptoms]) or "info"

    @property
    def repeats(self) -> int:
        """How often the finding that came back most was seen in the window: 1 is the first time."""
        recent = [item for item in self.problem.symptoms if item.last_step >= self.problem.last_step - WINDOW]
        return max(sum(item.name == name for item in recent) for name in self.problem.names)

    @property
    def healed(self) -> bool:
        """Whether it was brief, is over, and the loss took no harm."""
        hurt = self.problem.grave("loss-spike", "loss-divergence", "nan-or-inf")
        return is_over(self.chart, self.problem) and is_brief(self.problem) and not hurt


def prescribe(chart: Chart, diagnoses: Iterable[Diagnosis]) -> tuple[tuple[Diagnosis, ...], tuple[Suggestion, ...]]:
    """The diagnoses with their suggestions, and all suggestions merged, best first.

    Gradient control comes before regularization, that before optimizer and data, that before architecture; within a
    kind the worse problem and then the surer suggestion. Each action appears once.
    """
    problems = group([symptom for symptom in chart.episodes if symptom.name not in INFORMATIVE])
    cases = {number: Case(chart, problem) for number, problem in enumerate(problems, 1)}
    treated: list[Diagnosis] = []
    offers: list[tuple[int, Suggestion]] = []
    for diagnosis in diagnoses:
        case = cases.get(diagnosis.problem)
        if case is None:
            treated.append(diagnosis)
            continue
        own = _for_cause(case, diagnosis)
        treated.append(replace(diagnosis, suggestions=tuple(sorted(own, key=lambda item: -item.confidence))))
        if diagnosis.probability >= LIKELY:
            offers += [(SEVERITIES.index(case.severity), item) for item in own]
        if diagnosis.cause == "unknown":  # there is one in every problem: the findings speak for themselves
            offers += [(SEVERITIES.index(case.severity), item) for item in _for_symptoms(case)]
    return tuple(treated), _merged(offers)


def _merged(offers: list[tuple[int, Suggestion]]) -> tuple[Suggestion, ...]:
    """The priority queue: for each action its offer for the worst problem, then the surest."""
    best: dict[str, tuple[int, Suggestion]] = {}
    for offer in offers:
        known = best.get(offer[1].action)
        if known is None or (offer[0], offer[1].confidence) > (known[0], known[1].confidence):
            best[offer[1].action] = offer
    ordered = sorted(best.values(), key=lambda item: (item[1].priority, -item[0], -item[1].confidence))
    return tuple(suggestion for _, suggestion in ordered)


def _for_cause(case: Case, diagnosis: Diagnosis) -> list[Suggestion]:
    if diagnosis.cause == "unknown":
        return _for_symptoms(case)
    likely = 0.6 + 0.4 * diagnosis.probability
    reason = f"{diagnosis.cause} ({diagnosis.probability:.0%})"
    found = [
        suggest(case, slug, PRIORS.get((diagnosis.cause, slug), BY_SLUG[slug].prior) * likely, reason)
        for slug in CAUSE_ACTIONS.get(diagnosis.cause, ())
    ]
    return [item for item in found if item is not None]


def _for_symptoms(case: Case) -> list[Suggestion]:
    """What the findings themselves ask for, whatever the cause; more of it when they come back."""
    found = []
    for name in case.problem.names:
        for (trigger, slug), prior in PRIORS.items():
            if trigger == name:
                found.append(suggest(case, slug, prior, name))
    again = f"{case.problem.names[0]} was seen {case.repeats} times within {WINDOW} steps"
    if case.repeats >= 3:
        found.append(suggest(case, "roll-back", 0.75, again))
    if case.repeats >= 4:
        found.append(suggest(case, "ask-for-help", 0.7, again))
    best: dict[str, Suggestion] = {}
    for item in found:
        if item is not None and (item.action not in best or item.confidence > best[item.action].confidence):
            best[item.action] = item
    return list(best.values())


def suggest(case: Case, slug: str, confidence: float, reason: str) -> Suggestion | None:
    """One action with its parameters for this case; None where it makes no sense or is not sure enough."""
    action = BY_SLUG[slug]
    parameters = _parameters(case, action)
    if parameters is None:
        return None
    confidence += {"info": -0.15, "warning": 0.0, "critical": 0.05}[case.severity]
    if slug == "scale-lr" and case.healed:
        confidence -= 0.3
    if confidence < LOWEST:
        return None
    words = {name: _word(name, value) for name, value in parameters.items()}
    return Suggestion(
        action=slug,
        code=action.code.format(**words),
        confidence=round(min(confidence, HIGHEST), 2),
        safety=action.safety,
        parameters=parameters,
        priority=action.priority,
        reason=f"{reason}: {action.summary}",
    )


def _word(name: str, value: float) -> str:
    """A parameter as one would type it: steps are whole numbers, the rest are not."""
    return f"{value:.0f}" if name in ("step", "steps") else repr(float(f"{value:.6g}"))


def _parameters(case: Case, action: Action) -> dict[str, float] | None:
    match action.slug:
        case "scale-lr":
            return {"factor": _lr_factor(case)}
        case "set-clip-norm":
            limit = _clip_limit(case)
            return None if limit is None else {"max_norm": limit}
        case "raise-dropout":
            rate = dropout(case.chart)
            current = 0.0 if math.isnan(rate) else rate
            return None if current >= 0.5 else {"rate": round(min(current + 0.1, 0.5), 2)}
        case "set-weight-decay":
            decay = weight_decay(case.chart)
            return None if decay >= 0.1 else {"value": 0.1 if decay >= 0.01 else 0.01}
        case "restart-warmup":
            return {"steps": 1000.0}
        case "stop-at-best" | "clean-data" | "roll-back":
            return {"step": float(case.problem.first_step)}
    return {}


def _lr_factor(case: Case) -> float:
    """Up where nothing moves, else down, further each time that the trouble comes back; a leap is taken back whole."""
    if not case.problem.has(*ACUTE):
        return 2.0
    rise = lr_rise(case.chart, case.problem.first_step)
    if rise > 3:
        return max(float(f"{1 / rise:.1g}"), 1e-4)
    return (0.5, 0.25, 0.1)[min(case.repeats, 3) - 1]


def _clip_limit(case: Case) -> float | None:
    """1.0, tighter when the trouble comes back; about twice the usual norm where that is far from 1.

    None where the loop clips as tightly already.
    """
    base = case.chart["grad_norm"].baseline(128, log=True)
    usual = math.exp(min(base.recent, 300.0)) if base else 1.0
    limit = 1.0 if 0.02 < usual < 5 else float(f"{2 * usual:.1g}")
    limit /= (1, 2, 4)[min(case.repeats, 3) - 1]
    clip = case.chart["clip"].latest
    if clip <= limit:
        limit = clip / 2 if case.repeats > 1 else 0.0
    return float(f"{limit:.2g}") if 1e-12 < limit < 1e12 else None
