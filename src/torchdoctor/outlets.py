"""The destinations of examined records of a live run: journal, sinks, listeners and the Python log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdoctor.journal import Journal
from torchdoctor.records import Record, Severity
from torchdoctor.reports.report import Report
from torchdoctor.stretch import Stretch

if TYPE_CHECKING:
    from torchdoctor.sinks import Couriers

logger = logging.getLogger("torchdoctor")


class Outlets:
    """Pass records on; a failing destination is noted and does not affect the others.

    >>> outlets, told = Outlets(lambda key, text: None), []
    >>> outlets.subscribe(told.append)
    >>> outlets.pass_on({"type": "vitals", "step": 0}, [])
    >>> told
    [{'type': 'vitals', 'step': 0}]
    """

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self.journal: Journal | None = None
        self._note = note
        self._couriers: Couriers | None = None
        self._listeners: list[Callable[[Record], None]] = []
        self._logged: dict[str, str] = {}
        """The last line of each finding in the Python log."""

    def subscribe(self, listener: Callable[[Record], None]) -> None:
        """Add a function that is called with every record."""
        self._listeners.append(listener)

    def open_sink(self, sink: Any, run: str, least: Severity) -> None:
        """Add a sink; `run` is the name of the run, and `least` the lowest severity that is sent."""
        from torchdoctor.sinks import Couriers, Subject, open_sink  # imported here: most runs have no sinks

        opened, label = open_sink(sink, Subject(run, least))
        if self._couriers is None:
            self._couriers = Couriers()
        self._couriers.add(opened, label)

    def pass_by(self, stretch: Stretch) -> None:
        """Pass on steps without findings."""
        if self.journal is not None:
            self.journal.write_stretch(stretch)
        if self._couriers is not None and (troubles := self._couriers.take(stretch.record(-1), ())):
            self._note_troubles(troubles)
        if self._listeners:
            for record in stretch.records():
                self._tell(record)

    def pass_on(self, record: Record, found: Sequence[Record]) -> None:
        """Pass on a record and the records derived from it."""
        if self.journal is not None:
            self.journal.write(record)
            for item in found:
                self.journal.write(item)
        if self._couriers is not None and (troubles := self._couriers.take(record, found)):
            self._note_troubles(troubles)
        if self._listeners:
            for item in (record, *found):
                self._tell(item)

    def announce(self, found: Sequence[Record]) -> None:
        """Log findings of at least warning as they are made, with the likeliest cause and the first change to try.

        A line that a finding repeats word for word, because only its place has changed, is logged once. Phase reports,
        if they are turned on, are logged as info.
        """
        causes = [item for item in found if item["type"] == "diagnosis"]
        for item in found:
            if item["type"] == "phase":
                logger.info("%s", item["message"])
            if item["type"] != "symptom" or item["event"] == "closed" or item["severity"] == "info":
                continue
            text = f"step {item['first_step']}: {item['code']} {item['name']} ({item['severity']}): {item['message']}"
            cause = next((c for c in causes if item["name"] in c["symptoms"]), None)
            if cause is not None:
                known = cause["cause"] != "unknown"
                text += (
                    f". Most likely: {cause['cause']} ({100 * cause['probability']:.0f} %)."
                    if known
                    else ". No cause stands out."
                )
                if cause["suggestions"]:
                    later = "Try" if known or item["first_step"] != item["last_step"] else "If it happens again"
                    text += f" {later}: {cause['suggestions'][0]['code'].splitlines()[0]}"
            if self._logged.get(item["name"]) != text:
                self._logged[item["name"]] = text
                logger.warning("%s", text)

    def mind(self) -> None:
        """Note lost journal records, and sinks that gave up since the last call."""
        lost = 0 if self.journal is None else self.journal.dropped
        if lost:
            self._note("journal", f"{lost} records could not be written to the journal {self.place}: is the disk full?")
        if self._couriers is not None:
            self._note_troubles(self._couriers.troubles())

    def close_sinks(self, report: Callable[[], Report]) -> None:
        """Send everything that is waiting, and the final report."""
        if self._couriers is not None:
            self._couriers.close(report())
            self._note_troubles(self._couriers.troubles())

    def close_journal(self) -> None:
        """Close the journal, and note lost records."""
        if self.journal is not None:
            self.journal.close()
            self.mind()

    @property
    def place(self) -> Path | None:
        """The path of the journal, if there is one."""
        return None if self.journal is None else self.journal.path

    def _tell(self, record: Record) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(record)
            except Exception as error:  # noqa: BLE001  a failing listener must not stop the loop
                self._listeners.remove(listener)
                self._note(
                    f"listener {id(listener)}", f"a listener was dropped: it raised {type(error).__name__}: {error}."
                )

    def _note_troubles(self, troubles: Sequence[tuple[str, str]]) -> None:
        for label, text in troubles:
            self._note(f"{label} {text}", text)
