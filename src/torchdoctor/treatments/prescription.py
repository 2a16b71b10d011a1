"""From diagnoses to suggestions: what to change, how confidently, in which order.

Actions come from the cause (`Cause.suggests`), best first; if no cause is certain, also from the finding
(`Detector.suggests`). Their confidence is that of the pair in `PRIORS`, otherwise the action's prior.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem
from torchdoctor.records import SEVERITIES, Diagnosis, Suggestion, number_text
from torchdoctor.symptoms import DETECTORS
from torchdoctor.treatments.action import PRIORITY, Action
from torchdoctor.treatments.actions import ACTIONS
from torchdoctor.treatments.case import FAST, SLOW, WINDOW, Case, direction
from torchdoctor.treatments.configured import highest_rate
from torchdoctor.treatments.fitting import fitting, in_question
from torchdoctor.treatments.parameters import parameters
from torchdoctor.treatments.priors import PRIORS

LOWEST, HIGHEST = 0.5, 0.99
"""Suggestions below the lowest confidence are withheld; no confidence exceeds the highest."""
LIKELY = 0.2
"""Causes below this probability do not contribute to the merged list."""
SURE = 0.9
"""From this probability, the cause alone is treated, and before other problems."""
FINDING = 0.55
"""The confidence of an action suggested by a finding, if `PRIORS` has no value for it."""
REPAIR = 0.8
"""An action with at least this prior repairs one specific fault: a finding alone does not suggest it."""
PROTECTS = ("skip-step", "roll-back", "ask-for-help")
"""Actions that a finding suggests even if the cause is known: they protect or restore the state."""

OPPOSED = {"down": SLOW, "up": FAST}
"""By the direction in which the learning rate must go: the findings that ask for the opposite."""

BY_SLUG = {action.slug: action for action in ACTIONS}
SUGGESTED = {rule.name: rule.suggests for rule in DETECTORS} | {cause.name: cause.suggests for cause in CAUSES}


@dataclass(frozen=True)
class Offer:
    """A suggestion on its way into the merged list."""

    suggestion: Suggestion
    severity: int
    sure: bool = False
    order: int = 0
    """Its place among the suggestions of its cause."""
    problem: int = 0
    """The number of its problem; 1 is the worst."""
    repeats: int = 1
    """How often its problem was seen."""

    @property
    def weight(self) -> tuple[bool, int, float, int]:
        """Of several offers of one action the largest is kept; if equally confident, the more repeated one."""
        return self.sure, self.severity, self.suggestion.confidence, self.repeats

    @property
    def goes_ahead(self) -> bool:
        """Whether it comes before what treats a worse problem: it treats a certain cause, or protects from harm."""
        return self.sure or (self.severity > 0 and self.suggestion.priority == PRIORITY["gradient control"])

    @property
    def place(self) -> tuple[bool, int, int, float]:
        """Its place in the queue, smallest first; actions against a certain cause keep the order of that cause."""
        if self.sure:
            return False, 0, -self.severity, self.order
        return True, self.suggestion.priority, -self.severity, -self.suggestion.confidence


@dataclass(frozen=True)
class Draft:
    """All suggestions for one diagnosis, whatever their confidence."""

    diagnosis: Diagnosis
    case: Case
    first: Diagnosis
    """The most likely diagnosis of the same problem."""
    thought_of: tuple[Suggestion, ...]

    @property
    def severity(self) -> int:
        """The worst severity of the findings; 0 is info."""
        return SEVERITIES.index(self.case.severity)

    @property
    def is_heard(self) -> bool:
        """Whether it contributes: likely causes, and the `unknown` of every problem, which stands for its findings."""
        return not self.case.cause or self.diagnosis.probability >= LIKELY

    @property
    def treated(self) -> Diagnosis:
        """The diagnosis with its suggestions that are confident enough."""
        return replace(self.diagnosis, suggestions=tuple(_sure_enough(self.thought_of)))

    @property
    def offers(self) -> list[Offer]:
        """Its contributions to the merged list."""
        own = _sure_enough(self.thought_of) if self.is_heard else []
        # Advice against harmless problems does not come first.
        sure = bool(self.case.cause) and self.diagnosis.probability >= SURE and self.severity > 0
        return [self._offer(item, sure, order) for order, item in enumerate(own) if self._counts(item)]

    @property
    def surest(self) -> Offer:
        """Its most confident suggestion, raised to the lowest confidence that is reported."""
        best = max(self.thought_of, key=lambda item: item.confidence)
        return self._offer(replace(best, confidence=max(best.confidence, LOWEST)))

    def _offer(self, suggestion: Suggestion, sure: bool = False, order: int = 0) -> Offer:
        return Offer(suggestion, self.severity, sure, order, self.diagnosis.problem, self.case.repeats)

    def _counts(self, suggestion: Suggestion) -> bool:
        """Whether a suggestion of a finding counts next to the most likely cause."""
        if self.case.cause or self.first.cause == "unknown" or suggestion.action in PROTECTS:
            return True
        named = any((name, suggestion.action) in PRIORS for name in self.case.problem.names)
        return self.first.probability < SURE and named


def prescribe(chart: Chart, diagnoses: Iterable[Diagnosis]) -> tuple[tuple[Diagnosis, ...], tuple[Suggestion, ...]]:
    """The diagnoses with their suggestions, and all suggestions merged, in the order in which to try them.

    Actions against a certain cause come first. Then follow gradient control, regularization, optimizer and data,
    architecture, process; within a kind, the worse problem and then the more confident suggestion. Among the changes
    for the worst problem, that against its most likely cause comes first, and only gradient control and changes against
    a certain cause of another problem come before it. Each action appears once. A problem that does harm has a
    suggestion unless none of its actions makes sense in this run.
    """
    treated: list[Diagnosis] = []
    offers: list[Offer] = []
    for _, alike in itertools.groupby(diagnoses, key=lambda diagnosis: diagnosis.problem):
        own = list(alike)
        drafts = [_draft(chart, diagnosis, own[0]) for diagnosis in own if diagnosis.episodes]
        by_cause = {draft.diagnosis.cause: draft.treated for draft in drafts}
        told = [offer for draft in drafts for offer in draft.offers]
        if not told and (spared := _spared(drafts)) is not None:
            told = [spared.surest]
            by_cause[spared.diagnosis.cause] = replace(spared.diagnosis, suggestions=(spared.surest.suggestion,))
        offers += told
        treated += [by_cause.get(diagnosis.cause, diagnosis) for diagnosis in own]
    return tuple(treated), _led(treated, _merged(offers))


def _draft(chart: Chart, diagnosis: Diagnosis, first: Diagnosis) -> Draft:
    problem = Problem(tuple(chart.episodes[place] for place in diagnosis.episodes))
    case = Case(chart, problem, "" if diagnosis.cause == "unknown" else diagnosis.cause, diagnosis.evidence)
    thought_of = _for_cause(case, diagnosis) if case.cause else _for_symptoms(case)
    return Draft(diagnosis, case, first, tuple(thought_of))


def _spared(drafts: list[Draft]) -> Draft | None:
    """The draft whose best suggestion is reported for a harmful problem without confident suggestions; else None."""
    heard = [draft for draft in drafts if draft.is_heard and draft.severity > 0]
    more = [replace(item, thought_of=tuple(_for_symptoms(item.case, all_of_it=True))) for item in heard]
    return next((draft for draft in (*heard, *more) if draft.thought_of), None)


def _led(treated: list[Diagnosis], offers: list[Offer]) -> tuple[Suggestion, ...]:
    """The queue, with the change against the most likely cause of the worst problem before all others for it.

    It also comes before changes for other problems, except those that protect the run and those of a certain cause.
    """
    first = treated[0] if treated else None
    actions = [offer.suggestion.action for offer in offers]
    own = [item.action for item in first.suggestions if item.action in actions] if first is not None else []
    if first is not None and not own:  # it has none: then one against another cause of the same problem
        own = [offer.suggestion.action for offer in offers if offer.problem == first.problem]
    if first is not None and own:
        waits = (place for place, offer in enumerate(offers) if offer.problem == first.problem or not offer.goes_ahead)
        # If another problem had the larger offer of every action, its change comes first.
        place = next(waits, 0)
        leading = offers.pop(actions.index(own[0]))
        offers.insert(min(place, actions.index(own[0])), leading)
    return tuple(offer.suggestion for offer in offers)


def _merged(offers: list[Offer]) -> list[Offer]:
    """The queue by priority: for each action its largest offer."""
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
        thought(case, slug, PRIORS.get((diagnosis.cause, slug), BY_SLUG[slug].prior) * likely, reason)
        for slug in in_question(SUGGESTED.get(diagnosis.cause, ()), diagnosis.evidence)
    ]
    return [item for item in found if item is not None]


def _sure_enough(suggestions: Iterable[Suggestion]) -> list[Suggestion]:
    return [item for item in suggestions if item.confidence >= LOWEST]


def _for_symptoms(case: Case, all_of_it: bool = False) -> list[Suggestion]:
    """The suggestions of the findings, whatever the cause, most confident first; more of them if findings repeat.

    `all_of_it`: also those that are too strong for a problem that is over, and those that repair one specific fault.
    """
    found = []
    for name in case.problem.names:
        for slug in SUGGESTED.get(name, ()):
            action, known = BY_SLUG[slug], PRIORS.get((name, slug))
            if slug == "scale-lr" and name in OPPOSED.get(direction(case), ()):
                continue  # another finding decides the direction
            if known is None:
                known = FINDING if action.prior < REPAIR else LOWEST if all_of_it else 0.0
            if all_of_it or (known and (action.kind == "gradient control" or not case.healed)):
                found.append(thought(case, slug, known, name))
    again = f"{case.repeated} was seen {case.repeats} times within {WINDOW} steps"
    if case.repeats >= 3:
        found.append(thought(case, "roll-back", 0.75, again))
    found.append(thought(case, "ask-for-help", 0.7, again))
    best: dict[str, Suggestion] = {}
    for item in found:
        if item is not None and (item.action not in best or item.confidence > best[item.action].confidence):
            best[item.action] = item
    return sorted(best.values(), key=lambda item: -item.confidence)


def suggest(case: Case, slug: str, confidence: float, reason: str) -> Suggestion | None:
    """One action with its parameters for this case; None if it makes no sense or is not confident enough."""
    made = thought(case, slug, confidence, reason)
    return made if made is not None and made.confidence >= LOWEST else None


def thought(case: Case, slug: str, confidence: float, reason: str) -> Suggestion | None:
    """The same whatever its confidence; None if it makes no sense."""
    action = BY_SLUG[slug]
    values = parameters(case, slug)
    if values is None:
        return None
    confidence += {"info": -0.15, "warning": 0.0, "critical": 0.05}[case.severity]
    if slug == "scale-lr" and case.healed:
        confidence -= 0.3
    words = {name: _word(name, value) for name, value in values.items()}
    code = action.code.format(**words) if words.keys() >= action.parameters.keys() else action.blind
    return Suggestion(
        action=slug,
        code=fitting(case.chart, code, (*case.calls, *case.evidence)),
        confidence=round(min(confidence, HIGHEST), 2),
        safety=action.safety,
        parameters=values,
        priority=action.priority,
        reason=f"{reason}: {_what(case, action, values)}",
    )


def _what(case: Case, action: Action, values: Mapping[str, float]) -> str:
    """What the action does; for the learning rate, the direction and the values of this run if known."""
    if action.slug != "scale-lr":
        return action.summary
    way = "Lower" if values["factor"] < 1 else "Raise"
    rate = highest_rate(case.chart)
    known = "" if math.isnan(rate) else f", from {number_text(rate)} to {number_text(rate * values['factor'])}"
    return f"{way} the learning rate{known}."


def _word(name: str, value: float) -> str:
    """A parameter as code: steps as integers, others as floats."""
    return f"{value:.0f}" if name in ("step", "steps", "first", "last") else repr(float(f"{value:.6g}"))
