"""What is to be seen of a run that is being watched, at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torchdoctor.live.pace import duration, pace_text
from torchdoctor.records import Symptom
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.report import Report

State = Literal["waiting", "reading", "running", "ended", "gone", "unreadable"]


@dataclass(frozen=True)
class Sight:
    """What is to be seen of a run at one moment."""

    key: str
    """What tells it apart from the others."""
    name: str
    state: State = "waiting"
    report: Report = field(default_factory=lambda: Report(step=-1))
    """With the curves that are shown, and no others."""
    open: frozenset[tuple[str, int]] = frozenset()
    """The names and first steps of the episodes that are going on."""
    latest: Mapping[str, float] = field(default_factory=dict)
    """By shown curve, its last value, which may be no number."""
    total: int | None = None
    rate: float | None = None
    heard: float = 0.0
    """The moment (of `time.monotonic`) at which the latest step was written, as far as known."""
    patience: float = 0.0
    """Seconds of silence from which on it is worth a word."""
    problem: str = ""
    """Why it cannot be read, or not any more, if so."""
    version: int = 0
    """Grows with every change."""

    def is_open(self, symptom: Symptom) -> bool:
        """Whether an episode is going on."""
        return (symptom.name, symptom.first_step) in self.open

    def newest(self, symptoms: Sequence[Symptom]) -> list[Symptom]:
        """Episodes in the order in which somebody who is watching wants them: those going on, then the latest."""
        return sorted(symptoms, key=lambda item: (not self.is_open(item), -item.first_step))

    def silence(self, now: float) -> float | None:
        """Seconds without a new step, where they are worth a word."""
        silent = now - self.heard
        return silent if self.state == "running" and silent > self.patience else None

    @property
    def left(self) -> float | None:
        """Seconds to the last step, where their number and pace are known."""
        if self.state != "running" or not self.total or not self.rate or self.report.step < 0:
            return None
        return (self.total - self.report.step - 1) / self.rate

    def progress(self, now: float) -> str:
        """Where the run is, how fast it goes, and how long it will take, in a few words."""
        if self.state == "unreadable":
            return "cannot be read"
        if self.state == "waiting":
            return "waiting, no step yet"
        clock = clock_of(self.report.context)
        parts = [f"{clock} {self.report.step:,}" + (f" of {self.total:,}" if self.total else "")]
        silent = self.silence(now)
        if self.state == "reading":
            parts.append("still reading its past")
        elif self.state == "ended":
            parts.append("ended")
        elif self.state == "gone":
            parts.append("its log is gone")
        elif silent is not None:
            parts.append(f"no new {clock} for {duration(silent)}")
        else:
            parts += [pace_text(self.rate)] if self.rate else []
            parts += [f"{duration(self.left)} left"] if self.left is not None else []
        return ", ".join(parts)
