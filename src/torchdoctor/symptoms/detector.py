"""The shape of a detector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom
from torchdoctor.stretch import Stretch

LOOK, CALM, SAME = 0, 1, 2
"""What can be said of a step before it comes: `check` must look; it will find nothing; or what it has found before."""
Outlook = NDArray[np.int8]


@dataclass(frozen=True)
class Detector(ABC):
    """One pathology: class attributes are its metadata, annotated fields its thresholds, `check` its judgement.

    `check` is a pure function of the chart, called after each record that holds one of the vitals it `reads`
    (every `every`-th time). It says whether the run is sick *now*; the examination turns a series of answers
    into one episode, which closes after `closes_after` checks without a finding.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    suggests: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = ()
    every: ClassVar[int] = 1
    closes_after: ClassVar[int] = 50

    @abstractmethod
    def check(self, chart: Chart) -> Symptom | None:
        """The symptom, if the run shows it at the chart's latest step."""

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether `check` would find nothing at any of the steps that come: in doubt, no.

        Of the vitals that come the lowest and the highest value are given.

        A short cut for the ordinary stretches that runs mostly consist of, for detectors that look at every step. It is
        asked only while no episode of this detector is open, for values that are finite, and for no more steps than one
        baseline lasts of the vitals that detectors of every step read: the one that `Series.upcoming` gives.
        """
        return False

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """At which of the steps that come `check` must `LOOK`: in doubt, at all of them.

        A short cut for the long wild stretches of sick runs. At a `CALM` step `check` would find nothing. At a `SAME`
        one it would find what the open episode says already: no graver, no surer, at no other place, begun no earlier,
        so that the episode has lasted one check longer and that is all.

        Values may be non-finite. Of the vitals that detectors of every step read, no more finite values come than one
        baseline lasts: the one that `Series.upcoming` gives. What is said must hold while the episodes that are open
        last; when one opens, closes or becomes graver, the question is put again. Fewer steps than come, but one at
        least, may be answered for.
        """
        return np.zeros(len(coming), dtype=np.int8)

    def symptom(
        self,
        chart: Chart,
        severity: Severity,
        message: str,
        *,
        value: float | None = None,
        limit: float | None = None,
        where: tuple[str, ...] = (),
        confidence: float = 0.9,
        since: int | None = None,
    ) -> Symptom:
        """A symptom of this detector at the chart's latest step, begun at `since` where that was earlier."""
        first = chart.step if since is None else since
        last = max(first, chart.step)  # a fact may be known before the numbers of its step have arrived
        return Symptom(self.name, self.code, severity, confidence, first, last, 1, where, None, value, limit, message)
