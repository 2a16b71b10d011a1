"""One problem as its treatment sees it: how grave, how often, whether it is over, and which way the rate must go."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import Problem
from torchdoctor.diagnoses.findings import is_brief, is_over
from torchdoctor.records import Severity, Symptom, worst
from torchdoctor.treatments.fitting import spoken

WINDOW = 1000
"""Steps within which the same finding coming back counts as repeated."""
ACUTE = ("gradient-explosion", "gradient-instability", "loss-spike", "loss-divergence", "nan-or-inf")
FAST = (*ACUTE, "loss-oscillation", "weight-growth", "activation-explosion", "skipped-steps", "dead-units")
"""Findings that ask for a lower learning rate."""
SLOW = ("gradient-vanishing", "loss-plateau", "slow-learning", "learning-rate-vanished")
"""Findings that, if any, ask for a higher one."""
LEAPS = ("gradient-explosion", "gradient-vanishing", "loss-spike")
"""Findings that are over in a step or a few, and may come back while their episode is still open."""
DIRECTIONS = {"lr-too-high": "down", "warmup-missing": "down", "lr-too-low": "up"}
"""Causes that know which way the rate must go, whatever was found."""


@dataclass(frozen=True)
class Case:
    """One problem, the cause that is being treated ("" for none), and what the engine asks about them."""

    chart: Chart
    problem: Problem
    cause: str = ""
    evidence: tuple[str, ...] = ()
    """What was said for and against that cause."""

    def says(self, word: str) -> bool:
        """Whether what speaks for the cause speaks of this."""
        return word in spoken(self.evidence)

    @property
    def severity(self) -> Severity:
        """The worst of its symptoms."""
        return worst([symptom.severity for symptom in self.problem.symptoms]) or "info"

    @property
    def repeats(self) -> int:
        """How often the finding that came back most was seen in the window: 1 is the first time."""
        return self._most_seen[1]

    @property
    def repeated(self) -> str:
        """The finding that came back most."""
        return self._most_seen[0]

    @functools.cached_property
    def _most_seen(self) -> tuple[str, int]:
        """Of the problem's findings, those that make a problem of their own nearby included: it is the same trouble."""
        last, seen = self.problem.last_step, dict.fromkeys(self.problem.names, 0)
        others = (item for item in self.chart.episodes if item.severity != "info")
        for item in {id(item): item for item in (*self.problem.symptoms, *others)}.values():
            if item.name in seen and abs(last - item.last_step) <= WINDOW:
                seen[item.name] += sightings(self.chart, item)
        return max(seen.items(), key=lambda item: item[1])

    @property
    def healed(self) -> bool:
        """Whether it was brief, is over, and the loss took no harm."""
        hurt = self.problem.grave("loss-spike", "loss-divergence", "nan-or-inf")
        return is_over(self.chart, self.problem) and is_brief(self.problem) and not hurt


def sightings(chart: Chart, episode: Symptom) -> int:
    """How often a leap came within one episode: in a row it is one, after as many calm steps as that it is another.

    >>> chart = Chart.of(grad_norm=[1.0] * 400)
    >>> in_a_row = Symptom("gradient-explosion", "GR01", "warning", 0.9, 300, 303, count=4)
    >>> apart = Symptom("gradient-explosion", "GR01", "warning", 0.9, 300, 330, count=4)
    >>> sightings(chart, in_a_row), sightings(chart, apart)
    (1, 4)
    """
    if episode.name not in LEAPS or episode.count < 2:
        return 1
    steps = chart["loss" if episode.name == "loss-spike" else "grad_norm"].steps
    every = float(steps[-1] - steps[0]) / (steps.size - 1) if steps.size > 1 else 1.0  # a log may have every tenth step
    looks = 1 + round((episode.last_step - episode.first_step) / max(every, 1.0))
    return min(episode.count, 1 + max(looks - episode.count, 0) // episode.count)


def direction(case: Case) -> str:
    """Which way the learning rate must go: "down", "up", or "" where nothing says so.

    Something that grows outweighs what does not move, unless it is no more than a note.
    """
    if case.cause in DIRECTIONS:
        return DIRECTIONS[case.cause]
    problem = case.problem
    if problem.has(*FAST) and (problem.grave(*FAST) or not problem.grave(*SLOW)):
        return "down"
    return "up" if problem.has(*SLOW) else ""
