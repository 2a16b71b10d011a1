"""The live view without a screen, for a pipe or a log: one line per finding, when it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchdoctor.live.sight import Sight
from torchdoctor.records import SEVERITIES, Severity, Symptom, worst
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import verdict
from torchdoctor.reports.wording import first_line, label, percent, printable, where_text


class Teller:
    """Reports everything once.

    >>> teller = Teller()
    >>> list(teller.tell([Sight("a", "runs/a", "running", Report(step=9))], 0.0))
    ['runs/a: Healthy at step 9: nothing was found.']
    >>> list(teller.tell([Sight("a", "runs/a", "running", Report(step=10))], 0.0))
    []
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[tuple[str, int], Severity]] = {}
        self._states: dict[str, str] = {}

    def tell(self, sights: Sequence[Sight], now: float) -> Iterator[str]:
        """New findings, severities that rose, and runs that appeared, stalled or ended."""
        for sight in sights:
            yield from self._findings(sight)
            if sight.state == "reading":
                continue
            name, state = printable(sight.name), "silent" if sight.silence(now) is not None else sight.state
            before = self._states.get(sight.key)
            if state == before or (state == "running" and before == "silent"):
                self._states[sight.key] = state
                continue
            self._states[sight.key] = state
            if state in ("waiting", "unreadable", "silent", "gone"):
                yield f"{name}: {printable(sight.problem) or sight.progress(now)}"
            else:
                yield f"{name}: {verdict(sight.report)}" + (" The run has ended." if state == "ended" else "")

    def _findings(self, sight: Sight) -> Iterator[str]:
        if sight.state == "reading":  # report past findings only once all of the past is read
            return
        told = self._told.setdefault(sight.key, {})
        there = {(item.name, item.first_step) for item in sight.report.symptoms}
        for symptom in sight.report.symptoms:
            key = (symptom.name, symptom.first_step)
            # A log that is read again may find the same at another first step.
            moved = [known for known in told if known[0] == symptom.name and known not in there]
            before = worst([told.pop(known) for known in (*moved, key) if known in told])
            if before is None or SEVERITIES.index(symptom.severity) > SEVERITIES.index(before):
                before = symptom.severity
                yield finding(sight.name, symptom, sight.report)
            told[key] = before


def finding(name: str, symptom: Symptom, report: Report) -> str:
    """A finding in one line: what, where, why, and the first change.

    >>> spike = Symptom("loss-spike", "LO01", "warning", 0.9, 7, 8, message="loss 9 is 4 times its recent 2.2")
    >>> finding("runs/a", spike, Report(step=9, symptoms=(spike,)))
    'runs/a:7: LO01 loss-spike (warning): loss 9 is 4 times its recent 2.2'
    """
    where = where_text(symptom)
    words = f"{printable(name)}:{symptom.first_step}: {label(symptom)} ({symptom.severity})"
    words += f": {printable(symptom.message)}" if symptom.message else ""
    words += f" [{where}]" if where else ""
    place = report.symptoms.index(symptom)
    best = next((item for item in report.diagnoses if place in item.episodes), None)
    if best is not None and best.cause != "unknown":
        words += f"; likely {printable(best.cause)} ({percent(best.probability)})"
    if best is not None and best.suggestions:
        later = best.cause == "unknown" and symptom.first_step == symptom.last_step
        words += f"; {'if it happens again' if later else 'try'}: {first_line(best.suggestions[0].code)}"
    return words
