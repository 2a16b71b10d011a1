"""The report: what a run looks like to the doctor at one step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchdoctor.errors import TorchDoctorError
from torchdoctor.journal.lines import encode
from torchdoctor.pictures import Points, RowMap
from torchdoctor.records import INFORMATIVE, CheckResult, Diagnosis, Health, Severity, Suggestion, Symptom, worst

HEALTH: dict[Severity | None, Health] = {None: "healthy", "info": "watch", "warning": "sick", "critical": "critical"}


@dataclass(frozen=True)
class Report:
    """Symptoms, ranked causes and suggestions, with the curves that show them.

    >>> report = Report(step=10, symptoms=(Symptom("loss-spike", "LO01", "warning", 0.9, 7, 8),))
    >>> report.health, report.to_dict()["symptoms"][0]["first_step"]
    ('sick', 7)
    """

    step: int
    symptoms: tuple[Symptom, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    notes: tuple[str, ...] = ()
    phases: tuple[Mapping[str, Any], ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Sequence[tuple[int, float, float, float]]] = field(default_factory=dict, repr=False)
    """By vital: (first step, lowest, mean, highest) of each bucket of the run's outline."""
    closeups: Mapping[str, Sequence[Points]] = field(default_factory=dict, repr=False, compare=False)
    """By vital: the exact values around episodes and at the end, as pieces of (steps, values)."""
    maps: Mapping[str, RowMap] = field(default_factory=dict, repr=False, compare=False)
    """By vital: its values by tensor or module and by step."""
    checks: tuple[CheckResult, ...] = ()
    """The results of a check-up before the run."""
    run: str = ""
    """The name of the run, where it was read from a file."""

    @property
    def health(self) -> Health:
        """The severity of the worst symptom as one word; findings that only describe the report do not count."""
        return HEALTH[worst([item.severity for item in self.symptoms if item.name not in INFORMATIVE])]

    def to_dict(self) -> dict[str, Any]:
        """What ``--format json`` prints: plain data; NaN and infinities are strings."""
        told = {
            "health": self.health,
            "step": self.step,
            "symptoms": [item.to_dict() for item in self.symptoms],
            "diagnoses": [item.to_dict() for item in self.diagnoses],
            "suggestions": [item.to_dict() for item in self.suggestions],
            "notes": list(self.notes),
            "phases": [dict(item) for item in self.phases],
            "checks": [item.to_dict() for item in self.checks],
            "context": dict(self.context),
        }
        return dict(json.loads(encode(told)))

    def __str__(self) -> str:
        from torchdoctor.reports import text  # the renderers import this module

        return text.render(self)

    def _repr_html_(self) -> str:
        from torchdoctor.reports import html

        return html.fragment(self)

    def save(self, path: str | Path) -> Path:
        """Write the report; the suffix sets the format: .html, .md, .txt or .json. An existing file is replaced."""
        from torchdoctor.reports.formats import BY_SUFFIX, write_whole

        place = Path(path)
        if not place.name:
            raise TorchDoctorError(f"cannot save a report as {str(path)!r}: give the path of a file, 'report.html'.")
        render = BY_SUFFIX.get(place.suffix.lower())
        if render is None:
            raise TorchDoctorError(
                f"cannot save a report as {place.name!r}: its suffix sets the format, "
                f"and must be one of {', '.join(BY_SUFFIX)}. Try {place.with_suffix('.html').name!r}."
            )
        return write_whole(place, render(self))
