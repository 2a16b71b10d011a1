"""All watched runs: finds them at the given paths, adds new ones as they appear, and reads them in turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchdoctor.errors import SourceError
from torchdoctor.journal.place import is_journal
from torchdoctor.live.search import fingerprint, modified, runs_in
from torchdoctor.live.session import JournalSession, LogSession, Session
from torchdoctor.live.sight import Sight
from torchdoctor.settings import Settings
from torchdoctor.sources import journal, labels, read_all

POLL = 0.5
"""Seconds between two looks at the files: each costs a `stat`."""
SEARCH = 2.0
"""Seconds between two searches for new runs."""
RUNS = 200
"""Most runs that are watched at once: the latest ones."""
CHEAP = 10
"""A search of a whole folder is repeated after at least ten times its duration."""
PROMPT = 3
"""A log that must be read as a whole is read again after at least three times its processor time, and at least its
duration: updates of a long log take seconds."""


class Ward:
    """The runs under some paths.

    >>> ward = Ward(["no/such/run"], Settings())
    >>> _ = ward.poll()
    >>> [sight.state for sight in ward.sights()]
    ['waiting']
    """

    def __init__(self, paths: Sequence[str | Path], settings: Settings) -> None:
        self.places = [
            Place(path, title, settings) for path, title in {Path(path): str(path) for path in paths}.items()
        ]
        self.left_out = 0
        """Number of runs that were found but not watched, because there are too many."""
        self._search_due = float("-inf")

    @property
    def more(self) -> bool:
        """Whether more can be read immediately."""
        return any(session.more for session in self._sessions())

    def poll(self) -> bool:
        """Look at everything once; returns whether anything is new."""
        changed = self._search() if time.monotonic() >= self._search_due and not self.more else False
        for place in self.places:
            changed = place.poll() or changed
        return changed

    def _search(self) -> bool:
        began = time.monotonic()
        room, self.left_out = RUNS, 0
        changed = False
        for place in self.places:
            changed = place.search(room) or changed
            room = max(room - len(place.sessions), 0)
            self.left_out += place.left_out
        self._search_due = time.monotonic() + max(SEARCH, CHEAP * (time.monotonic() - began))
        return changed

    def sights(self) -> tuple[Sight, ...]:
        """The state of every run; if two places have runs of the same name, with the places' names."""
        found: dict[str, tuple[Place, Sight]] = {}
        for place in self.places:
            for sight in place.sights():
                found.setdefault(sight.key, (place, sight))
        seen = list(found.values())
        times = Counter(sight.name for _, sight in seen)
        return tuple(
            replace(sight, name=f"{place.title}/{sight.name}")
            if times[sight.name] > 1 and sight.name != place.title
            else sight
            for place, sight in seen
        )

    def _sessions(self) -> Iterator[Session]:
        for place in self.places:
            yield from place.sessions.values()


class Place:
    """One given path: a run, a folder of runs, or nothing yet."""

    def __init__(self, path: Path, title: str, settings: Settings) -> None:
        self.path = path
        self.title = title
        self.sessions: dict[str, Session] = {}
        self.left_out = 0
        self._logs: dict[Path, Log] = {}
        self._settings = settings

    def search(self, room: int) -> bool:
        """Add runs that are new; returns whether there were any."""
        before = len(self.sessions)
        there = runs_in(self.path)
        for path in [path for path in self._logs if there and path not in there]:  # replaced by a journal inside it
            for key in self._logs.pop(path).keys:
                del self.sessions[key]
        found = [path for path in there if str(path) not in self.sessions and path not in self._logs]
        found.sort(key=modified, reverse=True)
        space = max(room - len(self.sessions), 0)
        self.left_out = len(found[space:])
        for path in found[:space]:
            if path.is_file() and (is_journal(path) or journal.recognises(path)):
                key = str(path)
                self.sessions[key] = JournalSession(key, self._name(path), path, self._settings)
            else:
                self._logs[path] = Log(path)
        return len(self.sessions) != before

    def poll(self) -> bool:
        """Look at every run once; returns whether anything is new."""
        changed = False
        for log in self._logs.values():
            changed = self._reread(log) or changed
        for session in self.sessions.values():
            changed = session.poll() or changed
        return changed

    def sights(self) -> Iterator[Sight]:
        """The states of its runs; a place without runs is shown as waiting."""
        for session in self.sessions.values():
            yield session.sight()
        if not self.sessions:
            problem = next((log.problem for log in self._logs.values() if log.problem), "")
            absent = "" if self.path.exists() else "waiting: this path does not exist yet"
            yield Sight(str(self.path), self.title, "unreadable" if problem else "waiting", problem=problem or absent)

    def _reread(self, log: Log) -> bool:
        if not log.is_due():
            return False
        began, worked = time.monotonic(), time.thread_time()
        before = log.problem
        try:
            runs = read_all(log.path)
            log.problem = ""
        except SourceError as error:  # it is half written, or not a log
            runs, log.problem = [], str(error)
        except Exception as error:  # noqa: BLE001  a watch must not end because of a file
            runs, log.problem = [], f"{log.path} cannot be read: {type(error).__name__}: {error}"
        named = dict(zip(labels(runs), runs, strict=True))
        for label, run in named.items():
            session = self.sessions.get(label)
            if isinstance(session, LogSession):
                session.reread(run)
            elif len(self.sessions) < RUNS:
                self.sessions[label] = LogSession(label, self._name(log.path), run, self._settings)
                log.keys.add(label)
        self._settle(log, named)
        took, busy = time.monotonic() - began, time.thread_time() - worked
        log.rest(max(PROMPT * busy, took))
        return bool(runs) or log.problem != before

    def _settle(self, log: Log, there: Container[str]) -> None:
        """Mark runs that the log no longer holds, and distinguish several runs by name."""
        for key in log.keys:
            session = self.sessions[key]
            if not isinstance(session, LogSession):
                continue
            if key not in there:
                session.miss(log.problem if session.path.exists() else "")
            if len(log.keys) > 1:
                session.call(key.replace(str(session.path), self._name(session.path), 1))

    def _name(self, path: Path) -> str:
        """A run's name: its path relative to the given one."""
        if is_journal(path) and path != self.path:
            path = path.parent
        if path == self.path or not path.is_relative_to(self.path):
            return self.title
        return str(path.relative_to(self.path))


class Log:
    """A log that can only be read as a whole, and when to do so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self.keys: set[str] = set()
        """Keys of the runs that it has held."""
        self._seen: object = None
        self._due = float("-inf")

    def is_due(self) -> bool:
        """Whether it has changed, and is due for reading."""
        began = time.monotonic()
        if began < self._due:
            return False
        now = fingerprint(self.path)
        changed = now != self._seen
        self._seen = now
        self.rest(CHEAP * (time.monotonic() - began))
        return changed

    def rest(self, seconds: float) -> None:
        """Do not read it for a while."""
        self._due = time.monotonic() + max(seconds, POLL)
