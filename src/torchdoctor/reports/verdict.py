"""The first lines of a report: the verdict in one sentence, the likeliest cause, and what to do first."""

from __future__ import annotations

from torchdoctor.records import (
    DIED,
    INFORMATIVE,
    LET_GO,
    NO_LOSS,
    NO_STEP,
    NOT_SOUGHT,
    UNKNOWN_LOSS,
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

    If several problems have one that severe, it is taken from the first of them: its cause stands in the next line.
    If gradients explode while the loss diverges, the divergence is named instead: it is what makes them critical.

    >>> spans = [("gradient-explosion", "critical", 851, 875), ("loss-divergence", "warning", 853, 999)]
    >>> found = leading(Report(step=999, symptoms=tuple(Symptom(n, "", s, 0.9, a, b) for n, s, a, b in spans)))
    >>> found.name if found else None
    'loss-divergence'
    """
    real = [item for item in report.symptoms if item.name not in INFORMATIVE]
    severity = worst([item.severity for item in real])
    grave = [item for item in real if item.severity == severity]
    places = report.diagnoses[0].episodes if report.diagnoses else ()
    own = [report.symptoms[place] for place in places if place < len(report.symptoms)]
    grave = [item for item in grave if item in own] or grave
    first = min(grave, key=lambda item: (item.first_step, -item.last_step), default=None)
    if first is None or first.name != "gradient-explosion":
        return first
    near = own if first in own else real
    lost = (item for item in near if item.name == "loss-divergence" and item.severity != "info")
    met = (item for item in lost if first.first_step - LATELY <= item.last_step and item.first_step <= first.last_step)
    return next(met, first)


def verdict(report: Report) -> str:
    """The first line: the health of the run, since when, and the finding behind it; and of what a dead run died.

    >>> verdict(Report(step=899))
    'Healthy at step 899: nothing was found.'
    >>> spike = Symptom("loss-spike", "LO01", "warning", 0.9, 7, 8, message="loss 9 is 4 times its recent 2.2")
    >>> verdict(Report(step=50, symptoms=(spike,)))
    'Sick since step 7: loss-spike, loss 9 is 4 times its recent 2.2.'
    >>> verdict(Report(step=5000, symptoms=(spike,)))
    'Sick at step 7: loss-spike, loss 9 is 4 times its recent 2.2. Not seen again in the 4992 steps since.'
    >>> verdict(Report(step=79, notes=(f"{DIED}torch.OutOfMemoryError: CUDA out of memory.",)))
    'Healthy at step 79: nothing was found. The run died: torch.OutOfMemoryError: CUDA out of memory.'
    >>> verdict(Report(step=99, notes=(f"{NOT_SOUGHT}overfitting",)))
    'Nothing was found up to step 99 (not looked for, as requested: overfitting).'
    """
    said = next((printable(note.removeprefix(DIED)) for note in report.notes if note.startswith(DIED)), "")
    return f"{_found(report)} The run died: {said.rstrip('.')}." if said else _found(report)


def _found(report: Report) -> str:
    """What the numbers of the run say."""
    symptom, clock = leading(report), clock_of(report.context)
    if symptom is None:
        if any(note.endswith(LET_GO) for note in report.notes):
            return (
                f"Not judged: torchdoctor failed, and {LET_GO} Nothing was found up to {clock} {max(report.step, 0)}."
            )
        stranded = [note.partition(":")[0] for note in report.notes if note.startswith(NO_STEP)]
        if report.step < 0:
            return f"Nothing to judge yet: {stranded[0] if stranded else 'no training step was seen'}."
        if _is_one_record(report):
            held = "only %s can be used" if any(map(_tells_of_steps, report.notes)) else "the log holds %s only"
            return f"Too little to judge: {held % f'the values of {clock} {report.step}'}{_values(report)}."
        if stranded and stranded[-1].endswith(f" after step {report.step}"):
            return f"Nothing was found up to {clock} {report.step}, but {stranded[-1]}."
        if any(note.startswith(NO_LOSS) for note in report.notes):
            return f"Nothing was found up to {clock} {report.step}, but {NO_LOSS}."
        if limited := next((printable(note) for note in report.notes if note.startswith(NOT_SOUGHT)), ""):
            return f"Nothing was found up to {clock} {report.step} ({limited})."
        if _may_hide_a_loss(report):
            return f"Nothing was found up to {clock} {report.step}, but {UNKNOWN_LOSS}."
        return f"{HEALTH_WORDS['healthy']} at {clock} {report.step}: nothing was found."
    message = printable(symptom.message).rstrip(".")
    reason = f"{printable(symptom.name)}, {message}" if message else printable(symptom.name)
    return f"{HEALTH_WORDS[report.health]} {_when(symptom, report.step, clock)}: {reason}.{_since(report, symptom)}"


def _may_hide_a_loss(report: Report) -> bool:
    """Whether a log without a loss or a reward has numbers that nobody understood."""
    told = [note for note in report.notes if note.startswith((UNKNOWN_LOSS, "not used: "))]
    return len(told) > 1 and "reward" not in report.context.get("columns", {})


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


def _tells_of_steps(note: str) -> bool:
    """Whether a note says that points were left out for their steps, so that the log holds more than was used."""
    return note.endswith("are left out") and " points at steps " in note


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
    best = report.diagnoses[0] if report.diagnoses else None
    if report.health in ("sick", "critical"):
        words = "First change"
    elif best is not None and best.cause != "unknown" and best.probability > 0.5:
        words = "Worth a try"
    else:
        return ""
    change = first_change(report)
    worst_ones = [item for item in report.diagnoses if best is not None and item.problem == best.problem]
    own = [(item.action, item.reason) for diagnosis in worst_ones for item in diagnosis.suggestions]
    if change is None or best is None or (change.action, change.reason) in own:
        return words
    # With several problems, the change that protects the run comes first; it may belong to another problem.
    return f"{words}, against {printable(change.reason).partition(': ')[0]}"


def changes_title(report: Report) -> str:
    """The heading of the changes."""
    if report.health in ("sick", "critical"):
        return "What to change, in this order; change one thing at a time"
    return "What could be tried, one change at a time; nothing has to change"


def first_change(report: Report) -> Suggestion | None:
    """The change to make first: the first of the list."""
    return next(iter(report.suggestions), None)
