"""The examination: records in, findings out; the same for a live run and for one that is read back.

>>> examination = Examination(Settings())
>>> for step in range(60):
...     found = examination.take({"type": "vitals", "step": step, "vitals": {"grad_norm": 1.0 + step % 3 / 10}})
>>> [item["name"] for item in examination.take({"type": "vitals", "step": 60, "vitals": {"grad_norm": 80.0}})
...  if item["type"] == "symptom"]
['gradient-explosion']
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import rank
from torchdoctor.phases import judge_phase
from torchdoctor.pictures import Closeups, main_vitals
from torchdoctor.records import Record, Severity, Symptom, worst
from torchdoctor.reports.clock import in_its_clock
from torchdoctor.reports.report import Report
from torchdoctor.reports.unjudged import unjudged
from torchdoctor.series import YOUNG, Series, lifetime
from torchdoctor.settings import Settings
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms import Detector, build
from torchdoctor.symptoms.hindsight import in_hindsight
from torchdoctor.treatments import prescribe

EVIDENCE = frozenset(
    {"header", "context", "groups", "vitals", "validation", "tensors", "modules", "facts"}
    | {"origin", "check", "note", "end"}
)
"""The record types that are measured; the others are concluded from them."""
TOLERATED_FAILURES = 3
CHRONIC, RAREST = 20, 96
"""Who looks at every twentieth record or more rarely does so still more rarely later: down to every hundredth, and
after many thousand steps when the run has grown by a 64th. By then all look at the same records, those at which
baselines are taken anew, so that long stretches in between can be passed over."""
LONGEST = 1024
"""Steps that are entered in one go at most."""
EPISODES_LIMIT = 32
"""Episodes of one finding; what comes after them belongs to the last."""
WHERE_LIMIT = 8
"""Names that an episode keeps; more would say 'everywhere' at length."""


class _Watch:
    """A detector at work: how often it was asked and found something, and how long its open episode has been silent."""

    __slots__ = ("asked", "check", "detector", "due", "evaluates", "failures", "name", "opened", "patient", "silent")

    def __init__(self, detector: Detector) -> None:
        self.detector, self.name, self.check = detector, detector.name, detector.check
        self.asked = self.silent = self.failures = self.opened = 0
        self.patient = detector.every >= CHRONIC
        self.evaluates = all(name.startswith("val_") for name in detector.reads)
        self.due = self.next_due()

    def next_due(self) -> int:
        """When to look again: what shows over many steps is looked at less often as the run grows, within reason."""
        every = self.detector.every
        if not self.patient:  # who looks back at all evaluations cannot do so at each of thousands
            return self.asked + (max(every, self.asked // 64) if self.evaluates else every)
        due = self.asked + max(every, min(self.asked // 10, RAREST), self.asked // 64)
        if due <= YOUNG:
            return due
        due -= (due - 1) % lifetime(due)
        return due if due > self.asked else due + lifetime(due)

    def pass_over(self, records: int) -> None:
        """As many records went by in which there was nothing to find."""
        self.asked += records
        late = self.asked - self.due
        if late >= 0:
            every = self.detector.every
            self.due += (late // every + 1) * every


_Duties = tuple[tuple[_Watch, ...], tuple[_Watch, ...], tuple[str, ...]]


class Examination:
    """A chart, the detectors that read it, and the episodes that they have opened."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.chart = Chart()
        self._watches = [_Watch(detector) for detector in build(settings)]
        self._by_keys: dict[tuple[str, ...], tuple[_Watch, ...]] = {}
        self._duties_by_keys: dict[tuple[str, ...], _Duties] = {}
        self._closeups = Closeups()
        self._validations = 0
        self._phase_start = 0
        every = settings.report_every
        self._report_every = (3 if settings.preset == "paper" else 0) if every is None else every

    def take(self, record: Record) -> list[Record]:
        """Enter one record into the chart and return the records that follow from it."""
        kind = record["type"]
        if kind not in EVIDENCE:
            return []
        self.chart.add(record)
        if kind == "vitals" or kind == "validation":
            keys = tuple(record["vitals"])
        elif kind == "tensors" or kind == "modules":
            keys = tuple(f"{kind}/{name}" for name in record["vitals"])
        elif kind == "facts":
            keys = tuple(f"facts/{name}" for name in record["facts"])
        elif kind == "origin":
            keys = ("origin",)
        elif kind == "end":
            return [self._event("closed", symptom) for symptom in self._close_all()]
        else:
            return []
        events = self._concluded(self._ask(keys))
        if kind == "validation":
            events += self._judged(record["step"])
        return events

    def take_all(self, pieces: Iterable[Record | Stretch]) -> Iterator[tuple[Record | Stretch, list[Record]]]:
        """Enter records and stretches of finite numbers in order; each, or each part of one, with what follows from it.

        What is calm of a stretch is entered in one go.
        """
        for piece in pieces:
            if not isinstance(piece, Stretch):
                yield piece, self.take(piece)
                continue
            position, size = 0, len(piece)
            while position < size:
                rest = piece[position:] if position else piece
                calm, found = self._enter_calm(rest)
                position += calm
                if not calm:
                    record = piece.record(position)
                    yield record, self.take(record)
                    position += 1
                elif found:
                    yield rest[: calm - 1], []
                    yield rest.record(calm - 1), found
                else:
                    yield rest if calm == len(rest) else rest[:calm], []

    def take_stretch(self, stretch: Stretch) -> list[Record]:
        """Enter the steps of a stretch in order and return the records that follow from them."""
        found: list[Record] = []
        position, singly = 0, 1
        finite = np.isfinite(list(stretch.columns.values())).all(axis=0)
        breaks = [*np.flatnonzero(~finite).tolist(), len(stretch)]
        while position < len(stretch):
            until = breaks[bisect_left(breaks, position)]
            calm, events = self._enter_calm(stretch[position : min(until, position + LONGEST)])
            found += events
            position += calm
            if calm:
                singly = 1
                continue
            for _ in range(min(singly, len(stretch) - position)):
                found += self.take(stretch.record(position))
                position += 1
            singly = min(2 * singly, CHRONIC)  # where nothing is calm, do not ask at every step whether it is
        return found

    def enter(self, piece: Record | Stretch) -> list[Record]:
        """Enter a record or a stretch of steps and return the records that follow from it."""
        return self.take_stretch(piece) if isinstance(piece, Stretch) else self.take(piece)

    def judged(self) -> Chart:
        """The chart with its episodes as they look now: a log that was read is judged knowing its end."""
        if self.settings.preset == "paper":
            return self.chart
        return in_hindsight(self.chart, {watch.name for watch in self._watches})

    def report(self) -> Report:
        """What the run looks like now."""
        chart = self.judged()
        diagnoses, suggestions = prescribe(chart, rank(chart))
        report = Report(
            step=chart.step,
            symptoms=tuple(chart.episodes),
            diagnoses=diagnoses,
            suggestions=suggestions,
            notes=tuple(dict.fromkeys([*(text for _, text in chart.notes), *unjudged(chart)])),
            phases=tuple(chart.phases),
            context=dict(chart.context),
            curves={name: chart[name].outline.buckets() for name in chart.vitals},
            closeups=self._closeups.pieces(self._drawn()),
            maps=chart.maps,
            checks=tuple(chart.checks.values()),
        )
        return in_its_clock(report)

    def _enter_calm(self, stretch: Stretch) -> tuple[int, list[Record]]:
        """Enter as many of these steps, all finite, as hold nothing for the detectors of every step.

        Returns how many these were, and what the patient ones find at the last of them.
        """
        chart, vitals, most = self.chart, stretch.columns, len(stretch)
        patient, acute, judged = self._duties(tuple(vitals))
        for watch in patient:  # they look at their own times
            if watch.failures < TOLERATED_FAILURES:
                most = min(most, watch.due - watch.asked)
        for vital in judged:
            most = min(most, chart[vital].steady)
        while most > 0:
            calm = stretch[:most] if most < len(stretch) else stretch
            coming = {}
            for vital, values in calm.columns.items():
                numbers = values.tolist()
                coming[vital] = min(numbers), max(numbers)
            stirred = next((watch for watch in acute if not self._is_calm(watch, coming)), None)
            if stirred is None:
                chart.extend(calm, coming)
                for watch in acute:
                    watch.pass_over(most)
                for watch in patient:
                    watch.asked += most
                return most, self._concluded(self._ask_in_turn(patient))
            vital = next(name for name in stirred.detector.reads if name in vitals)
            most = int(calm.columns[vital].argmax())  # up to what is most likely to have stirred it
        return 0, []

    def _is_calm(self, watch: _Watch, coming: Mapping[str, Sequence[float]]) -> bool:
        if watch.failures >= TOLERATED_FAILURES:
            return True
        try:
            return watch.name not in self.chart.open_episodes and watch.detector.is_calm(self.chart, coming)
        except Exception:  # noqa: BLE001  `check` will say what is wrong
            return False

    def _watching(self, keys: tuple[str, ...]) -> tuple[_Watch, ...]:
        """The detectors that read any of these."""
        watches = self._by_keys.get(keys)
        if watches is None:
            wanted = set(keys)
            watches = tuple(watch for watch in self._watches if wanted.intersection(watch.detector.reads))
            self._by_keys[keys] = watches
        return watches

    def _duties(self, keys: tuple[str, ...]) -> _Duties:
        """Of the detectors that read any of these: the patient ones, the others, and which of these the others read."""
        duties = self._duties_by_keys.get(keys)
        if duties is None:
            watches = self._watching(keys)
            acute = tuple(watch for watch in watches if not watch.patient)
            judged = {name for watch in acute for name in watch.detector.reads}
            patient = tuple(watch for watch in watches if watch.patient)
            duties = self._duties_by_keys[keys] = patient, acute, tuple(judged.intersection(keys))
        return duties

    def _ask(self, keys: tuple[str, ...]) -> list[Record]:
        """Have everybody who reads any of these look, if it is their turn."""
        watches = self._watching(keys)
        for watch in watches:
            watch.asked += 1
        return self._ask_in_turn(watches)

    def _ask_in_turn(self, watches: Sequence[_Watch]) -> list[Record]:
        events: list[Record] = []
        chart = self.chart
        for watch in watches:
            if watch.asked < watch.due or watch.failures >= TOLERATED_FAILURES:
                continue
            watch.due = watch.next_due() if watch.evaluates or watch.detector.every > 1 else watch.asked + 1
            try:
                symptom = watch.check(chart)
            except Exception as error:  # noqa: BLE001  a detector's fault must not end a run
                events.extend(self._failed(watch, error))
                continue
            if symptom is not None or watch.name in chart.open_episodes:
                events.extend(self._follow(watch, symptom))
        return events

    def _concluded(self, events: list[Record]) -> list[Record]:
        """What detectors have said, and what follows from it."""
        if events and any(item["type"] == "symptom" for item in events):
            events += self._ask(("symptoms",))
            events += self._diagnosed(events)
        return events

    def _failed(self, watch: _Watch, error: Exception) -> Iterable[Record]:
        watch.failures += 1
        if watch.failures == TOLERATED_FAILURES:
            text = (
                f"{watch.name} was switched off: it failed {TOLERATED_FAILURES} times ({type(error).__name__}: {error})"
            )
            note = {"type": "note", "step": self.chart.step, "text": text}
            self.chart.add(note)
            yield note

    def _follow(self, watch: _Watch, symptom: Symptom | None) -> Iterable[Record]:
        """One episode out of a detector's answers."""
        name = watch.name
        current = self.chart.open_episodes.get(name)
        if symptom is None:
            if current is not None:
                watch.silent += 1
                if watch.silent >= watch.detector.closes_after:
                    del self.chart.open_episodes[name]
                    yield self._event("closed", current)
            return
        watch.silent = 0
        if current is None and watch.opened < EPISODES_LIMIT:
            watch.opened += 1
            self.chart.episodes.append(symptom)
            self.chart.open_episodes[name] = symptom
            yield self._event("opened", symptom)
            return
        if current is None:  # as often as this it is one trouble that comes and goes
            current = next(item for item in reversed(self.chart.episodes) if item.name == name)
        merged = merge(current, symptom)
        self.chart.open_episodes[name] = merged
        self.chart.episodes[self.chart.episodes.index(current)] = merged
        if (merged.severity, merged.where) != (current.severity, current.where):
            yield self._event("changed", merged)

    def _drawn(self) -> dict[str, Series]:
        """The vitals that a report shows first."""
        return {name: self.chart[name] for names in main_vitals(self.chart.vitals).values() for name in names}

    def _event(self, event: str, symptom: Symptom) -> Record:
        self._closeups.take(symptom, self._drawn())
        return {"type": "symptom", "step": self.chart.step, "event": event, **symptom.to_dict()}

    def _close_all(self) -> list[Symptom]:
        going_on = list(self.chart.open_episodes.values())
        self.chart.open_episodes.clear()
        return going_on

    def _diagnosed(self, events: list[Record]) -> list[Record]:
        """The ranking of every problem that holds a symptom which has just opened or changed."""
        moved = {item["name"] for item in events if item["type"] == "symptom" and item["event"] != "closed"}
        if not moved:
            return []
        diagnoses, _ = prescribe(self.chart, rank(self.chart))
        return [
            {"type": "diagnosis", "step": self.chart.step, **item.to_dict()}
            for item in diagnoses
            if moved.intersection(item.symptoms)
        ]

    def _judged(self, step: int) -> list[Record]:
        self._validations += 1
        if not self._report_every or self._validations % self._report_every:
            return []
        phase: dict[str, Any] = {"type": "phase", "step": step, **judge_phase(self.chart, self._phase_start)}
        self._phase_start = step + 1
        self.chart.phases.append(phase)
        return [phase]


def merge(current: Symptom, latest: Symptom) -> Symptom:
    """One episode out of an open one and its latest sighting: the worse severity speaks, the first step stays."""
    severity = worst([current.severity, latest.severity])
    worse: Severity = severity if severity is not None else latest.severity
    # Within a step the later record has seen more: a sample of the weights comes before the step's loss.
    # And one that knows the place says more than one that did not.
    better = latest.last_step == current.first_step or bool(latest.where and not current.where)
    leading = latest if worse != current.severity or better else current
    where = tuple(dict.fromkeys(leading.where + current.where + latest.where))[:WHERE_LIMIT]
    return replace(
        leading,
        severity=worse,
        confidence=max(current.confidence, latest.confidence),
        first_step=min(current.first_step, latest.first_step),
        last_step=max(current.last_step, latest.last_step),
        count=current.count + 1,
        where=where,
    )
