"""The state of a watched run at one moment."""

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
    """The state of a run at one moment."""

    key: str
    """Distinguishes it from other runs."""
    name: str
    state: State = "waiting"
    report: Report = field(default_factory=lambda: Report(step=-1))
    """With only the curves that are shown."""
    open: frozenset[tuple[str, int]] = frozenset()
    """Names and first steps of the open episodes."""
    latest: Mapping[str, float] = field(default_factory=dict)
    """By shown curve, its last value, which may be non-finite."""
    total: int | None = None
    rate: float | None = None
    heard: float = 0.0
    """When the latest step was written (on the clock of `time.monotonic`), if known."""
    patience: float = 0.0
    """Seconds of silence after which it is reported."""
    problem: str = ""
    """Why it cannot be read, or can no longer be read; else empty."""
    version: int = 0
    """Increases with every change."""

    def is_open(self, symptom: Symptom) -> bool:
        """Whether an episode is still open."""
        return (symptom.name, symptom.first_step) in self.open

    def newest(self, symptoms: Sequence[Symptom]) -> list[Symptom]:
        """Episodes in the order for a viewer: open ones, then the latest."""
        return sorted(symptoms, key=lambda item: (not self.is_open(item), -item.first_step))

    def silence(self, now: float) -> float | None:
        """Seconds without a new step, if there are enough to report."""
        silent = now - self.heard
        return silent if self.state == "running" and silent > self.patience else None

    @property
    def left(self) -> float | None:
        """Seconds to the last step, if the number of steps and their rate are known."""
        if self.state != "running" or not self.total or not self.rate or self.report.step < 0:
            return None
        return (self.total - self.report.step - 1) / self.rate

    def progress(self, now: float) -> str:
        """The step, the speed and the remaining time, in a few words."""
        if self.state == "unreadable":
            return "cannot be read"
        if self.state == "waiting":
            return "waiting, no step yet"
        clock = clock_of(self.report.context)
        parts = [f"{clock} {self.report.step:,}" + (f" of {self.total:,}" if self.total else "")]
        silent = self.silence(now)
        if self.state == "reading":
            parts.append("still reading earlier steps")
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
