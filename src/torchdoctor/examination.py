"""The examination: records in, findings out, for live runs and for runs read from a file.

>>> examination = Examination(Settings())
>>> for step in range(60):
...     found = examination.take({"type": "vitals", "step": step, "vitals": {"grad_norm": 1.0 + step % 3 / 10}})
>>> [item["name"] for item in examination.take({"type": "vitals", "step": 60, "vitals": {"grad_norm": 80.0}})
...  if item["type"] == "symptom"]
['gradient-explosion']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchdoctor.chart import Chart, is_further_loss
from torchdoctor.diagnoses import rank
from torchdoctor.episodes import follow
from torchdoctor.phases import judge_phase
from torchdoctor.pictures import Closeups, main_vitals
from torchdoctor.records import Record, Symptom
from torchdoctor.reports.clock import in_its_clock
from torchdoctor.reports.report import Report
from torchdoctor.reports.unjudged import unjudged
from torchdoctor.series import Array, Series
from torchdoctor.settings import Settings
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms import build
from torchdoctor.symptoms.detector import CALM, LOOK
from torchdoctor.symptoms.hindsight import at_the_end, in_hindsight
from torchdoctor.treatments import prescribe
from torchdoctor.watch import NEVER, TOLERATED_FAILURES, Plan, Plans, Watch

EVIDENCE = frozenset(
    {"header", "context", "groups", "vitals", "validation", "tensors", "modules", "facts"}
    | {"origin", "check", "note", "end"}
)
"""The record types that hold measurements; the others are derived from them."""
LONGEST = 1024
"""Maximum number of steps that are entered at once."""
FEW = 4
"""Steps up to which entering them one by one is as fast."""


class _Duties(NamedTuple):
    """The detectors that read any vital of a record type."""

    watches: tuple[Watch, ...]
    patient: tuple[Watch, ...]
    acute: tuple[Watch, ...]
    """The detectors that are not patient, in the same order."""
    judged: tuple[str, ...]
    """The vitals that the acute detectors read."""
    regular: bool
    """Whether the acute detectors look at regular intervals."""


class Examination:
    """A chart, the detectors that read it, and the episodes that they have opened.

    With `live`, causes are ranked at each new finding, for listeners; otherwise only in the report.
    """

    def __init__(self, settings: Settings, *, live: bool = True) -> None:
        self.settings, self._live = settings, live
        self.chart = Chart()
        self._watches = [Watch(detector) for detector in build(settings)]
        self._by_keys: dict[tuple[str, ...], tuple[Watch, ...]] = {}
        self._duties_by_keys: dict[tuple[str, ...], _Duties] = {}
        self._closeups = Closeups()
        self._validations = 0
        self._told_at = -1
        """The step of the facts being examined: facts arrive at once, but vitals in blocks."""
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
            self._told_at = record["step"]
            keys = tuple(f"facts/{name}" for name in record["facts"])
        elif kind == "origin":
            keys = ("origin",)
        elif kind == "end":
            return self._ended()
        else:
            return []
        events = self._concluded(self._ask(keys))
        self._told_at = -1
        if kind == "validation":
            events += self._judged(record["step"])
        return events

    def take_all(self, pieces: Iterable[Record | Stretch]) -> Iterator[tuple[Record | Stretch, list[Record]]]:
        """Enter records and stretches in order; yields each, or each part of one, with the records that follow."""
        for piece in pieces:
            if not isinstance(piece, Stretch):
                yield piece, self.take(piece)
                continue
            start = 0
            for position, found in self._enter_all(piece):
                if position > start:
                    yield piece[start:position], []
                yield piece.record(position), found
                start = position + 1
            if start < len(piece):
                yield piece[start:] if start else piece, []

    def take_stretch(self, stretch: Stretch) -> list[Record]:
        """Enter the steps of a stretch in order and return the records that follow from them."""
        return [event for _, found in self._enter_all(stretch) for event in found]

    def enter(self, piece: Record | Stretch) -> list[Record]:
        """Enter a record or a stretch of steps and return the records that follow from it."""
        return self.take_stretch(piece) if isinstance(piece, Stretch) else self.take(piece)

    def judged(self) -> Chart:
        """The chart with its episodes, judged in hindsight by the whole run so far."""
        if self.settings.preset == "paper":
            return self.chart
        return in_hindsight(self.chart, {watch.name for watch in self._watches})

    def report(self) -> Report:
        """The report on the run so far."""
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

    def _enter_all(self, stretch: Stretch) -> Iterator[tuple[int, list[Record]]]:
        """Enter the steps of a stretch; yields the positions from which records follow, with those records."""
        position, size = 0, len(stretch)
        duties = self._duties(tuple(stretch.columns))
        while position < size:
            block = stretch[position : min(position + LONGEST, size)] if size > LONGEST or position else stretch
            block = self._foreseeable(block, duties)
            calm, found = self._enter_calm(block, duties)
            if not calm and (len(block) <= FEW or block.steps[0] <= self.chart.step or not duties.regular):
                calm, found = 1, self.take(block.record(0))
            if calm:
                position += calm
                if found:
                    yield position - 1, found
                continue
            for calm, found in self._sweep(block, duties):
                if found:
                    yield position + calm - 1, found
            position += calm

    def _foreseeable(self, stretch: Stretch, duties: _Duties) -> Stretch:
        """The first steps of a stretch, up to where a baseline changes or a patient detector is due."""
        most = len(stretch)
        for watch in duties.patient:  # these have their own schedule
            if watch.due - watch.asked < most:
                most = watch.due - watch.asked
        for vital in duties.judged:
            steady = self.chart[vital].steady
            if steady < most and stretch.finite:
                most = steady
            elif steady < most:
                finite = np.isfinite(stretch.columns[vital][:most])
                most = steady if finite[: steady + 1].all() else int(np.searchsorted(np.cumsum(finite), steady + 1))
        return stretch[:most] if most < len(stretch) else stretch

    def _enter_calm(self, stretch: Stretch, duties: _Duties) -> tuple[int, list[Record]]:
        """Enter these steps at once if no acute detector could find anything in them.

        Returns how many were entered, all or none, and what the patient detectors find at the last of them.
        """
        chart, coming, size = self.chart, {}, len(stretch)
        for vital, values in stretch.columns.items():
            low, high = coming[vital] = _range(values, stretch.finite)
            if not -math.inf < low <= high < math.inf:
                return 0, []
        try:
            for watch in duties.acute:
                if watch.due < NEVER and (watch.name in chart.open_episodes or not watch.is_calm(chart, coming)):
                    return 0, []
        except Exception:  # noqa: BLE001  `check` will raise it again and report it
            return 0, []
        chart.extend(stretch, coming)
        for watch in duties.acute:
            watch.pass_over(size)
        for watch in duties.patient:
            watch.asked += size
        return size, self._concluded(self._ask_in_turn(duties.patient))

    def _sweep(self, stretch: Stretch, duties: _Duties) -> Iterator[tuple[int, list[Record]]]:
        """Enter these steps, and run detectors only where they could not foresee their result.

        Yields how many steps are entered and what follows from the last of them; finally, the total number of steps.
        """
        plans = Plans(self.chart, stretch, 0, duties.acute)
        let_in = self.chart.announce(stretch[: plans.size])
        position = 0
        while position < plans.size:
            stop = min(plans.next_stop(position), plans.size - 1)
            plans.catch_up(stop)
            let_in(stop + 1)
            position = stop + 1
            watches = duties.acute
            if position == plans.size:
                watches = duties.watches
                for watch in duties.patient:
                    watch.asked += position
            found, changed = self._look_at(stop, plans.by_watch, watches)
            if found:
                yield position, self._concluded(found)
            if changed and position < plans.size:
                plans = Plans(self.chart, stretch[: plans.size], position, duties.acute)
        for watch in duties.acute:
            watch.pass_over(position)
        yield position, []

    def _look_at(
        self, position: int, plans: Mapping[Watch, Plan], watches: Sequence[Watch]
    ) -> tuple[list[Record], bool]:
        """Run the detectors that are due at a step; also returns whether earlier forecasts are now invalid."""
        events: list[Record] = []
        changed = False
        going_on = self.chart.open_episodes
        for watch in watches:
            plan = plans.get(watch)
            if plan is None:
                events += self._ask_in_turn((watch,))
                changed = changed or bool(events)
                continue
            verdict, was_open = plan.verdict(position, changed), watch.name in going_on
            if verdict == LOOK:
                found = self._look(watch)
            elif verdict == CALM and was_open:
                found = list(self._follow(watch, None))
            else:
                plan.catch_up(self.chart, position + 1)
                continue
            events += found
            changed = changed or bool(found) or (watch.name in going_on) != was_open
            plan.pass_by(self.chart, position)
        return events, changed

    def _watching(self, keys: tuple[str, ...]) -> tuple[Watch, ...]:
        """The detectors that read any of these keys."""
        watches = self._by_keys.get(keys)
        if watches is None:
            wanted = set(keys)
            other = any(map(is_further_loss, keys))
            watches = tuple(
                watch
                for watch in self._watches
                if wanted.intersection(watch.detector.reads) or (other and watch.detector.reads_losses)
            )
            self._by_keys[keys] = watches
        return watches

    def _duties(self, keys: tuple[str, ...]) -> _Duties:
        duties = self._duties_by_keys.get(keys)
        if duties is None:
            watches = self._watching(keys)
            acute = tuple(watch for watch in watches if not watch.patient)
            judged = {name for watch in acute for name in watch.detector.reads}
            patient = tuple(watch for watch in watches if watch.patient)
            regular = not any(watch.evaluates for watch in acute)
            duties = _Duties(watches, patient, acute, tuple(judged.intersection(keys)), regular)
            self._duties_by_keys[keys] = duties
        return duties

    def _ask(self, keys: tuple[str, ...]) -> list[Record]:
        """Run all detectors that read any of these keys and are due."""
        watches = self._watching(keys)
        for watch in watches:
            watch.asked += 1
        return self._ask_in_turn(watches)

    def _ask_in_turn(self, watches: Sequence[Watch]) -> list[Record]:
        events: list[Record] = []
        for watch in watches:
            if watch.asked >= watch.due:
                watch.due = watch.next_due() if watch.evaluates or watch.detector.every > 1 else watch.asked + 1
                events += self._look(watch)
        return events

    def _look(self, watch: Watch) -> list[Record]:
        """Run one detector, and return the records that follow from its result."""
        try:
            symptom = watch.check(self.chart)
        except Exception as error:  # noqa: BLE001  a failing detector must not end the run
            return list(self._failed(watch, error))
        if symptom is not None or watch.name in self.chart.open_episodes:
            return list(self._follow(watch, symptom))
        return []

    def _concluded(self, events: list[Record]) -> list[Record]:
        """The events of detectors, with the meta-findings and diagnoses that follow from them."""
        if events and any(item["type"] == "symptom" for item in events):
            events += self._ask(("symptoms",))
            events += self._diagnosed(events)
        return events

    def _failed(self, watch: Watch, error: Exception) -> Iterable[Record]:
        watch.fail()
        if watch.is_off:
            text = (
                f"{watch.name} was switched off: it failed {TOLERATED_FAILURES} times ({type(error).__name__}: {error})"
            )
            note = {"type": "note", "step": self.chart.step, "text": text}
            self.chart.add(note)
            yield note

    def _follow(self, watch: Watch, symptom: Symptom | None) -> Iterable[Record]:
        """Update a detector's episode by its result, and return the records of the changes."""
        return (self._event(*change) for change in follow(self.chart, watch, symptom))

    def _drawn(self) -> dict[str, Series]:
        """The main vitals, which a report plots first."""
        return {name: self.chart[name] for names in main_vitals(self.chart.vitals).values() for name in names}

    def _event(self, event: str, symptom: Symptom) -> Record:
        self._closeups.take(symptom, self._drawn())
        step = max(self.chart.step, self._told_at)
        return {"type": "symptom", "step": step, "event": event, **symptom.to_dict()}

    def _ended(self) -> list[Record]:
        """Findings that only the end of a run allows, and the closing of open episodes."""
        names = () if self.settings.preset == "paper" else {watch.name for watch in self._watches}
        try:
            new = at_the_end(self.chart, names)
        except Exception:  # noqa: BLE001  an error here must not disturb the end of the run
            new = []
        self.chart.episodes += new
        self.chart.open_episodes.update((episode.name, episode) for episode in new)
        events = self._concluded([self._event("opened", episode) for episode in new])
        events += [self._event("closed", symptom) for symptom in self.chart.open_episodes.values()]
        self.chart.open_episodes.clear()
        return events

    def _diagnosed(self, events: list[Record]) -> list[Record]:
        """The ranked causes of every problem with a symptom that has just opened or changed."""
        moved = {item["name"] for item in events if item["type"] == "symptom" and item["event"] != "closed"}
        if not moved or not self._live:
            return []
        diagnoses, _ = prescribe(self.chart, rank(self.chart))
        return [
            {"type": "diagnosis", "step": max(self.chart.step, self._told_at), **item.to_dict()}
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


def _range(values: Array, finite: bool) -> tuple[float, float]:
    """The lowest and highest value; NaN or infinite if any value is."""
    if values.size > 48:
        return float(values.min()), float(values.max())
    numbers = values.tolist()
    return (min(numbers), max(numbers)) if finite or math.isfinite(sum(numbers)) else (math.nan, math.nan)
