"""One problem to treat: its severity, how often it came back, whether it is over, where the learning rate must go."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import Problem
from torchdoctor.diagnoses.at_the_break import is_brief, is_over
from torchdoctor.records import Severity, Symptom, worst
from torchdoctor.treatments.fitting import spoken

WINDOW = 1000
"""Steps within which another episode of the same finding counts as a repetition."""
ACUTE = ("gradient-explosion", "gradient-instability", "loss-spike", "loss-divergence", "nan-or-inf")
FAST = (*ACUTE, "loss-oscillation", "weight-growth", "activation-explosion", "skipped-steps", "dead-units")
"""Findings that ask for a lower learning rate."""
SLOW = ("gradient-vanishing", "loss-plateau", "slow-learning", "learning-rate-vanished")
"""Findings that ask for a higher learning rate."""
LEAPS = ("gradient-explosion", "gradient-vanishing", "loss-spike")
"""Findings that last one or a few steps, and may come back while their episode is still open."""
DIRECTIONS = {"lr-too-high": "down", "warmup-missing": "down", "lr-too-low": "up"}
"""Causes that decide which way the learning rate must go, whatever the findings."""


@dataclass(frozen=True)
class Case:
    """One problem and the cause that is treated ("" for none)."""

    chart: Chart
    problem: Problem
    cause: str = ""
    evidence: tuple[str, ...] = ()
    """The evidence for and against that cause."""

    def says(self, word: str) -> bool:
        """Whether the evidence for the cause contains this word."""
        return word in spoken(self.evidence)

    @property
    def calls(self) -> tuple[str, ...]:
        """What its findings say about a call that the loop lacks; code is fitted to it as to evidence."""
        return tuple(item.message for item in self.problem.symptoms if ": call " in item.message)

    @property
    def severity(self) -> Severity:
        """The worst of its symptoms."""
        return worst([symptom.severity for symptom in self.problem.symptoms]) or "info"

    @property
    def repeats(self) -> int:
        """How often the most repeated finding was seen in the window; 1 is the first time."""
        return self._most_seen[1]

    @property
    def repeated(self) -> str:
        """The most repeated finding."""
        return self._most_seen[0]

    @functools.cached_property
    def _most_seen(self) -> tuple[str, int]:
        """The most repeated finding and its count, including episodes nearby that belong to other problems."""
        last, seen = self.problem.last_step, dict.fromkeys(self.problem.names, 0)
        others = (item for item in self.chart.episodes if item.severity != "info")
        for item in {id(item): item for item in (*self.problem.symptoms, *others)}.values():
            if item.name in seen and abs(last - item.last_step) <= WINDOW:
                seen[item.name] += sightings(self.chart, item)
        return max(seen.items(), key=lambda item: item[1])

    @property
    def healed(self) -> bool:
        """Whether the problem was brief, is over, and did not harm the loss."""
        hurt = self.problem.grave("loss-spike", "loss-divergence", "nan-or-inf")
        return is_over(self.chart, self.problem) and is_brief(self.problem) and not hurt


def sightings(chart: Chart, episode: Symptom) -> int:
    """How often a jump occurred within one episode: consecutive steps are one jump, a calm stretch as long ends it.

    >>> chart = Chart.of(grad_norm=[1.0] * 400)
    >>> in_a_row = Symptom("gradient-explosion", "GR01", "warning", 0.9, 300, 303, count=4)
    >>> apart = Symptom("gradient-explosion", "GR01", "warning", 0.9, 300, 330, count=4)
    >>> sightings(chart, in_a_row), sightings(chart, apart)
    (1, 4)
    """
    if episode.name not in LEAPS or episode.count < 2:
        return 1
    steps = chart["loss" if episode.name == "loss-spike" else "grad_norm"].steps
    every = float(steps[-1] - steps[0]) / (steps.size - 1) if steps.size > 1 else 1.0  # a log may hold every tenth step
    looks = 1 + round((episode.last_step - episode.first_step) / max(every, 1.0))
    return min(episode.count, 1 + max(looks - episode.count, 0) // episode.count)


def direction(case: Case) -> str:
    """Which way the learning rate must go: "down", "up", or "" if nothing decides it.

    Findings of growth outweigh those of standstill, unless they are only info and the others are not.
    """
    if case.cause in DIRECTIONS:
        return DIRECTIONS[case.cause]
    problem = case.problem
    if problem.has(*FAST) and (problem.grave(*FAST) or not problem.grave(*SLOW)):
        return "down"
    return "up" if problem.has(*SLOW) else ""
