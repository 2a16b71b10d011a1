"""One run that is being watched: new data is examined as in a live run.

The run's own conclusions (symptoms and diagnoses in its journal) are ignored: the same examination of the same evidence
gives the same result, and it uses the rules and settings of the viewer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchdoctor.chart import Chart
from torchdoctor.examination import Examination
from torchdoctor.live.following import Follower
from torchdoctor.live.pace import Pace, rate_in, total_in
from torchdoctor.live.past import Past
from torchdoctor.live.sight import Sight, State
from torchdoctor.offline import examine
from torchdoctor.pictures import main_vitals
from torchdoctor.settings import Settings
from torchdoctor.sources import Run
from torchdoctor.sources.run import Piece
from torchdoctor.stretch import Stretch

FORGET = 3600.0
"""Seconds of silence after which a run's chart is dropped; if the run continues, its journal is read again."""


class JournalSession:
    """A journal that is being written."""

    def __init__(self, key: str, name: str, path: Path, settings: Settings) -> None:
        self.path = path
        self.more = False
        """Whether more can be read immediately."""
        self._settings = settings
        self._sight = Sight(key, name)
        self._changed = True
        self._signature: tuple[int, ...] = ()
        self._begin()

    def _begin(self) -> None:
        self._follower = Follower(self.path)
        self._examination = Examination(self._settings)
        self._pace = Pace(time.monotonic())
        self._caught_up = False
        self._ended = False
        self._refused = 0
        self._kept = True

    def poll(self) -> bool:
        """Read new data; returns whether there was any."""
        if not self._kept:
            if _signature(self.path) in ((), self._signature):
                return self._miss()
            self._begin()
        news = self._follower.news()
        if news.anew:
            self._examination, self._ended = Examination(self._settings), False
        before = self._chart.step
        self._enter(news.pieces)
        if self._chart.step != before and self._caught_up:
            self._pace.hear(self._chart.step, time.monotonic())
        finished = self.more and not news.more
        self.more = news.more
        if not self.more and self._chart.step >= 0 and not self._caught_up:
            self._caught_up = finished = True
            self._pace.wrote(_written(self.path))
        self._changed = self._changed or bool(news.pieces) or news.anew or finished
        return self._miss() or self._changed

    def _miss(self) -> bool:
        """Whether the journal was just found to be missing, with no new one in its place."""
        if self._sight.state != "running" or self._changed or self.path.exists():
            return False
        self._sight = gone(self._sight, self.path)
        return True

    def _enter(self, pieces: Sequence[Piece]) -> None:
        """Examine new pieces; errors in the examination are counted, because they must not end the watch."""
        for piece in pieces:
            try:
                self._examination.enter(piece)
            except Exception:  # noqa: BLE001
                self._refused += 1
            if isinstance(piece, Stretch) or piece["type"] in ("vitals", "end"):
                self._ended = not isinstance(piece, Stretch) and piece["type"] == "end"

    @property
    def _chart(self) -> Chart:
        return self._examination.chart

    def sight(self) -> Sight:
        """The current state of the run."""
        if self._changed:
            self._changed = False
            self._sight = self._look()
        now = time.monotonic()
        if self._kept and not self.more and self._caught_up and (self._ended or self._pace.silence(now) > FORGET):
            self._signature = _signature(self.path)
            self._kept = False
            self._examination = Examination(self._settings)
        return self._sight

    def _look(self) -> Sight:
        seen = look(self._sight, self._examination, self._pace)
        if count := self._follower.skipped + self._refused:
            note = f"{count} unreadable {'line is' if count == 1 else 'lines are'} left out of {self.path.name}"
            seen = replace(seen, report=replace(seen.report, notes=(*seen.report.notes, note)))
        state: State = "reading" if self.more else "ended" if self._ended else "running"
        return replace(seen, state="waiting" if state == "running" and self._chart.step < 0 else state, problem="")


class LogSession:
    """A log of another kind, read again as a whole whenever it has changed."""

    def __init__(self, key: str, name: str, run: Run, settings: Settings) -> None:
        self.path = run.path
        self.more = False
        self._settings = settings
        self._pace = Pace(time.monotonic())
        self._sight = Sight(key, name)
        self._changed = True
        self._past = Past()
        self.reread(run)

    def poll(self) -> bool:
        """Whether anything is new; `reread` brings it."""
        return self._changed

    def reread(self, run: Run) -> None:
        """Take the log as it is now."""
        run = self._past.with_it(run)
        examination = examine(run, self._settings)
        step = examination.chart.step
        if self._sight.report.step < 0:
            self._pace.wrote(_written(run.path))
        elif step != self._sight.report.step:
            self._pace.hear(step, time.monotonic())
        seen = look(self._sight, examination, self._pace)
        notes = tuple(dict.fromkeys((*seen.report.notes, *run.notes)))
        state: State = "ended" if examination.chart.ended else "running"
        self._sight = replace(seen, state=state, report=replace(seen.report, notes=notes), problem="")
        self._changed = True

    def miss(self, problem: str = "") -> None:
        """The log no longer holds this run, or cannot be read."""
        lost = replace(self._sight, problem=problem) if problem else gone(self._sight, self.path)
        if (lost.state, lost.problem) != (self._sight.state, self._sight.problem):
            self._sight = replace(lost, version=self._sight.version + 1)
            self._changed = True

    def call(self, name: str) -> None:
        """Change its name."""
        if name != self._sight.name:
            self._sight = replace(self._sight, name=name, version=self._sight.version + 1)
            self._changed = True

    def sight(self) -> Sight:
        """The current state of the run."""
        self._changed = False
        return self._sight


Session = JournalSession | LogSession


def look(before: Sight, examination: Examination, pace: Pace) -> Sight:
    """The state of a run from its examination."""
    chart, report = examination.chart, examination.report()
    names = [name for panel in main_vitals(report.curves).values() for name in panel if report.curves[name]]
    now = time.monotonic()
    rate = pace.rate() or rate_in(chart)
    return replace(
        before,
        report=replace(report, curves={name: report.curves[name] for name in names}, closeups={}, maps={}),
        open=frozenset((item.name, item.first_step) for item in chart.open_episodes.values()),
        latest={name: chart[name].latest for name in names},
        total=total_in(chart),
        rate=rate,
        heard=now - pace.silence(now),
        patience=pace.patience(rate),
        version=before.version + 1,
    )


def gone(before: Sight, path: Path) -> Sight:
    """The state of a run whose log is missing; one that had ended stays ended."""
    if before.state not in ("running", "reading"):
        return before
    why = "no longer holds a run of this name" if path.exists() else "no longer exists"
    problem = f"{path} {why}: this is the last known state"
    return replace(before, state="gone", problem=problem, version=before.version + 1)


def _written(path: Path) -> float:
    """When a file was last written, on the clock of `time.monotonic`."""
    try:
        return time.monotonic() - max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return time.monotonic()


def _signature(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
