"""From symptoms to ranked causes: group symptoms into problems, add up the evidence, compare the causes.

Symptoms that are linked by a known mechanism and near in time form one problem. A definite fact makes a cause certain:
that cause takes the symptoms that it explains and their consequences, and leaves the rest to other causes. Two certain
causes therefore form two problems, and any other cause that also fits is explained away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.calibration import ECHO, INTENDED, RESERVE, SHIFTS, TEMPERATURE
from torchdoctor.diagnoses.cause import CERTAIN, LATE, Cause, Evidence, Problem
from torchdoctor.diagnoses.configuration import logged_every
from torchdoctor.diagnoses.mechanisms import linked, place, reaches
from torchdoctor.records import INFORMATIVE, SEVERITIES, Diagnosis, Symptom, worst

GAP = 50
"""Steps between two symptoms up to which they may belong to one problem; in a log, records of that log."""
LATE_GAP = 200
"""The same if the later symptom is not looked for at every step."""
SLACK = 5
"""Steps by which a consequence may be seen before its cause: not everything is checked at every step."""
TIMING = frozenset({"data-starvation", "step-time-regression", "memory-growth", "straggler-rank"})
"""Findings about the speed of a run, not about what it learns."""
LEAST = 0.01
"""Probability below which causes are left out, except for"""
CONSIDERED = 4
"""the first few of a problem without a certain cause: they are worth a look if the leading cause is wrong."""
DOUBT = 3.0
"""How much a score may fall below `CERTAIN` before a definite fact no longer counts as certain."""
EXPLAINED = -2.0
"""The highest score that any other cause can have if one is certain."""


@dataclass(frozen=True)
class Weighed:
    """A cause with its evidence in one problem."""

    cause: Cause
    evidence: tuple[Evidence, ...]

    @property
    def score(self) -> float:
        """The log-odds of the cause."""
        return self.cause.prior + total(item.weight for item in self.evidence)

    @property
    def certain(self) -> bool:
        """Whether a definite fact supports the cause and little evidence is against it."""
        return any(item.weight >= CERTAIN for item in self.evidence) and self.score >= CERTAIN - DOUBT


def total(weights: Iterable[float]) -> float:
    """The sum of evidence, in which all supporting evidence but the strongest counts only in part.

    Pieces of evidence come from the same run, often from the same vitals: three weak ones do not make a strong one.

    >>> total([1.5, 3.0, -1.0]) == 3.0 + ECHO * 1.5 - 1.0
    True
    """
    weights = list(weights)
    pros = [weight for weight in weights if weight > 0]
    strongest = max(pros, default=0.0)
    return strongest + ECHO * (sum(pros) - strongest) + sum(weight for weight in weights if weight < 0)


@dataclass(frozen=True)
class Claim:
    """A problem and its certain cause, if it has one."""

    problem: Problem
    owner: Cause | None = None


def group(symptoms: Iterable[Symptom], every: int = 1) -> list[Problem]:
    """Problems in order of onset: symptoms linked by a mechanism and near in time, or one symptom that recurs alone.

    `every` is the number of steps between two records.

    >>> found = [Symptom(name, "", "warning", 0.9, step, step + 2) for name, step in
    ...          [("gradient-explosion", 500), ("loss-spike", 501), ("overfitting", 510), ("loss-spike", 900)]]
    >>> [problem.names for problem in group(found)]
    [('gradient-explosion', 'loss-spike'), ('overfitting',), ('loss-spike',)]
    >>> [problem.names for problem in group(found, every=10)]
    [('gradient-explosion', 'loss-spike'), ('overfitting',)]
    """
    over: list[list[Symptom]] = []
    clusters: list[tuple[list[Symptom], list[Symptom]]] = []  # all members, and those near enough to link another
    for symptom in _in_order(symptoms):
        whole, recent, apart = [symptom], [symptom], []
        for members, known in clusters:
            near = [item for item in known if item.last_step + LATE_GAP * every >= symptom.first_step]
            if any(_follows(item, symptom, every) for item in near):
                whole, recent = members + whole, near + recent
            elif near:
                apart.append((members, near))
            else:
                over.append(members)
        clusters = [*apart, (whole, recent)]
    found = sorted(
        over + [members for members, _ in clusters], key=lambda cluster: min(item.first_step for item in cluster)
    )
    problems: dict[tuple[str, ...], Problem] = {}
    for number, cluster in enumerate(found):
        names = {symptom.name for symptom in cluster}
        # A lone symptom that recurs is one problem; each chain of several is a problem of its own.
        key = tuple(names) if len(names) == 1 else (*sorted(names), str(number))
        before = problems[key].symptoms if key in problems else ()
        problems[key] = _problem((*before, *cluster))
    return list(problems.values())


def _in_order(symptoms: Iterable[Symptom]) -> list[Symptom]:
    return sorted(symptoms, key=lambda item: (item.first_step, place(item.name)))


def _problem(symptoms: Iterable[Symptom]) -> Problem:
    return Problem(tuple(_in_order(symptoms)))


def _follows(earlier: Symptom, later: Symptom, every: int) -> bool:
    gap = (LATE_GAP if later.name in LATE else GAP) * every
    return later.first_step <= earlier.last_step + gap and linked(earlier.name, later.name)


def rank_causes(chart: Chart, causes: Sequence[Cause]) -> tuple[Diagnosis, ...]:
    """The causes of every problem, worst problem first, then by probability; suggestions are added later."""
    symptoms = [symptom for symptom in chart.episodes if symptom.name not in INFORMATIVE]
    problems = group(symptoms, logged_every(chart))
    claims = _joined(claim for problem in problems for claim in _parted(chart, problem, causes))
    elsewhere = {claim.owner.name for claim in claims if claim.owner is not None}

    def explain(claim: Claim) -> list[Diagnosis]:
        own = claim.owner.name if claim.owner is not None else ""
        return _explained(chart, claim.problem, causes, elsewhere - {own})

    told = sorted(_of_one_cause(claims, explain), key=lambda pair: _order(pair[0]))
    return tuple(replace(item, problem=number) for number, (_, found) in enumerate(told, 1) for item in found)


Told = tuple[Claim, list[Diagnosis]]


def _of_one_cause(claims: Iterable[Claim], explain: Callable[[Claim], list[Diagnosis]]) -> list[Told]:
    """Join problems that overlap in time and have the same likeliest cause, if the joined problem still has it.

    The causes are returned as well: weighing them is the expensive part of ranking, and it runs inside the loop.
    """
    joined: list[Told] = []
    for claim in claims:
        found = explain(claim)
        for nth, (other, its) in enumerate(joined):
            if found[0].cause == its[0].cause != "unknown" and _overlap(claim.problem, other.problem):
                both = Claim(_problem((*other.problem.symptoms, *claim.problem.symptoms)), other.owner or claim.owner)
                together = explain(both)
                if together[0].cause == its[0].cause:
                    joined[nth] = both, together
                    break
        else:
            joined.append((claim, found))
    return joined


def _overlap(one: Problem, other: Problem) -> bool:
    first = max(min(item.first_step for item in problem.symptoms) for problem in (one, other))
    return first <= min(one.last_step, other.last_step)


def _order(claim: Claim) -> tuple[int, bool, bool, int]:
    """Sort key: severity, then results before speed, then certain causes first, then onset."""
    problem = claim.problem
    return -_gravity(problem), TIMING.issuperset(problem.names), claim.owner is None, problem.first_step


def _gravity(problem: Problem) -> int:
    return SEVERITIES.index(worst([symptom.severity for symptom in problem.symptoms]) or "info")


def _weigh(chart: Chart, problem: Problem, causes: Iterable[Cause]) -> list[Weighed]:
    candidates = (cause for cause in causes if problem.has(*cause.explains))
    return [Weighed(cause, _evidence(cause, chart, problem)) for cause in candidates]


def _evidence(cause: Cause, chart: Chart, problem: Problem) -> tuple[Evidence, ...]:
    """The evidence for and against a cause; empty if weighing fails, for example on odd values in a log."""
    try:
        return tuple(cause.weigh(chart, problem))
    except Exception:  # noqa: BLE001  one failing cause must not stop the others
        return ()


def _parted(chart: Chart, problem: Problem, causes: Sequence[Cause]) -> list[Claim]:
    """The problem unchanged, or one problem per certain cause plus the symptoms that none of them explains."""
    certain = [item.cause for item in _weigh(chart, problem, causes) if item.certain]
    if not certain:
        return [Claim(problem)]
    shares = _shares(problem, certain)
    # The consequences of what a certain cause explains belong to it as well.
    rest = [symptom for symptom in problem.symptoms if not any(symptom in share for share in shares.values())]
    for symptom in list(rest):
        for share in shares.values():
            if any(_led_to(item, symptom) for item in share):
                share.append(symptom)
                rest.remove(symptom)
                break
    owned = [Claim(_problem(share), cause) for cause, share in shares.items() if share]
    return owned + [Claim(item) for item in group(rest, logged_every(chart))]


def _led_to(earlier: Symptom, later: Symptom) -> bool:
    return earlier.first_step <= later.first_step + SLACK and reaches(earlier.name, later.name)


def _shares(problem: Problem, certain: list[Cause]) -> dict[Cause, list[Symptom]]:
    """The symptoms of each certain cause; one that several explain goes to those without any, or else to the first."""
    shares: dict[Cause, list[Symptom]] = {cause: [] for cause in certain}
    shared: list[tuple[Symptom, list[Cause]]] = []
    for symptom in problem.symptoms:
        claimants = [cause for cause in certain if symptom.name in cause.explains]
        if len(claimants) == 1:
            shares[claimants[0]].append(symptom)
        elif claimants:
            shared.append((symptom, claimants))
    empty = [cause for cause, share in shares.items() if not share]
    for symptom, claimants in shared:
        takers = [cause for cause in claimants if cause in empty] or claimants[:1]
        for cause in takers:
            shares[cause].append(symptom)
    return shares


def _joined(claims: Iterable[Claim]) -> list[Claim]:
    """Join problems that have the same certain cause."""
    joined: dict[str, Claim] = {}
    for number, claim in enumerate(claims):
        key = claim.owner.name if claim.owner is not None else f"#{number}"
        known = joined[key].problem.symptoms if key in joined else ()
        joined[key] = Claim(_problem((*known, *claim.problem.symptoms)), claim.owner)
    return list(joined.values())


def _explained(chart: Chart, problem: Problem, causes: Sequence[Cause], elsewhere: set[str]) -> list[Diagnosis]:
    """The causes of one problem, without those that the same definite fact makes certain in another problem."""
    weighed = [
        item
        for item in _weigh(chart, problem, causes)
        if (item.cause.name not in elsewhere if item.certain else _explains_what_counts(problem, item.cause))
    ]
    scores = _calibrated(weighed)
    shares = _softmax(scores)
    order = sorted(range(len(weighed)), key=lambda place: -scores[place])
    certain = any(item.certain for item in weighed)
    kept = [
        place
        for nth, place in enumerate(order)
        if shares[place] >= LEAST or weighed[place].cause.name == "unknown" or (nth < CONSIDERED and not certain)
    ]
    final = _softmax([scores[place] for place in kept])
    final = _reserved([weighed[place].cause.name for place in kept], final, INTENDED if certain else RESERVE)
    ranked = sorted(zip(kept, final, strict=True), key=lambda pair: -pair[1])
    places = {id(symptom): place for place, symptom in enumerate(chart.episodes)}
    episodes = tuple(places[id(symptom)] for symptom in problem.symptoms)
    return [
        Diagnosis(
            problem=0,  # numbered when all problems are known
            cause=weighed[place].cause.name,
            probability=probability,
            evidence=_sentences(weighed[place].evidence),
            symptoms=problem.names,
            episodes=episodes,
        )
        for place, probability in ranked
    ]


def _explains_what_counts(problem: Problem, cause: Cause) -> bool:
    """Whether a cause explains a finding that does harm; always true if nothing in the problem is critical."""
    breaks = any(symptom.severity == "critical" for symptom in problem.symptoms)
    return not breaks or problem.grave(*cause.explains)


def _calibrated(weighed: Sequence[Weighed]) -> list[float]:
    """Scores to compare: calibrated, or limited if another cause is certain."""
    if any(item.certain for item in weighed):
        return [
            item.score if item.certain or item.cause.name == "unknown" else min(item.score, EXPLAINED)
            for item in weighed
        ]
    return [(item.score + SHIFTS.get(item.cause.name, 0.0)) / TEMPERATURE for item in weighed]


def _reserved(names: Sequence[str], shares: Sequence[float], part: float) -> list[float]:
    """Probabilities with a part reserved for `unknown`: causes not in the catalogue, and false alarms."""
    if "unknown" not in names:
        return list(shares)
    return [(1 - part) * share + part * (name == "unknown") for name, share in zip(names, shares, strict=True)]


def _softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


def _sentences(evidence: Iterable[Evidence]) -> tuple[str, ...]:
    """Evidence for a cause, strongest first, then evidence against it; "certain" and "against" are marked."""
    told = []
    for item in sorted(evidence, key=lambda item: -item.weight):
        mark = "certain: " if item.weight >= CERTAIN else "against: " if item.weight < 0 else ""
        told.append(mark + item.text)
    return tuple(told)
