"""From symptoms to ranked causes: group what belongs together, add up the evidence, compare."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import INFORMATIVE, SEVERITIES, Diagnosis, Symptom, worst

GAP = 50
"""Steps between two symptoms that may still be one story."""
LEAST = 0.01
"""Probabilities under this are left out."""
FAMILIES: tuple[frozenset[str], ...] = (
    frozenset({"gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf", "gradient-instability"}),
    frozenset({"gradient-vanishing", "loss-plateau"}),
)
"""Symptoms between which a mechanism is known; every other one is a problem of its own."""


def group(symptoms: Sequence[Symptom]) -> list[Problem]:
    """Problems in order of onset: same mechanism and near in time, or the same lone symptom coming back.

    >>> found = [Symptom(name, "", "warning", 0.9, step, step + 2) for name, step in
    ...          [("gradient-explosion", 500), ("loss-spike", 501), ("overfitting", 510), ("loss-spike", 900)]]
    >>> [problem.names for problem in group(found)]
    [('gradient-explosion', 'loss-spike'), ('overfitting',), ('loss-spike',)]
    """
    clusters: list[list[Symptom]] = []
    for symptom in sorted(symptoms, key=lambda item: item.first_step):
        for cluster in reversed(clusters):
            if _linked(cluster, symptom):
                cluster.append(symptom)
                break
        else:
            clusters.append([symptom])
    problems: dict[tuple[str, ...], Problem] = {}
    for number, cluster in enumerate(clusters):
        names = {symptom.name for symptom in cluster}
        # A lone symptom that comes back is one recurring problem; a chain of several is told on its own.
        key = tuple(names) if len(names) == 1 else (*sorted(names), str(number))
        problems[key] = Problem((*problems[key].symptoms, *cluster)) if key in problems else Problem(tuple(cluster))
    return list(problems.values())


def _linked(cluster: list[Symptom], symptom: Symptom) -> bool:
    if symptom.first_step > max(item.last_step for item in cluster) + GAP:
        return False
    return any(symptom.name in family and cluster[0].name in family for family in FAMILIES)


def rank_causes(chart: Chart, causes: Sequence[Cause]) -> tuple[Diagnosis, ...]:
    """The causes of every problem, worst problem first, then by probability; no suggestions yet."""
    problems = group([symptom for symptom in chart.episodes if symptom.name not in INFORMATIVE])
    numbered = list(enumerate(problems, 1))
    numbered.sort(key=lambda item: -_gravity(item[1]))
    return tuple(diagnosis for number, problem in numbered for diagnosis in _explain(chart, number, problem, causes))


def _gravity(problem: Problem) -> int:
    return SEVERITIES.index(worst([symptom.severity for symptom in problem.symptoms]) or "info")


def _explain(chart: Chart, number: int, problem: Problem, causes: Sequence[Cause]) -> list[Diagnosis]:
    weighed: list[tuple[float, Cause, list[Evidence]]] = []
    for cause in causes:
        if problem.has(*cause.explains):
            evidence = list(cause.weigh(chart, problem))
            weighed.append((cause.prior + sum(item.weight for item in evidence), cause, evidence))
    top = max(score for score, _, _ in weighed)
    total = sum(math.exp(score - top) for score, _, _ in weighed)
    kept = [item for item in weighed if math.exp(item[0] - top) / total >= LEAST or item[1].name == "unknown"]
    total = sum(math.exp(score - top) for score, _, _ in kept)
    kept.sort(key=lambda item: -item[0])
    return [
        Diagnosis(number, cause.name, math.exp(score - top) / total, _sentences(evidence), problem.names)
        for score, cause, evidence in kept
    ]


def _sentences(evidence: list[Evidence]) -> tuple[str, ...]:
    """What speaks for a cause, strongest first, then what speaks against it, marked as such."""
    ordered = sorted(evidence, key=lambda item: -item.weight)
    return tuple(item.text if item.weight >= 0 else f"against: {item.text}" for item in ordered)
