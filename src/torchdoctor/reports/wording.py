"""The words that every form of a report shares: the verdict, the problems, and strings that are safe to show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import getdoc
from typing import Any

from torchdoctor.diagnoses import CAUSES
from torchdoctor.diagnoses.mechanisms import reaches
from torchdoctor.records import (
    INFORMATIVE,
    LET_GO,
    NO_LOSS,
    SEVERITIES,
    Diagnosis,
    Health,
    Severity,
    Suggestion,
    Symptom,
    number_text,
    worst,
)
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.report import Report

HEALTH_WORDS: dict[Health, str] = {
    "healthy": "Healthy",
    "watch": "Worth watching",
    "sick": "Sick",
    "critical": "Critical",
}
COUNTED = (("critical", "critical", "critical"), ("warning", "warning", "warnings"), ("info", "note", "notes"))
"""What findings of each severity are called, singular and plural; the worst first."""
SHOWN_EPISODES = 4
"""Episodes of one finding that are listed one by one; the rest is summarized."""
LATELY = 50
"""An episode counts as going on until this many steps after it was last seen."""
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
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.?", re.DOTALL
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_BREAKS = re.compile("[\t\n\u2028\u2029]+")
_SURROGATES = re.compile("[\ud800-\udfff]")


def printable(value: object, *, lines: bool = False) -> str:
    """Text without terminal escapes, control characters, direction overrides and line breaks: logs are untrusted.

    >>> printable("fc1.weight\\x1b[2J\\x1b]0;owned\\x07\\nStep 9: all is well")
    'fc1.weight Step 9: all is well'
    """
    text = _UNSEEN.sub("", _ESCAPES.sub("", str(value)))
    return _SURROGATES.sub("\ufffd", text if lines else _BREAKS.sub(" ", text))


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


def label(symptom: Symptom) -> str:
    """Code and name."""
    return f"{printable(symptom.code)} {printable(symptom.name)}"


def leading(report: Report) -> Symptom | None:
    """The symptom for the first line: the most severe; of several, the earliest; of several of these, the longest.

    If gradients explode while the loss diverges, the divergence is named instead: it is what makes them critical.

    >>> spans = [("gradient-explosion", "critical", 851, 875), ("loss-divergence", "warning", 853, 999)]
    >>> found = leading(Report(step=999, symptoms=tuple(Symptom(n, "", s, 0.9, a, b) for n, s, a, b in spans)))
    >>> found.name if found else None
    'loss-divergence'
    """
    real = [item for item in report.symptoms if item.name not in INFORMATIVE]
    severity = worst([item.severity for item in real])
    grave = [item for item in real if item.severity == severity]
    first = min(grave, key=lambda item: (item.first_step, -item.last_step), default=None)
    if first is None or first.name != "gradient-explosion":
        return first
    lost = (item for item in real if item.name == "loss-divergence" and item.severity != "info")
    met = (item for item in lost if first.first_step - LATELY <= item.last_step and item.first_step <= first.last_step)
    return next(met, first)


def verdict(report: Report) -> str:
    """The first line: the health of the run, since when, and the finding behind it.

    >>> verdict(Report(step=899))
    'Healthy at step 899: nothing was found.'
    >>> spike = Symptom("loss-spike", "LO01", "warning", 0.9, 7, 8, message="loss 9 is 4 times its recent 2.2")
    >>> verdict(Report(step=50, symptoms=(spike,)))
    'Sick since step 7: loss-spike, loss 9 is 4 times its recent 2.2.'
    >>> verdict(Report(step=5000, symptoms=(spike,)))
    'Sick at step 7: loss-spike, loss 9 is 4 times its recent 2.2.'
    """
    symptom, clock = leading(report), clock_of(report.context)
    if symptom is None:
        if any(note.endswith(LET_GO) for note in report.notes):
            return (
                f"Not judged: torchdoctor failed, and {LET_GO} Nothing was found up to {clock} {max(report.step, 0)}."
            )
        if report.step < 0:
            return "Nothing to judge yet: no training step was seen."
        if _is_one_record(report):
            return f"Too little to judge: the log holds the values of {clock} {report.step} only{_values(report)}."
        if any(note.startswith(NO_LOSS) for note in report.notes):
            return f"Nothing was found up to {clock} {report.step}, but {NO_LOSS}."
        return f"{HEALTH_WORDS['healthy']} at {clock} {report.step}: nothing was found."
    going_on = symptom.first_step < symptom.last_step and symptom.last_step + LATELY >= report.step
    since = "since" if going_on else "at"
    message = printable(symptom.message).rstrip(".")
    reason = f"{printable(symptom.name)}, {message}" if message else printable(symptom.name)
    return f"{HEALTH_WORDS[report.health]} {since} {clock} {symptom.first_step}: {reason}."


def _is_one_record(report: Report) -> bool:
    """Whether this is a log with one value per name, such as a run's summary, from which no trend can be seen."""
    return "source" in report.context and bool(report.curves) and all(len(item) == 1 for item in report.curves.values())


def _values(report: Report) -> str:
    """The losses of such a log; they are finite, or else something would have been found."""
    names = {"loss": "loss", "val_loss": "validation loss"}
    told = [f"{word} {number_text(report.curves[name][0][2])}" for name, word in names.items() if name in report.curves]
    return f" ({', '.join(told)}; finite, but single values do not show how training went)" if told else ""


def advice(report: Report) -> str:
    """The second line: the likeliest cause of the worst problem and the first change, or what to find out first."""
    parts = []
    if report.diagnoses:
        best = report.diagnoses[0]
        if not stands_out(best):
            if question := open_question(report):
                return f"No cause stands out. To find out: {question}."
            parts.append("No cause stands out.")
        else:
            parts.append(f"Most likely cause: {printable(best.cause)} ({percent(best.probability)}).")
    change = first_change(report)
    if change is not None and (words := change_words(report)):
        parts.append(f"{words}: {first_line(change.code)}")
    return " ".join(parts)


def open_question(report: Report) -> str:
    """What to do to find the cause of the worst problem if none stands out; empty if one does or nothing is known."""
    best = report.diagnoses[0] if report.diagnoses else None
    if best is None or stands_out(best):
        return ""
    unknown = (item for item in report.diagnoses if item.problem == best.problem and item.cause == "unknown")
    found = next((text for item in unknown for text in item.evidence if not text.startswith("against: ")), "")
    return printable(found)


def change_words(report: Report) -> str:
    """The label of the first change; empty if the run has no harm and no likely cause, so that no change is needed."""
    if report.health in ("sick", "critical"):
        change = first_change(report)
        worst_ones = [item for item in report.diagnoses if item.problem == report.diagnoses[0].problem]
        own = {item.action for diagnosis in worst_ones for item in diagnosis.suggestions}
        if change is None or not own or change.action in own:
            return "First change"
        # With several problems, the change that protects the run comes first; it may belong to another problem.
        return f"First change, against {printable(change.reason).partition(': ')[0]}"
    best = report.diagnoses[0] if report.diagnoses else None
    return "Worth a try" if best is not None and best.cause != "unknown" and best.probability > 0.5 else ""


def changes_title(report: Report) -> str:
    """The heading of the changes."""
    if report.health in ("sick", "critical"):
        return "What to change, in this order; change one thing at a time"
    return "What could be tried, one change at a time; nothing has to change"


def first_change(report: Report) -> Suggestion | None:
    """The change to make first: the first of the list."""
    return next(iter(report.suggestions), None)


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


def percent(share: float) -> str:
    """A probability as text.

    >>> percent(0.804), percent(0.004), percent(0.999)
    ('80 %', 'under 1 %', 'over 99 %')
    """
    if share < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def counts_text(severities: Sequence[Severity]) -> str:
    """How many findings there are of each severity, the worst first; empty where there are none.

    >>> counts_text(["info", "warning", "warning", "critical", "info"]), counts_text(["info"])
    ('1 critical, 2 warnings, 2 notes', '1 note')
    """
    told = []
    for severity, one, many in COUNTED:
        if count := severities.count(severity):
            told.append(f"{count} {one if count == 1 else many}")
    return ", ".join(told)


def checkup_texts(report: Report) -> list[str]:
    """The results of a check-up before the run: a sentence per failure and the counts; empty without a check-up.

    >>> from torchdoctor.records import CheckResult
    >>> failed = CheckResult("initial-loss", "CK11", "failed", "loss 9.2", severity="warning")
    >>> checkup_texts(Report(9, checks=(failed,)))
    ['CK11 initial-loss (warning): loss 9.2', '1 failed, 0 passed, 0 skipped']
    """
    if not report.checks:
        return []
    failed = [item for item in report.checks if item.status == "failed"]
    told = [
        printable(f"{item.code} {item.name} ({item.severity or 'critical'}): {item.message} {item.advice}").strip()
        for item in failed
    ]
    counts = (
        f"{sum(item.status == word for item in report.checks)} {word}" for word in ("failed", "passed", "skipped")
    )
    return [*told, ", ".join(counts)]


def steps_text(first: int, last: int, clock: str = "step") -> str:
    """One step, epoch or row, or a span of them."""
    return f"{clock} {first}" if first == last else f"{clock}s {first} to {last}"


def times_text(symptom: Symptom) -> str:
    """How often an episode was seen; empty for once, and for as often as it has steps: a step may be seen twice.

    >>> times_text(Symptom("nan-or-inf", "NU01", "critical", 1.0, 10, 19, 4))
    ', seen 4 times'
    >>> times_text(Symptom("nan-or-inf", "NU01", "critical", 1.0, 10, 19, 12))
    ''
    """
    return f", seen {symptom.count} times" if 1 < symptom.count <= symptom.last_step - symptom.first_step else ""


def where_text(symptom: Symptom, limit: int = 3) -> str:
    """The first few places of a symptom, and its rank; empty if it has none."""
    shown = ", ".join(printable(name) for name in symptom.where[:limit])
    more = f" and {len(symptom.where) - limit} more" if len(symptom.where) > limit else ""
    rank = f"rank {symptom.rank}" if symptom.rank is not None else ""
    return ", ".join(part for part in (shown + more, rank) if part)


def first_line(code: str) -> str:
    """The first line of a suggestion's code."""
    return printable(next(iter(code.splitlines()), ""))


ASKED_FIRST = (
    "model",
    "optimizer",
    "scheduler",
    "batch_size",
    "dataset_size",
    "precision",
    "devices",
    "world_size",
    "seed",
)


def facts(context: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a colleague would ask first, as (name, value) lines.

    >>> facts({"seed": 1, "model": {"class": "GPT", "parameters": 10700000}})
    [('model', 'GPT, parameters 10,700,000'), ('seed', '1')]
    """
    order = [key for key in ASKED_FIRST if key in context] + [key for key in context if key not in ASKED_FIRST]
    return [
        (printable(key).replace("_", " "), fact_text(context[key]))
        for key in order
        if context[key] not in (None, [], {}, "")
    ]


def fact_text(value: Any, depth: int = 3) -> str:
    """A value of the context in one line."""
    if isinstance(value, Mapping):
        if depth == 0:
            return "…"
        pairs = ((key, fact_text(item, depth - 1)) for key, item in value.items() if item not in (None, [], {}, ""))
        return ", ".join(
            text if key == "class" else f"{printable(key).replace('_', ' ')} {text}" for key, text in pairs
        )
    if isinstance(value, list | tuple):
        texts = [fact_text(item, depth - 1) for item in value[:8]] if depth else ["…"]
        joined = ("; " if any(isinstance(item, Mapping) for item in value[:8]) else ", ").join(texts)
        return joined + (f" and {len(value) - 8} more" if len(value) > 8 and depth else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return number_text(value) if isinstance(value, float) else printable(value)[:500]
