"""From a diagnosis to one change: the ordered proposals, what was tried before, and the plan for the chosen one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchdoctor.chart import Chart
from torchdoctor.consulting.casebook import IN_VAIN, Case
from torchdoctor.consulting.evidence import undated
from torchdoctor.consulting.patches import Patch, patch
from torchdoctor.consulting.question import Answers
from torchdoctor.consulting.ranges import fix_range
from torchdoctor.consulting.script import Script
from torchdoctor.consulting.settings_file import Setting, overrides
from torchdoctor.consulting.trees import Walk
from torchdoctor.consulting.trials import Test, commands, plan_test
from torchdoctor.diagnoses import Problem
from torchdoctor.records import Diagnosis, Suggestion
from torchdoctor.reports.clock import clock_of, counted
from torchdoctor.reports.problem import NOTABLE
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import percent
from torchdoctor.treatments.case import Case as TreatedCase
from torchdoctor.treatments.prescription import BY_SLUG, suggest

LIKELY = 0.35
"""If the likeliest cause reaches this probability, its fixes are proposed first."""
NO_RUN = frozenset({"ask-for-help", "roll-back"})
"""Actions that are never proposed because they do not test a cause: they protect the run, or end the search."""


@dataclass(frozen=True)
class Proposal:
    """One change that could be tried next."""

    suggestion: Suggestion
    cause: str
    probability: float
    tried: Case | None = None
    """The latest case in which it was tried without success."""

    @property
    def range(self) -> str:
        """The values worth trying."""
        return fix_range(self.suggestion)

    @property
    def reason(self) -> str:
        """The cause that it treats."""
        known = self.cause not in ("", "unknown")
        return f"{self.cause} ({percent(self.probability)})" if known else "an unknown cause"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        tried = {"day": self.tried.day, "outcome": self.tried.outcome} if self.tried is not None else None
        return self.suggestion.to_dict() | {"cause": self.cause, "range": self.range, "tried": tried}


@dataclass(frozen=True)
class Plan:
    """The chosen change with its settings, patch and test."""

    proposal: Proposal
    settings: dict[str, Setting]
    """Settings to override; empty for a change of code."""
    patch: Patch | None
    """The patch for the given script, if one was given."""
    test: Test
    files: tuple[str, ...] = field(default=())
    """Files that were written."""

    @property
    def commands(self) -> tuple[tuple[str, str], ...]:
        """The commands that test it, in order."""
        return commands(self.test, self.code)

    @property
    def code(self) -> str:
        """The lines of the change, adapted to the given script."""
        return self.proposal.suggestion.code if self.patch is None else self.patch.code

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        made = self.patch
        return {
            "fix": self.proposal.to_dict(),
            "check": BY_SLUG[self.proposal.suggestion.action].check,
            "overrides": dict(self.settings),
            "patch": None if made is None else {"diff": made.diff, "where": made.where, "code": made.code},
            "steps": self.test.steps,
            "clock": self.test.clock,
            "commands": [{"command": command, "for": words} for command, words in self.commands],
            "files": list(self.files),
        }


def proposals(chart: Chart, report: Report, walks: Iterable[Walk], history: Sequence[Case]) -> tuple[Proposal, ...]:
    """The possible changes: fixes of a likely leading cause first, those tried without success last, else as reported.

    Fixes that only treat very unlikely causes are left out.
    """
    found: dict[str, Proposal] = {}
    for suggestion in (*report.suggestions, *_of_trees(chart, report, walks)):
        if suggestion.action not in found and suggestion.action not in NO_RUN:
            best = _treated(report.diagnoses, suggestion.action)
            vain = [case for case in history if case.action == suggestion.action and case.outcome in IN_VAIN]
            found[suggestion.action] = Proposal(
                suggestion,
                best.cause if best is not None else "",
                best.probability if best is not None else 0.0,
                vain[-1] if vain else None,
            )
    leading = next((item for item in report.diagnoses if item.cause != "unknown"), None)
    likely = leading.cause if leading is not None and leading.probability >= LIKELY else ""
    order = [item.action for item in leading.suggestions] if leading is not None and likely else []

    def place(item: Proposal) -> tuple[bool, int]:
        own = item.cause == likely and item.suggestion.action in order
        return item.tried is not None, order.index(item.suggestion.action) if own else len(order)

    worth = [item for item in found.values() if item.cause in ("", "unknown") or item.probability >= NOTABLE]
    return tuple(sorted(worth, key=place))


def _treated(diagnoses: Sequence[Diagnosis], action: str) -> Diagnosis | None:
    """The likeliest cause of the worst problem for which an action is proposed."""
    found = [item for item in diagnoses if any(fix.action == action for fix in item.suggestions)]
    return next((item for item in found if item.cause != "unknown"), found[0] if found else None)


def _of_trees(chart: Chart, report: Report, walks: Iterable[Walk]) -> Iterable[Suggestion]:
    """Further changes that the leaves of the trees suggest."""
    first = next((item for item in report.diagnoses if item.episodes), None)
    if first is None:
        return
    problem = Problem(tuple(chart.episodes[place] for place in first.episodes))
    for walk in walks:
        for leaf in walk.leaves:
            for slug in leaf.actions:
                case = TreatedCase(chart, problem, max(leaf.causes, key=lambda name: leaf.causes[name]))
                made = suggest(case, slug, BY_SLUG[slug].prior, f"the {walk.tree.name} tree")
                if made is not None:
                    yield replace(made, code=counted(undated(made.code, report.symptoms), clock_of(report.context)))


def work_out(proposal: Proposal, answers: Answers, script: Path | None = None) -> Plan:
    """Work out the settings, the patch and the test of a change."""
    known = [value for name in ("nan_step", "onset") if isinstance(value := answers.get(name), float)]
    made = patch(Script.read(script), proposal.suggestion, answers.get("lr")) if script is not None else None
    onset = int(min(known)) if known else None
    test = plan_test(onset, clock_of(answers), **({"script": str(script)} if script is not None else {}))
    return Plan(proposal, overrides(proposal.suggestion, answers), made, test)


def with_files(plan: Plan, *, patch_file: str = "", settings_file: str = "") -> Plan:
    """The plan with the names of the files that were written."""
    files = tuple(name for name in (patch_file, settings_file) if name)
    return replace(plan, files=files, test=replace(plan.test, patch=patch_file, settings=settings_file))
