"""Schedules a detector: when it looks at the chart, and which coming steps it can skip."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import YOUNG, lifetime
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.changes import expecting
from torchdoctor.symptoms.detector import LOOK, SAME, Detector, Outlook

TOLERATED_FAILURES = 3
CHRONIC, RAREST = 20, 128
"""A detector that looks at every 20th record or less often is patient, and looks less often later: at every 128th
record, and after many thousand steps each time the run has grown by 1/64. By then all patient detectors look at the
same records, those at which baselines are recomputed, so long stretches in between can be skipped."""
NEVER = 1 << 62


class Watch:
    """A detector's state: how often it was asked and failed, when it is due, and how long its episode is silent."""

    __slots__ = (
        "asked",
        "check",
        "detector",
        "due",
        "evaluates",
        "failures",
        "is_calm",
        "name",
        "opened",
        "patient",
        "silent",
    )

    def __init__(self, detector: Detector) -> None:
        self.detector, self.name = detector, detector.name
        self.check, self.is_calm = expecting(detector), detector.is_calm
        self.asked = self.silent = self.failures = self.opened = 0
        self.patient = detector.every >= CHRONIC
        self.evaluates = all(name.startswith("val_") for name in detector.reads)
        self.due = self.next_due()

    @property
    def is_off(self) -> bool:
        """Whether the detector is switched off because it failed too often."""
        return self.due == NEVER

    def fail(self) -> None:
        """Count a failure; after too many, the detector is switched off."""
        self.failures += 1
        if self.failures >= TOLERATED_FAILURES:
            self.due = NEVER

    def next_due(self) -> int:
        """The record at which to look next: patient detectors look less often as the run grows, within limits."""
        every = self.detector.every
        if not self.patient:  # looking back at all evaluations is too expensive at each of thousands
            return self.asked + (max(every, self.asked // 64) if self.evaluates else every)
        due = self.asked + max(every, min(self.asked // 10, RAREST), self.asked // 64)
        if due <= YOUNG:
            return due
        due -= due % lifetime(due)
        return due if due > self.asked else due + lifetime(due)

    def pass_over(self, records: int) -> None:
        """Count records that were handled elsewhere: the detector has looked at those where it was due."""
        self.asked += records
        late = self.asked - self.due
        if late >= 0:
            every = self.detector.every
            self.due += (late // every + 1) * every

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The detector's forecast for coming steps."""
        try:
            return self.detector.foresee(chart, coming)
        except Exception:  # noqa: BLE001  `check` will raise it again and report it
            return np.zeros(len(coming), dtype=np.int8)


class Plan:
    """A detector's plan for coming steps: where it must look, and where its open episode will end."""

    __slots__ = ("_at", "_closing", "_every", "_first", "_looks", "_outlook", "_sames", "_start", "_steps", "watch")

    def __init__(self, watch: Watch, chart: Chart, steps: list[int], start: int, outlook: Outlook) -> None:
        """`steps` are all coming steps; `outlook` is the forecast for those from `start` on."""
        self.watch, self._steps, self._start, self._outlook = watch, steps, start, outlook
        self._every = every = watch.detector.every
        self._first = _next_turn(max(watch.due - watch.asked - 1, 0), every, start)
        asked = outlook[self._first - start :: every]
        self._looks: list[int] = (np.flatnonzero(asked == LOOK) * every + self._first).tolist()[::-1]
        self._sames: list[int] = []
        if watch.name in chart.open_episodes:
            self._sames = (np.flatnonzero(asked == SAME) * every + self._first).tolist()
        self._at = start
        self.reckon(chart)

    def next_stop(self, position: int) -> int:
        """The next position at which the detector must look or its episode ends."""
        looks = self._looks
        while looks and looks[-1] < position:
            looks.pop()
        return min(looks[-1], self._closing) if looks else self._closing

    def verdict(self, position: int, changed: bool) -> int | None:
        """The forecast for one step, or LOOK if the state has `changed` since; None if the detector is not due."""
        if position < self._first or (position - self._first) % self._every:
            return None
        return LOOK if changed else int(self._outlook[position - self._start])

    def catch_up(self, chart: Chart, position: int) -> None:
        """Update the open episode by the forecasts for the steps before a position."""
        start, self._at = self._at, position
        current = chart.open_episodes.get(self.watch.name)
        if current is None or start >= position:
            return
        first, last = bisect_left(self._sames, start), bisect_left(self._sames, position)
        if first < last:
            seen = self._sames[last - 1]
            latest = max(current.last_step, self._steps[seen])
            merged = replace(current, last_step=latest, count=current.count + last - first)
            chart.update(current, merged)
            self.watch.silent = self._turns(seen + 1, position)
        else:
            self.watch.silent += self._turns(start, position)

    def pass_by(self, chart: Chart, position: int) -> None:
        """Continue after a step that was handled separately."""
        self._at = position + 1
        self.reckon(chart)

    def reckon(self, chart: Chart) -> None:
        """Compute where the open episode will end by silence, according to the forecast."""
        self._closing = NEVER
        if self.watch.name not in chart.open_episodes:
            return
        before = self._turns(self._first, self._at)
        sames = self._sames[bisect_left(self._sames, self._at) :]
        marks = np.array([before - 1 - self.watch.silent, *((same - self._first) // self._every for same in sames)])
        silences = np.flatnonzero(np.diff(marks) > self.watch.detector.closes_after)
        mark = int(marks[silences[0]] if silences.size else marks[-1])
        self._closing = self._first + (mark + self.watch.detector.closes_after) * self._every

    def _turns(self, start: int, stop: int) -> int:
        """How often the detector is due between two positions."""
        return len(range(_next_turn(self._first, self._every, start), stop, self._every))


class Plans:
    """The plans of all acute detectors, and how far all of them have a forecast."""

    def __init__(self, chart: Chart, stretch: Stretch, start: int, watches: Sequence[Watch]) -> None:
        rest = stretch[start:] if start else stretch
        outlooks = {watch: watch.foresee(chart, rest) for watch in watches if not watch.is_off}
        ahead = min(map(len, outlooks.values()), default=len(rest))
        steps = stretch.steps.tolist()
        self.size = start + ahead
        self.by_watch = {watch: Plan(watch, chart, steps, start, seen[:ahead]) for watch, seen in outlooks.items()}
        self._chart = chart

    def next_stop(self, position: int) -> int:
        """The next position at which any detector must look or any episode ends."""
        return min((plan.next_stop(position) for plan in self.by_watch.values()), default=NEVER)

    def catch_up(self, position: int) -> None:
        """Update all open episodes by the forecasts for the steps before a position."""
        for plan in self.by_watch.values():
            plan.catch_up(self._chart, position)


def _next_turn(first: int, every: int, start: int) -> int:
    """The first turn at or after `start`; turns begin at `first` and come every `every` positions.

    >>> _next_turn(3, 2, 0), _next_turn(3, 2, 6)
    (3, 7)
    """
    return first + max(0, -((first - start) // every)) * every
