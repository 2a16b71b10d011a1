"""The result of a consultation: answers on the chart, causes ranked by the usual engine, and what to try next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchdoctor.consulting.casebook import IN_VAIN, Case
from torchdoctor.consulting.evidence import report_complaints, supply, undated
from torchdoctor.consulting.fixes import Plan, Proposal, proposals
from torchdoctor.consulting.interview import Interview
from torchdoctor.consulting.question import Value
from torchdoctor.consulting.ranges import Reading, readings
from torchdoctor.consulting.stopping import reasons_to_stop
from torchdoctor.consulting.testimony import informed, of_complaints, testimony
from torchdoctor.consulting.trees import TREES, Walk, walk
from torchdoctor.diagnoses import Evidence
from torchdoctor.diagnoses.ranking import rank_causes
from torchdoctor.records import Suggestion
from torchdoctor.reports.clock import in_its_clock
from torchdoctor.reports.report import Report
from torchdoctor.treatments import prescribe

IN_VAIN_WEIGHT, HELPED_WEIGHT = -1.2, 0.8
"""Weight of an earlier change as evidence for the cause it was meant for: if it did not help, and if it did."""


@dataclass(frozen=True)
class Consultation:
    """Everything a consultation found."""

    complaints: tuple[str, ...]
    given: dict[str, Value]
    known: dict[str, Value]
    report: Report
    walks: tuple[Walk, ...]
    readings: tuple[Reading, ...]
    proposals: tuple[Proposal, ...]
    stop: tuple[str, ...]
    history: tuple[Case, ...]
    """Cases with the same complaints in the same project, oldest first."""
    plan: Plan | None = None
    run: str = ""
    contradicted: dict[str, str] = field(default_factory=dict)
    """By question, a sentence on how the run contradicts the answer."""

    def to_dict(self) -> dict[str, Any]:
        """`Report.to_dict`, with the results of the interview under "consultation"."""
        return self.report.to_dict() | {
            "consultation": {
                "run": self.run,
                "symptoms": list(self.complaints),
                "answers": dict(self.given),
                "answered_by_run": dict(self.known),
                "contradicted_by_run": dict(self.contradicted),
                "readings": [
                    {"name": item.name, "value": item.value, "healthy": item.healthy, "verdict": item.verdict}
                    for item in self.readings
                ],
                "trees": {
                    item.tree.name: {
                        "way": [list(step) for step in item.way],
                        "says": [leaf.says for leaf in item.leaves],
                        "missing": list(item.missing),
                    }
                    for item in self.walks
                },
                "proposals": [item.to_dict() for item in self.proposals],
                "plan": None if self.plan is None else self.plan.to_dict(),
                "stop": list(self.stop),
                "history": [
                    {
                        "day": case.day,
                        "action": case.action,
                        "cause": case.cause,
                        "outcome": case.outcome,
                        "note": case.note,
                    }
                    for case in self.history
                ],
            }
        }


def conclude(interview: Interview, history: Sequence[Case] = ()) -> Consultation:
    """Rank the causes of what the run shows and the person reports.

    >>> interview = Interview()
    >>> _ = interview.accept_all({"symptoms": ["nan"], "nan_step": 3, "lr": 10, "optimizer": "adam"})
    >>> conclude(interview).report.diagnoses[0].cause
    'lr-too-high'
    """
    answers, believed = interview.answers, interview.believed
    walks = tuple(walk(tree, answers) for tree in TREES.values() if set(tree.complaints) & set(believed))
    examination = interview.examine()
    supply(examination, answers)
    chart = examination.judged()
    report_complaints(chart, believed, answers, run=interview.run is not None)
    chosen = of_complaints(believed, answers) if interview.run is None else ()
    said = testimony(interview.given, answers, walks, (*chosen, *_experience(history)))
    causes = informed(said, measured=interview.run is not None)
    diagnoses, suggestions = prescribe(chart, rank_causes(chart, causes))
    report = replace(examination.report(), symptoms=tuple(chart.episodes), diagnoses=diagnoses, suggestions=suggestions)
    report = in_its_clock(_undated(report))
    if interview.run is not None and interview.run.notes:
        report = replace(report, notes=(*report.notes, *interview.run.notes))
    return Consultation(
        complaints=interview.complaints,
        given=dict(interview.given),
        known=dict(interview.known),
        report=report,
        walks=walks,
        readings=readings(answers),
        proposals=proposals(chart, report, walks, history),
        stop=reasons_to_stop(answers, report, history),
        history=tuple(history),
        run=str(interview.run.path) if interview.run is not None else "",
        contradicted=interview.contradicted,
    )


def _undated(report: Report) -> Report:
    """The report without assumed onset steps."""

    def told(fix: Suggestion) -> Suggestion:
        return replace(fix, code=undated(fix.code, report.symptoms), reason=undated(fix.reason, report.symptoms))

    diagnoses = tuple(
        replace(
            item,
            evidence=tuple(undated(text, report.symptoms) for text in item.evidence),
            suggestions=tuple(told(fix) for fix in item.suggestions),
        )
        for item in report.diagnoses
    )
    return replace(report, diagnoses=diagnoses, suggestions=tuple(told(fix) for fix in report.suggestions))


def _experience(history: Sequence[Case]) -> Iterable[tuple[str, Evidence]]:
    """What earlier changes say about causes."""
    for case in history:
        if not case.cause:
            continue
        if case.outcome in IN_VAIN:
            did = "did nothing" if case.outcome == "nothing" else "made it worse"
            yield case.cause, Evidence(IN_VAIN_WEIGHT, f"{case.action} was tried on {case.day} and {did}")
        elif case.outcome == "helped":
            yield case.cause, Evidence(HELPED_WEIGHT, f"{case.action} was tried on {case.day} and helped")
