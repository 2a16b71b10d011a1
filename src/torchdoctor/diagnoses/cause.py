"""The shape of a cause."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms import DETECTORS

CERTAIN = 8.0
"""Weight of a definite fact (such as a parameter in no optimizer): its cause gets a probability near 1."""


SAMPLED = frozenset(
    detector.name for detector in DETECTORS if all(key.startswith(("tensors/", "modules/")) for key in detector.reads)
)
"""Findings that are looked for at sampled steps only: their onset is known to within a sample or two."""
LATE = SAMPLED | {detector.name for detector in DETECTORS if detector.every >= 10}
"""Findings that may be reported some steps after their onset."""


class Evidence(NamedTuple):
    """One observation for (positive weight) or against (negative weight) a cause, in log-odds, with its numbers."""

    weight: float
    text: str


@dataclass(frozen=True)
class Problem:
    """Symptoms that belong together, in order of onset."""

    symptoms: tuple[Symptom, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The symptoms' names, each once, in order of onset."""
        return tuple(dict.fromkeys(symptom.name for symptom in self.symptoms))

    @property
    def first_step(self) -> int:
        """The onset: of findings above info if any, and of these, of those looked for at every step if any."""
        grave = [symptom for symptom in self.symptoms if symptom.severity != "info"]
        sharp = [symptom for symptom in grave if symptom.name not in SAMPLED]
        return min(symptom.first_step for symptom in sharp or grave or self.symptoms)

    @property
    def last_step(self) -> int:
        """The last step at which one of the symptoms was seen."""
        return max(symptom.last_step for symptom in self.symptoms)

    def has(self, *names: str) -> bool:
        """Whether one of these symptoms is part of the problem."""
        return any(name in names for name in self.names)

    def grave(self, *names: str) -> bool:
        """Whether one of these symptoms is part of the problem as a warning or worse."""
        return any(symptom.name in names and symptom.severity != "info" for symptom in self.symptoms)

    def began_with(self, step: int, *names: str) -> bool:
        """Whether one of these symptoms was already there at a step."""
        return any(symptom.name in names and symptom.first_step <= step for symptom in self.symptoms)

    def get(self, name: str) -> Symptom | None:
        """The first symptom with this name, if any."""
        return next((symptom for symptom in self.symptoms if symptom.name == name), None)


class Cause(ABC):
    """One reason why a run goes wrong: class attributes are its metadata, `weigh` gives its evidence.

    A cause is a candidate for a problem if it explains one of the problem's symptoms. `prior` is its log-odds before
    any evidence, relative to `unknown`, which has 0 and no evidence.
    """

    name: ClassVar[str]
    explains: ClassVar[tuple[str, ...]]
    prior: ClassVar[float] = -1.0
    suggests: ClassVar[tuple[str, ...]] = ()
    """Actions, the best one first."""
    references: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Evidence for and against this cause; none if nothing is known."""
