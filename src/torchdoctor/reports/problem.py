"""Linked symptoms and their causes as a report tells them: which problem is which, its story, and its change."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import getdoc

from torchdoctor.diagnoses import CAUSES
from torchdoctor.diagnoses.mechanisms import reaches
from torchdoctor.records import (
    SEVERITIES,
    Diagnosis,
    Severity,
    Symptom,
    worst,
)
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import (
    percent,
    printable,
    steps_text,
)

SHOWN_EPISODES = 4
"""Episodes of one finding that are listed one by one; the rest is summarized."""
COUNT = "multiple-pathologies"
"""The finding that counts others: those at once when it was seen first."""
NOTABLE = 0.05
"""Causes less likely than this are not shown."""
LIKELY = 0.25
"""A leading cause below this probability is not called the most likely one: no cause stands out."""
PROTECTING = frozenset(
    ("scale-lr", "set-clip-norm", "set-clip-value", "adaptive-clip", "skip-step", "skip-window", "roll-back")
)
"""Actions that limit the damage, whatever the cause."""
NAMED = 3
"""Further causes that are named; the rest is only counted."""
MEANINGS = {cause.name: " ".join((getdoc(cause) or "").split("\n\n")[0].split()) for cause in CAUSES}
"""One sentence per cause: what it is."""


@dataclass(frozen=True)
class Problem:
    """Linked symptoms and the causes that may be behind them, likeliest first."""

    number: int
    symptoms: tuple[Symptom, ...]
    diagnoses: tuple[Diagnosis, ...]
    clock: str = "step"
    """The unit that the run counts in: step, epoch or row."""

    @property
    def severity(self) -> Severity:
        """The worst of its symptoms."""
        return worst([item.severity for item in self.symptoms]) or "info"

    @property
    def title(self) -> str:
        """Its name in the report."""
        return f"Problem {self.number}" if self.number else "Also found"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its symptoms, each once."""
        return tuple(dict.fromkeys(printable(item.name) for item in self.symptoms))

    @property
    def cause(self) -> str:
        """The likeliest cause with its probability, in words; empty if no cause was ranked."""
        if not self.diagnoses:
            return ""
        best = self.diagnoses[0]
        if not stands_out(best):
            return "no cause stands out" if best.cause != "unknown" else "cause unknown"
        return f"{printable(best.cause)} ({percent(best.probability)})"

    @property
    def steps(self) -> str:
        """When: one step, or from when to when."""
        first = min((item.first_step for item in self.symptoms), default=-1)
        return steps_text(first, max((item.last_step for item in self.symptoms), default=first), self.clock)


def problems(report: Report) -> tuple[Problem, ...]:
    """The report's problems, worst first; symptoms that no diagnosis explains come last, as one unnumbered problem."""
    ranked: dict[int, list[Diagnosis]] = {}
    for diagnosis in report.diagnoses:
        ranked.setdefault(diagnosis.problem, []).append(diagnosis)
    found = []
    clock = clock_of(report.context)
    for number, diagnoses in ranked.items():
        first = diagnoses[0]
        places = [place for place in first.episodes if place < len(report.symptoms)]
        own = tuple(report.symptoms[place] for place in places)
        if {item.name for item in own} != set(first.symptoms):  # a diagnosis from elsewhere: its names must do
            own = tuple(item for item in report.symptoms if item.name in first.symptoms)
        found.append(Problem(number, own, tuple(diagnoses), clock))
    told = [item for problem in found for item in problem.symptoms]
    listed = len({item.name for item in told if item.severity != "info"})
    # A count of findings is left out beside more findings than it counts.
    outdone = [item for item in report.symptoms if item.name == COUNT and item.value and item.value < listed]
    rest = tuple(item for item in report.symptoms if item not in told and item not in outdone)
    return (*found, Problem(0, rest, (), clock)) if rest else tuple(found)


def episodes(problem: Problem) -> list[tuple[Symptom, str]]:
    """The episodes to list, each with a remark on those of the same name that are left out."""
    symptoms = problem.symptoms
    listed: list[tuple[Symptom, str]] = []
    for name in dict.fromkeys(item.name for item in symptoms):
        same = sorted((item for item in symptoms if item.name == name), key=lambda item: item.first_step)
        # Stable: of equal severities the earliest, which is nearest to the cause, is shown.
        kept = sorted(same, key=lambda item: -SEVERITIES.index(item.severity))[:SHOWN_EPISODES]
        rest = [item for item in same if item not in kept]
        for item in sorted(kept, key=lambda item: item.first_step):
            listed.append((item, ""))
        if rest:
            span = steps_text(rest[0].first_step, rest[-1].last_step, problem.clock)
            listed[-1] = (listed[-1][0], f"and {len(rest)} more like this, {span}")
    return listed


def overview(report: Report) -> tuple[tuple[Problem, str], ...]:
    """If there are several problems, each in one line: its cause, findings and steps."""
    numbered = [item for item in problems(report) if item.number]
    if len(numbered) < 2:
        return ()
    return tuple((item, f"{item.cause}: {', '.join(item.names)}, {item.steps}") for item in numbered)


def story(problem: Problem) -> str:
    """How one finding led to the next, in order of onset; empty where there is only one.

    >>> seen = [Symptom(name, "", "warning", 0.9, step, step) for name, step in
    ...         [("gradient-explosion", 500), ("loss-spike", 501), ("validation-anomaly", 510)]]
    >>> story(Problem(1, tuple(seen), ()))
    'gradient-explosion (step 500) → loss-spike (step 501) → validation-anomaly (step 510)'
    """
    firsts: dict[str, int] = {}
    for item in problem.symptoms:
        firsts.setdefault(item.name, item.first_step)
    if len(firsts) < 2:
        return ""
    told = ""
    before: list[str] = []
    for name, step in firsts.items():
        if before:
            told += " → " if any(reaches(earlier, name) for earlier in before) else ", "
        told += f"{printable(name)} ({problem.clock} {step})"
        before.append(name)
    return told


def told_apart(problem: Problem) -> tuple[tuple[Diagnosis, ...], str]:
    """The causes to show in full, and a sentence that names the next ones, if any."""
    full = tuple(item for item in problem.diagnoses[:2] if item is problem.diagnoses[0] or item.probability >= NOTABLE)
    rest = [item for item in problem.diagnoses[len(full) :] if item.probability >= NOTABLE]
    names = ", ".join(f"{printable(item.cause)} ({percent(item.probability)})" for item in rest[:NAMED])
    more = f" and {len(rest) - NAMED} more" if len(rest) > NAMED else ""
    return full, f"Also consider: {names}{more}" if names else ""


def heading(problem: Problem, diagnosis: Diagnosis) -> str:
    """A cause of a problem by name, with its place among the others and its probability.

    >>> heading(Problem(1, (), ()), Diagnosis(1, "unknown", 0.53))
    'No cause stands out (unknown: 53 %)'
    """
    share = percent(diagnosis.probability)
    first = not problem.diagnoses or diagnosis is problem.diagnoses[0]
    if diagnosis.cause == "unknown":
        return f"No cause stands out (unknown: {share})" if first else f"Another cause, or a false alarm ({share})"
    place = "Alternative" if not first else "Most likely cause" if stands_out(diagnosis) else "Possible cause"
    return f"{place} ({share}): {printable(diagnosis.cause)}"


def stands_out(diagnosis: Diagnosis) -> bool:
    """Whether a cause is known and likely enough to be called the most likely one."""
    return diagnosis.cause != "unknown" and diagnosis.probability >= LIKELY


def meaning(diagnosis: Diagnosis) -> str:
    """What the cause is, in one sentence; empty for `unknown`."""
    return MEANINGS.get(diagnosis.cause, "") if diagnosis.cause != "unknown" else ""


def remedy(problem: Problem, diagnosis: Diagnosis) -> tuple[str, str]:
    """The label and the code of the change for a cause; empty if it has none of its own.

    A change for `unknown` is no cure: it limits the damage, is worth a try, or waits until a single odd step happens
    again. It is left out behind a likelier cause, which asks for the same.
    """
    code = diagnosis.suggestions[0].code if diagnosis.suggestions else ""
    if diagnosis.cause != "unknown":
        return ("Fix" if code else ""), code
    first = not problem.diagnoses or diagnosis is problem.diagnoses[0]
    if not code or not first or problem.severity == "info":
        return "", ""
    if all(item.first_step == item.last_step for item in problem.symptoms):
        return "If it happens again", code
    return ("To limit the damage" if diagnosis.suggestions[0].action in PROTECTING else "Worth a try"), code


def weighed(diagnosis: Diagnosis) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The evidence for and against a cause under headings; for `unknown`, what to measure to find out."""
    against = tuple(text.removeprefix("against: ") for text in diagnosis.evidence if text.startswith("against: "))
    speaks = tuple(text for text in diagnosis.evidence if not text.startswith("against: "))
    heading = "To find out" if diagnosis.cause == "unknown" else "Evidence"
    return tuple((words, texts) for words, texts in ((heading, speaks), ("Against it", against)) if texts)
