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
"""The weight of a definite fact (a parameter in no group): its cause is near 1 and explains the others away."""


SAMPLED = frozenset(
    detector.name for detector in DETECTORS if all(key.startswith(("tensors/", "modules/")) for key in detector.reads)
)
"""Findings that are looked for at sampled steps only: when they began is known to a sample or two."""
LATE = SAMPLED | {detector.name for detector in DETECTORS if detector.every >= 10}
"""Findings that are made a while after they could have been."""


class Evidence(NamedTuple):
    """One observation that speaks for (positive) or against (negative) a cause, in log-odds, with its numbers."""

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
        """The onset: of what does harm, where anything does, and was looked for at each step, where anything was."""
        grave = [symptom for symptom in self.symptoms if symptom.severity != "info"]
        sharp = [symptom for symptom in grave if symptom.name not in SAMPLED]
        return min(symptom.first_step for symptom in sharp or grave or self.symptoms)

    @property
    def last_step(self) -> int:
        """When it was last seen."""
        return max(symptom.last_step for symptom in self.symptoms)

    def has(self, *names: str) -> bool:
        """Whether one of these symptoms is part of it."""
        return any(name in names for name in self.names)

    def grave(self, *names: str) -> bool:
        """Whether one of these symptoms is part of it at warning or above."""
        return any(symptom.name in names and symptom.severity != "info" for symptom in self.symptoms)

    def began_with(self, step: int, *names: str) -> bool:
        """Whether one of these symptoms was there at a step: what came later did not announce what happened then."""
        return any(symptom.name in names and symptom.first_step <= step for symptom in self.symptoms)

    def get(self, name: str) -> Symptom | None:
        """The first symptom of a name."""
        return next((symptom for symptom in self.symptoms if symptom.name == name), None)


class Cause(ABC):
    """One reason why a run is sick: class attributes are its metadata, `weigh` its evidence.

    A cause is a candidate for a problem if it explains one of its symptoms. `prior` is its log-odds before any
    evidence, against `unknown`, which has 0 and no evidence.
    """

    name: ClassVar[str]
    explains: ClassVar[tuple[str, ...]]
    prior: ClassVar[float] = -1.0
    suggests: ClassVar[tuple[str, ...]] = ()
    """Actions, the most fitting first."""
    references: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """What speaks for and against this cause; nothing where nothing is known."""
