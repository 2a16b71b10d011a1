"""The check-up: what the checks said of a model before its first step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchdoctor.errors import TorchDoctorError
from torchdoctor.journal.lines import encode
from torchdoctor.records import SEVERITIES, CheckResult, Record, Severity, worst


@dataclass(frozen=True)
class Checkup:
    """The results of all checks, in the order in which they ran.

    >>> checkup = Checkup((CheckResult("gradient-flow", "CK03", "failed", "no gradient", severity="critical"),))
    >>> bool(checkup), checkup.failed[0].name, checkup.severity
    (False, 'gradient-flow', 'critical')
    """

    results: tuple[CheckResult, ...] = ()
    notes: tuple[str, ...] = ()
    """What the check-up did differently from the run: the batch reduced, checks left out for time."""
    context: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """What failed, worst first."""
        bad = [item for item in self.results if item.status == "failed"]
        return tuple(sorted(bad, key=lambda item: -SEVERITIES.index(item.severity or "critical")))

    @property
    def passed(self) -> tuple[CheckResult, ...]:
        """What passed."""
        return tuple(item for item in self.results if item.status == "passed")

    @property
    def skipped(self) -> tuple[CheckResult, ...]:
        """What does not apply or could not be done."""
        return tuple(item for item in self.results if item.status == "skipped")

    @property
    def severity(self) -> Severity | None:
        """The worst failure; None where nothing failed."""
        return worst([item.severity or "critical" for item in self.failed])

    def __getitem__(self, name: str) -> CheckResult:
        for item in self.results:
            if name in (item.name, item.code):
                return item
        raise KeyError(name)

    def __bool__(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    def records(self) -> list[Record]:
        """One journal record for each result."""
        return [{"type": "check", "step": 0, **item.to_dict()} for item in self.results]

    def to_dict(self) -> dict[str, Any]:
        """What ``--format json`` prints: plain data, in which a number that JSON does not have is a string."""
        counts = {"passed": len(self.passed), "failed": len(self.failed), "skipped": len(self.skipped)}
        told = {
            "severity": self.severity,
            "counts": counts,
            "seconds": self.seconds,
            "results": [item.to_dict() for item in self.results],
            "notes": list(self.notes),
            "context": dict(self.context),
        }
        return dict(json.loads(encode(told)))

    def __str__(self) -> str:
        from torchdoctor.reports import checkup_text  # the renderers import this module

        return checkup_text.render(self)

    def _repr_html_(self) -> str:
        from torchdoctor.reports import checkup_html

        return checkup_html.fragment(self)

    def save(self, path: str | Path) -> Path:
        """Write it in its suffix's format: .json, .sarif, .html, .md or .txt; an old file is replaced whole."""
        from torchdoctor.reports.checkup_formats import BY_SUFFIX
        from torchdoctor.reports.formats import write_whole

        place = Path(path)
        render = BY_SUFFIX.get(place.suffix.lower())
        if render is None:
            raise TorchDoctorError(
                f"cannot save a check-up as {place.name!r}: its suffix says the format, "
                f"which must be one of {', '.join(BY_SUFFIX)}. Try {place.with_suffix('.html').name!r}."
            )
        return write_whole(place, render(self))
