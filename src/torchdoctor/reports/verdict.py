"""The first lines of a report: the verdict in one sentence, the likeliest cause, and what to do first."""

from __future__ import annotations

from torchdoctor.records import (
    INFORMATIVE,
    LET_GO,
    NO_LOSS,
    Health,
    Suggestion,
    Symptom,
    number_text,
    worst,
)
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.problem import (
    stands_out,
)
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import (
    first_line,
    percent,
    printable,
)

HEALTH_WORDS: dict[Health, str] = {
    "healthy": "Healthy",
    "watch": "Worth watching",
    "sick": "Sick",
    "critical": "Critical",
}
LATELY = 50
"""An episode counts as going on until this many steps after it was last seen."""
PASSING = frozenset(
    ("loss-spike", "gradient-explosion", "gradient-instability", "loss-oscillation", "validation-anomaly")
)
"""Findings that a run can leave behind; others, such as a leak seen once, hold although they are not seen again."""
PAST = 0.5
"""Share of the run for which such a finding must have been away before the verdict says so."""


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
    'Sick at step 7: loss-spike, loss 9 is 4 times its recent 2.2. Not seen again in the 4992 steps since.'
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
    message = printable(symptom.message).rstrip(".")
    reason = f"{printable(symptom.name)}, {message}" if message else printable(symptom.name)
    return f"{HEALTH_WORDS[report.health]} {_when(symptom, report.step, clock)}: {reason}.{_since(report, symptom)}"


def _when(symptom: Symptom, now: int, clock: str) -> str:
    """When a finding was seen, and whether it goes on."""
    first, last = symptom.first_step, symptom.last_step
    if first < last and last + LATELY >= now:
        return f"since {clock} {first}"
    return f"from {clock} {first} to {last}" if last - first > LATELY else f"at {clock} {first}"


def _since(report: Report, symptom: Symptom) -> str:
    """For how long a finding that did harm has been away, if that is most of the run."""
    last = max(item.last_step for item in report.symptoms if item.name == symptom.name)
    away = report.step - last
    if symptom.severity == "info" or symptom.name not in PASSING or away <= max(LATELY, PAST * report.step):
        return ""
    return f" Not seen again in the {away} {clock_of(report.context)}s since."


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
