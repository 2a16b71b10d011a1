"""The base class of detectors."""

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
"""Forecasts for a coming step: `check` must look; it will find nothing; it will find what the open episode says."""
Outlook = NDArray[np.int8]


@dataclass(frozen=True)
class Detector(ABC):
    """One pathology: class attributes are its metadata, annotated fields its thresholds, and `check` is its judgment.

    `check` is a pure function of the chart. It is called after each record that holds one of the vitals in `reads`
    (every `every`-th time) and says whether the run shows the pathology *now*. The examination joins a series of
    findings into one episode, which closes after `closes_after` checks without a finding.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    suggests: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = ()
    every: ClassVar[int] = 1
    closes_after: ClassVar[int] = 50
    expects_changes: ClassVar[bool] = False
    """Whether it finds what a change by the loop may cause on purpose: see `torchdoctor.symptoms.changes`."""
    reads_losses: ClassVar[bool] = False
    """Whether it also reads losses of other names: `Chart.losses`."""

    @abstractmethod
    def check(self, chart: Chart) -> Symptom | None:
        """The symptom, if the run shows it at the chart's latest step."""

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether `check` would find nothing at any of the coming steps; False if in doubt.

        `coming` holds the lowest and the highest coming value of each vital.

        This is a shortcut through ordinary stretches for detectors that check every step. It is called only while no
        episode of this detector is open, for finite values, and for no more steps than one baseline (that of
        `Series.upcoming`) lasts for the vitals that such detectors read.
        """
        return False

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """At which of the coming steps `check` must `LOOK`; at all of them if in doubt.

        This is a shortcut through the long abnormal stretches of sick runs. At a `CALM` step `check` would find
        nothing. At a `SAME` step it would find what the open episode already says: no higher severity or confidence, no
        other place, no earlier beginning. The episode then only lasts one check longer.

        Values may be non-finite. For the vitals that detectors check at every step, no more finite values come than one
        baseline (that of `Series.upcoming`) lasts. The forecast must hold while the open episodes last; when one opens,
        closes or becomes more severe, this is called again. It may cover fewer steps than come, but at least one.
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
        """A symptom of this detector at the chart's latest step, beginning at `since` if given."""
        first = chart.step if since is None else since
        last = max(first, chart.step)  # a fact may be known before the numbers of its step
        return Symptom(self.name, self.code, severity, confidence, first, last, 1, where, None, value, limit, message)
