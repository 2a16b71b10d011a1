"""The data that the page gets: plain values, strings free of control characters, numbers finite or words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torchdoctor.live.pace import pace_text
from torchdoctor.live.sight import Sight
from torchdoctor.pictures import Bucket, main_vitals, outstanding
from torchdoctor.records import INFORMATIVE, Symptom, number_text
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.curves import gaps, scale, thinned
from torchdoctor.reports.problem import Problem, meaning, problems, remedy
from torchdoctor.reports.verdict import HEALTH_WORDS, advice, verdict
from torchdoctor.reports.wording import label, percent, printable, steps_text, where_text

TITLES = {"loss": "loss", "grad_norm": "gradient norm", "validation": "validation", "lr": "learning rate"}
POINTS = 400
"""Most points of a curve: a screen shows no more."""
SPARK = 60
EPISODES = 200
"""Most marks in the curves."""
PROBLEMS = 12
SYMPTOMS = 6
"""Most episodes of a problem in words; all of them are marked."""
CAUSES = 3


def public(key: str) -> str:
    """The id of a run in addresses, which does not reveal its path."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:12]


def summary(sight: Sight, now: float) -> dict[str, Any]:
    """A run as a row of the list."""
    report = sight.report
    loss = next((name for name in sight.latest if name.endswith("loss")), None)
    return {
        "id": public(sight.key),
        "name": printable(sight.name)[-200:],
        "state": sight.state,
        "health": report.health,
        "word": HEALTH_WORDS[report.health],
        "verdict": verdict(report) if report.step >= 0 else "",
        "step": report.step,
        "clock": clock_of(report.context),
        "total": sight.total,
        "pace": pace_text(sight.rate) if sight.rate else "",
        "left": sight.left,
        "silence": max(now - sight.heard, 0.0),
        "patience": sight.patience,
        "problem": printable(sight.problem)[:1000],
        "loss": number_text(sight.latest[loss]) if loss else "",
        "spark": _spark(report.curves[loss]) if loss else [],
        "version": sight.version,
    }


def detail(sight: Sight) -> dict[str, Any]:
    """A run in full."""
    report = sight.report
    panels = main_vitals(report.curves)
    return {
        "id": public(sight.key),
        "advice": advice(report),
        "panels": [
            {
                "title": TITLES[key],
                "log": scale(key, panels[key], report),
                "curves": [_curve(sight, name) for name in panels[key]],
            }
            for key in TITLES
            if panels[key]
        ],
        "marks": [_mark(item, sight) for item in report.symptoms if item.name not in INFORMATIVE][-EPISODES:],
        "problems": [_problem(item, sight) for item in problems(report)[:PROBLEMS]],
        "changes": [
            {"code": printable(item.code, lines=True), "reason": printable(item.reason)}
            for item in report.suggestions[:3]
        ],
        "notes": [printable(text)[:1000] for text in report.notes[-20:]],
    }


def _curve(sight: Sight, name: str) -> dict[str, Any]:
    buckets = sight.report.curves[name]
    return {
        "name": printable(name)[:80],
        "latest": number_text(sight.latest[name]),
        "dots": name.startswith("val_"),
        "buckets": _thinned(buckets),
        "peaks": outstanding(thinned(buckets, POINTS)),
        "gaps": gaps(thinned(buckets, POINTS), sight.report),
    }


def _thinned(buckets: Sequence[Bucket], most: int = POINTS) -> list[list[float]]:
    return [[step, *map(_short, values)] for step, *values in thinned(buckets, most)]


def _spark(buckets: Sequence[Bucket]) -> list[float]:
    return [item[2] for item in _thinned(buckets, SPARK)]


def _short(value: float) -> float:
    """Six digits are finer than a screen."""
    return float(f"{value:.6g}")


def _mark(symptom: Symptom, sight: Sight) -> dict[str, Any]:
    return {
        "severity": symptom.severity,
        "code": printable(symptom.code)[:8],
        "first": symptom.first_step,
        "last": sight.report.step if sight.is_open(symptom) else symptom.last_step,
    }


def _problem(problem: Problem, sight: Sight) -> dict[str, Any]:
    best = problem.diagnoses[0] if problem.diagnoses else None
    _, code = ("", "") if best is None else remedy(problem, best)
    return {
        "severity": problem.severity,
        "title": problem.title,
        "steps": problem.steps,
        "symptoms": [_symptom(item, sight, problem.clock) for item in sight.newest(problem.symptoms)[:SYMPTOMS]],
        "more": max(len(problem.symptoms) - SYMPTOMS, 0),
        "cause": "" if best is None else printable(best.cause),
        "meaning": "" if best is None else meaning(best),
        "evidence": [] if best is None else [printable(text)[:500] for text in best.evidence[:5]],
        "causes": [
            {"cause": printable(item.cause), "share": item.probability, "percent": percent(item.probability)}
            for item in problem.diagnoses[:CAUSES]
        ],
        "fix": printable(code, lines=True) if code else None,
    }


def _symptom(symptom: Symptom, sight: Sight, clock: str) -> Mapping[str, Any]:
    open_now = sight.is_open(symptom)
    span = steps_text(symptom.first_step, symptom.last_step, clock)
    return {
        "severity": symptom.severity,
        "label": label(symptom),
        "when": f"since {clock} {symptom.first_step}" if open_now else span,
        "open": open_now,
        "message": printable(symptom.message)[:1000],
        "where": where_text(symptom, limit=5)[:500],
    }
