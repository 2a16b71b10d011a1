"""From diagnoses to suggestions: what to change, how sure, in which order.

Which actions: those that the cause names (`Cause.suggests`), most fitting first; where no cause is sure, also those
that the finding names (`Detector.suggests`). How sure: `PRIORS` where a pair has a number of its own, else the
action's prior.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem
from torchdoctor.records import SEVERITIES, Diagnosis, Suggestion, number_text
from torchdoctor.symptoms import DETECTORS
from torchdoctor.treatments.action import Action
from torchdoctor.treatments.actions import ACTIONS
from torchdoctor.treatments.configured import highest_rate
from torchdoctor.treatments.parameters import WINDOW, Case, parameters

LOWEST, HIGHEST = 0.5, 0.99
"""Suggestions under the lowest confidence are withheld; nothing is ever surer than the highest."""
LIKELY = 0.2
"""Causes at least this probable have a say in the merged list."""
SURE = 0.9
"""From this probability on the cause alone is treated, and treated first."""
FINDING = 0.55
"""The confidence of what a finding suggests, whatever its cause, where no number says more."""
REPAIR = 0.8
"""An action with this prior or more mends one definite fault: a finding alone does not ask for it."""
PROTECTS = ("skip-step", "roll-back", "ask-for-help")
"""What a finding asks for even where the cause is known: it keeps or restores what there is."""

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
    ("data-starvation", "speed-up-data"): 0.8,
    ("memory-growth", "free-memory"): 0.75,
    ("double-descent", "keep-training"): 0.8,
    ("rank-divergence", "synchronize-ranks"): 0.8,
    ("straggler-rank", "check-hardware"): 0.7,
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
    ("missing-normalization", "add-normalization"): 0.85,
    ("bad-initialization", "initialize"): 0.9,
    ("memorization", "stop-at-best"): 0.85,
    ("memorization", "augment-data"): 0.75,
    ("memorization", "raise-dropout"): 0.75,
    ("under-regularized", "raise-dropout"): 0.85,
    ("under-regularized", "set-weight-decay"): 0.75,
    ("over-regularized", "lower-dropout"): 0.85,
    ("over-regularized", "set-weight-decay"): 0.8,
    ("insufficient-capacity", "resize-model"): 0.8,
    ("clip-too-tight", "set-clip-norm"): 0.85,
    ("stopped-too-early", "train-longer"): 0.85,
    ("class-imbalance", "rebalance-classes"): 0.85,
    ("label-noise-or-misalignment", "check-labels"): 0.8,
    ("collapsed-output", "rebalance-classes"): 0.6,
    ("adversarial-imbalance", "balance-players"): 0.75,
    ("policy-collapse", "raise-entropy"): 0.8,
    ("batch-size-unsuited", "change-batch-size"): 0.75,
}
"""By finding or cause, and action: the paper's priors where it has one, else judgement, until measured."""

BY_SLUG = {action.slug: action for action in ACTIONS}
SUGGESTED = {rule.name: rule.suggests for rule in DETECTORS} | {cause.name: cause.suggests for cause in CAUSES}


@dataclass(frozen=True)
class Offer:
    """A suggestion on its way into the merged list."""

    suggestion: Suggestion
    severity: int
    sure: bool = False
    order: int = 0
    """Its place among those of its cause."""
    problem: int = 0

    @property
    def weight(self) -> tuple[bool, int, float]:
        """Which of several offers of one action is kept: the largest."""
        return self.sure, self.severity, self.suggestion.confidence

    @property
    def place(self) -> tuple[bool, int, int, float]:
        """Its place in the queue, the smallest first; what mends a sure cause keeps the order of its cause."""
        if self.sure:
            return False, 0, -self.severity, self.order
        return True, self.suggestion.priority, -self.severity, -self.suggestion.confidence


def prescribe(chart: Chart, diagnoses: Iterable[Diagnosis]) -> tuple[tuple[Diagnosis, ...], tuple[Suggestion, ...]]:
    """The diagnoses with their suggestions, and all suggestions merged, best first.

    What mends a sure cause comes first. Then gradient control comes before regularization, that before optimizer and
    data, that before architecture; within a kind the worse problem and then the surer suggestion. Of the worst problem,
    the change that mends its likeliest cause comes first. Each action appears once.
    """
    treated: list[Diagnosis] = []
    offers: list[Offer] = []
    leading: dict[int, Diagnosis] = {}
    for diagnosis in diagnoses:
        first = leading.setdefault(diagnosis.problem, diagnosis)
        if not diagnosis.episodes:
            treated.append(diagnosis)
            continue
        problem = Problem(tuple(chart.episodes[place] for place in diagnosis.episodes))
        case = Case(chart, problem, "" if diagnosis.cause == "unknown" else diagnosis.cause)
        severity = SEVERITIES.index(case.severity)
        own = _for_cause(case, diagnosis) if case.cause else _for_symptoms(case)
        treated.append(replace(diagnosis, suggestions=tuple(own)))
        if case.cause and diagnosis.probability >= LIKELY:
            # Advice on what does no harm does not jump the queue.
            sure = diagnosis.probability >= SURE and severity > 0
            offers += [Offer(item, severity, sure, order, diagnosis.problem) for order, item in enumerate(own)]
        if not case.cause:  # there is one in every problem: the findings speak for themselves
            offers += [Offer(item, severity, problem=diagnosis.problem) for item in own if _counts(item, case, first)]
    return tuple(treated), _led(treated, _merged(offers))


def _counts(suggestion: Suggestion, case: Case, first: Diagnosis) -> bool:
    """Whether what a finding asks for has a say beside its likeliest cause."""
    if first.cause == "unknown" or suggestion.action in PROTECTS:
        return True
    return first.probability < SURE and any((name, suggestion.action) in PRIORS for name in case.problem.names)


def _led(treated: list[Diagnosis], offers: list[Offer]) -> tuple[Suggestion, ...]:
    """The queue with what mends the likeliest cause of the worst problem before all else that is for this problem."""
    first = treated[0] if treated else None
    actions = [offer.suggestion.action for offer in offers]
    own = [item.action for item in first.suggestions if item.action in actions] if first is not None else []
    if first is not None and own:
        # Another problem may have had the weightier offer of every action: then its cure leads the queue.
        place = next((place for place, offer in enumerate(offers) if offer.problem == first.problem), 0)
        leading = offers.pop(actions.index(own[0]))
        offers.insert(min(place, actions.index(own[0])), leading)
    return tuple(offer.suggestion for offer in offers)


def _merged(offers: list[Offer]) -> list[Offer]:
    """The priority queue: for each action its weightiest offer."""
    best: dict[str, Offer] = {}
    for offer in offers:
        known = best.get(offer.suggestion.action)
        if known is None or offer.weight > known.weight:
            best[offer.suggestion.action] = offer
    return sorted(best.values(), key=lambda offer: offer.place)


def _for_cause(case: Case, diagnosis: Diagnosis) -> list[Suggestion]:
    likely = 0.6 + 0.4 * diagnosis.probability
    reason = f"{diagnosis.cause} ({min(100 * diagnosis.probability, 100 * HIGHEST):.0f} %)"
    found = [
        suggest(case, slug, PRIORS.get((diagnosis.cause, slug), BY_SLUG[slug].prior) * likely, reason)
        for slug in in_question(SUGGESTED.get(diagnosis.cause, ()), diagnosis.evidence)
    ]
    return [item for item in found if item is not None]


def in_question(slugs: Iterable[str], evidence: Iterable[str]) -> list[str]:
    """Without the settings that the evidence does not speak of, where it speaks of one: a cause may have several.

    >>> in_question(["lower-dropout", "set-weight-decay"], ["weight decay takes 0.02 of each weight a step"])
    ['set-weight-decay']
    """
    text = " ".join(item for item in evidence if not item.startswith("against:"))
    words = {slug: slug.partition("-")[2].replace("-", " ").replace("betas", "beta") for slug in slugs}
    settings = {slug for slug in words if slug.startswith(("set-", "change-", "raise-", "lower-"))}
    named = {slug for slug in settings if re.search(rf"\b{words[slug]}", text)}
    return [slug for slug in words if not named or slug in named or slug not in settings]


def _for_symptoms(case: Case) -> list[Suggestion]:
    """What the findings themselves ask for, whatever the cause; more of it when they come back; surest first."""
    found = []
    for name in case.problem.names:
        for slug in SUGGESTED.get(name, ()):
            action, known = BY_SLUG[slug], PRIORS.get((name, slug))
            if case.healed and action.kind != "gradient control":
                continue  # nothing needs to be rebuilt for what has passed
            if known is not None or action.prior < REPAIR:
                found.append(suggest(case, slug, FINDING if known is None else known, name))
    again = f"{case.problem.names[0]} was seen {case.repeats} times within {WINDOW} steps"
    if case.repeats >= 3:
        found.append(suggest(case, "roll-back", 0.75, again))
    found.append(suggest(case, "ask-for-help", 0.7, again))
    best: dict[str, Suggestion] = {}
    for item in found:
        if item is not None and (item.action not in best or item.confidence > best[item.action].confidence):
            best[item.action] = item
    return sorted(best.values(), key=lambda item: -item.confidence)


def suggest(case: Case, slug: str, confidence: float, reason: str) -> Suggestion | None:
    """One action with its parameters for this case; None where it makes no sense or is not sure enough."""
    action = BY_SLUG[slug]
    values = parameters(case, slug)
    if values is None:
        return None
    confidence += {"info": -0.15, "warning": 0.0, "critical": 0.05}[case.severity]
    if slug == "scale-lr" and case.healed:
        confidence -= 0.3
    if confidence < LOWEST:
        return None
    words = {name: _word(name, value) for name, value in values.items()}
    return Suggestion(
        action=slug,
        code=fitting(case, action.code.format(**words) if words.keys() >= action.parameters.keys() else action.blind),
        confidence=round(min(confidence, HIGHEST), 2),
        safety=action.safety,
        parameters=values,
        priority=action.priority,
        reason=f"{reason}: {_what(case, action, values)}",
    )


FITTING: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("loss.kind", ("bce",), "binary_cross_entropy_with_logits"),
    ("loss.kind", ("mse", "l1", "huber"), "before a regression loss"),
    ("loss.kind", ("mse", "l1", "huber"), "made from the target"),
    ("state.written_in_part", (), "once, before the loop"),
)
"""A fact of the run, what it may be (anything, if nothing is said), and words of the line of code that comes first."""


def fitting(case: Case, code: str) -> str:
    """The code with the line first that fits what is known of the run: the first line is what is read in a hurry."""
    lines = code.split("\n")
    for fact, values, words in FITTING:
        known = case.chart.fact(fact)
        if known in values if values else known:
            lines.sort(key=lambda line: words not in line)
    return "\n".join(lines)


def _what(case: Case, action: Action, values: Mapping[str, float]) -> str:
    """What the action does; of a rate, which way, and what that comes to in this run where it is known."""
    if action.slug != "scale-lr":
        return action.summary
    way = "Lower" if values["factor"] < 1 else "Raise"
    rate = highest_rate(case.chart)
    known = "" if math.isnan(rate) else f", from {number_text(rate)} to {number_text(rate * values['factor'])}"
    return f"{way} the learning rate{known}."


def _word(name: str, value: float) -> str:
    """A parameter as one would type it: steps are whole numbers, the rest are not."""
    return f"{value:.0f}" if name in ("step", "steps", "first", "last") else repr(float(f"{value:.6g}"))
