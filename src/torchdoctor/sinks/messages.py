"""The messages sent: one when an episode opens, one when it gets worse, one when it is over, and a summary.

>>> bulletin = Bulletin(Subject("exp-7"))
>>> spike = Symptom("loss-spike", "LO01", "warning", 0.9, 120, 120, message="loss 9.1 is 4.2 times its recent 2.2")
>>> bulletin.read([{"type": "symptom", "event": "opened", "step": 121, **spike.to_dict()}])
>>> message = bulletin.waiting[0]
>>> message.level, message.title
('WARN', 'LO01 loss-spike (warning) at step 120')
>>> print(message.text)
exp-7: Sick at step 120: loss-spike, loss 9.1 is 4.2 times its recent 2.2.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torchdoctor.records import INFORMATIVE, SEVERITIES, Diagnosis, Record, Severity, Suggestion, Symptom
from torchdoctor.reports.markdown import escaped, fenced
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import LATELY, advice, leading, verdict
from torchdoctor.reports.wording import label, printable, steps_text, where_text
from torchdoctor.sinks.sink import Subject

LEVELS: dict[Severity, str] = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}
ONE_BY_ONE = 5
"""Episodes of one finding that are reported one by one; then the tenth, the twentieth, the fortieth and so on."""
LISTED = 10
"""Most findings in a summary."""
KEPT = 200
"""Most messages that wait for a sink that does not accept them; the oldest are dropped first."""


@dataclass(frozen=True)
class Message:
    """One episode, or the whole run, as a report on only that."""

    event: str
    """"opened", "changed" (it got worse), "closed" or "summary"."""
    run: str
    report: Report
    earlier: int = 0
    """Episodes of the same finding before this one."""

    @property
    def symptom(self) -> Symptom:
        """The finding; for a summary, the worst one."""
        return leading(self.report) or self.report.symptoms[0]

    @property
    def level(self) -> str:
        """INFO, WARN or ERROR; the end of an episode is INFO."""
        return LEVELS["info" if self.event == "closed" else self.symptom.severity]

    @property
    def title(self) -> str:
        """What was found and when, short enough for a subject line."""
        if self.event == "summary":
            return f"Run ended {self.report.health} at step {self.report.step}"
        step = f"at step {self.symptom.first_step}" if self.event != "closed" else "is over"
        return f"{label(self.symptom)} ({self.symptom.severity}) {step}"[:63]

    @property
    def headline(self) -> str:
        """The run and the verdict; when an episode is over, its first and last step."""
        run, symptom = printable(self.run), self.symptom
        if self.event == "closed":
            return f"{run}: {label(symptom)} is over: {steps_text(symptom.first_step, symptom.last_step)}."
        more = f" It is the {_ordinal(self.earlier + 1)} episode of this." if self.earlier else ""
        worse = "It got worse. " if self.event == "changed" else ""
        return f"{run}: {worse}{verdict(self.report)}{more}"

    @property
    def details(self) -> tuple[str, ...]:
        """Where it was; for a summary, all findings."""
        if self.event == "summary":
            return tuple(_listed(self.report.symptoms))
        where = where_text(self.symptom) if self.event != "closed" else ""
        return (f"Where: {where}.",) if where else ()

    @property
    def advice(self) -> str:
        """The most likely cause and the first change."""
        return advice(self.report)

    @property
    def code(self) -> str:
        """The first change to make, in full; empty if none is suggested."""
        suggestions = self.report.suggestions
        return printable(suggestions[0].code, lines=True) if suggestions else ""

    @property
    def text(self) -> str:
        """The whole message as plain text."""
        return "\n".join(filter(None, (self.headline, self.advice, *self.details)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        best = self.report.diagnoses[0] if self.report.diagnoses else None
        return {
            "event": self.event,
            "run": self.run,
            "level": self.level,
            "step": self.report.step,
            "health": self.report.health,
            "title": self.title,
            "text": self.text,
            "symptoms": [item.to_dict() for item in self.report.symptoms],
            "cause": None if best is None else best.cause,
            "probability": None if best is None else best.probability,
            "suggestion": self.report.suggestions[0].to_dict() if self.report.suggestions else None,
        }


def in_one(messages: Sequence[Message]) -> list[Message]:
    """Messages that are sent together, worst first; advice that several share is given once."""
    ordered = sorted(messages, key=lambda item: (item.event == "closed", -SEVERITIES.index(item.symptom.severity)))
    said: set[tuple[str, str]] = set()
    found = []
    for message in ordered:
        best = message.report.diagnoses[0].cause if message.report.diagnoses else ""
        known = (best, message.code) in said
        said.add((best, message.code))
        short = replace(message.report, diagnoses=(), suggestions=())
        found.append(replace(message, report=short) if known else message)
    return found


class Bulletin:
    """Turns records into messages that wait until they are sent, and tracks open episodes."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.waiting: deque[Message] = deque(maxlen=KEPT)
        self.open: dict[str, Symptom] = {}
        """Open episodes that are severe enough, by finding."""
        self.step = -1
        self._ended = False
        self._told: set[str] = set()  # open episodes that were reported
        self._counts: Counter[tuple[str, Severity]] = Counter()

    def read(self, records: Iterable[Record]) -> None:
        """Make the messages for some records."""
        records = list(records)
        causes = [record for record in records if record["type"] == "diagnosis"]
        for record in records:
            self.step = max(self.step, record.get("step", -1))
            self._ended |= record["type"] == "end"
            if record["type"] == "symptom" and record["name"] not in INFORMATIVE:
                self._follow(record, causes)

    def _follow(self, record: Record, causes: list[Record]) -> None:
        symptom = _symptom(record)
        name, known = symptom.name, self.open.get(symptom.name)
        if record["event"] == "closed":
            if self._ended:  # an episode that ends with the run is not over
                return
            self.open.pop(name, None)
            if name in self._told:
                self._told.discard(name)
                self._put(Message("closed", self.subject.run, Report(record["step"], (symptom,))))
            return
        if not is_severe(symptom, self.subject.least):
            return
        self.open[name] = symptom
        if known is not None and known.severity == symptom.severity:
            return
        earlier = self._counts[name, symptom.severity]
        self._counts[name, symptom.severity] += 1
        if _is_told(earlier):
            event = "changed" if name in self._told else "opened"
            self._told.add(name)
            self._put(Message(event, self.subject.run, _report(record["step"], symptom, causes), earlier))

    def _put(self, message: Message) -> None:
        """Queue a message; an episode that got worse before it was sent is reported once."""
        for place, other in enumerate(self.waiting):
            if message.event == "changed" and other.event != "closed" and other.symptom.name == message.symptom.name:
                self.waiting[place] = replace(message, event=other.event)
                return
        self.waiting.append(message)


def summary(report: Report | None, subject: Subject) -> Message | None:
    """The last message; None if nothing severe enough was found."""
    if report is None:
        return None
    severe = tuple(item for item in report.symptoms if is_severe(item, subject.least))
    return Message("summary", subject.run, replace(report, symptoms=severe)) if severe else None


def is_severe(symptom: Symptom, least: Severity) -> bool:
    """Whether a finding is severe enough to be sent."""
    return symptom.name not in INFORMATIVE and SEVERITIES.index(symptom.severity) >= SEVERITIES.index(least)


def as_records(report: Report) -> list[Record]:
    """A finished report as the records of a live run; episodes at its end stay open."""
    found: list[Record] = []
    for place, symptom in enumerate(report.symptoms):
        plain = {"type": "symptom", "step": symptom.first_step, **symptom.to_dict()}
        causes = [item for item in report.diagnoses if symptom.name in item.symptoms and place in item.episodes]
        found += [{**plain, "event": "opened"}]
        found += [{"type": "diagnosis", "step": symptom.first_step, **item.to_dict()} for item in causes]
        if symptom.last_step + LATELY < report.step:
            found += [{**plain, "event": "closed", "step": symptom.last_step}]
    return found


def as_markdown(message: Message) -> str:
    """A message with its code in Markdown; text from the run is escaped."""
    parts = [f"**{message.level}** {escaped(message.headline)}"]
    if message.advice:
        parts.append(escaped(message.advice))
    if message.details:
        parts.append("\n".join(f"- {escaped(item)}" for item in message.details))
    if message.code:
        parts.append("\n".join(fenced(message.code)))
    return "\n\n".join(parts)


def _is_told(earlier: int) -> bool:
    """Whether another episode is worth a message, given the number of earlier ones.

    >>> [count + 1 for count in range(100) if _is_told(count)]
    [1, 2, 3, 4, 5, 10, 20, 40, 80]
    """
    tens, rest = divmod(earlier + 1, 2 * ONE_BY_ONE)
    return earlier < ONE_BY_ONE or (not rest and not tens & (tens - 1))


def _ordinal(number: int) -> str:
    """An ordinal number: 2nd, 3rd, 11th."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _listed(symptoms: tuple[Symptom, ...]) -> Iterable[str]:
    if len(symptoms) < 2:
        return
    for item in symptoms[:LISTED]:
        yield f"{label(item)} ({item.severity}), {steps_text(item.first_step, item.last_step)}"
    if len(symptoms) > LISTED:
        yield f"and {len(symptoms) - LISTED} more"


def _report(step: int, symptom: Symptom, causes: list[Record]) -> Report:
    """A report on one episode; in each ranking the most likely cause comes first."""
    own = [item for item in causes if symptom.name in item["symptoms"]]
    if not own:
        return Report(step, (symptom,))
    best = next((item for item in own if item["step"] == step), own[0])
    suggestions = tuple(Suggestion(**item) for item in best["suggestions"])
    diagnosis = Diagnosis(best["problem"], best["cause"], best["probability"], tuple(best["evidence"]), (symptom.name,))
    return Report(step, (symptom,), (replace(diagnosis, suggestions=suggestions),), suggestions)


def _symptom(record: Mapping[str, Any]) -> Symptom:
    values = {item.name: record[item.name] for item in fields(Symptom) if item.name in record}
    return Symptom(**values | {"where": tuple(record.get("where", ()))})
