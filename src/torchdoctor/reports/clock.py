"""The unit in which a run counts: steps, or the epochs or rows of a log without steps.

Detectors write "step 130". For a log with one row per epoch this becomes "epoch 130".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchdoctor.records import Diagnosis, Suggestion
from torchdoctor.reports.report import Report

CLOCKS = ("step", "epoch", "row")
_COUNTED = re.compile(r"\bstep(?=s? -?\d)|(?<=\d )step(?=s\b)|(?<=\bfew )step(?=s\b)|(?<=\bfirst )step(?=s?\b)")
"""The word "step" beside a number, "few" or "first"; not `optimizer.step()`."""


def clock_of(context: Mapping[str, Any]) -> str:
    """The unit of a run's steps.

    >>> clock_of({"clock": "epoch"}), clock_of({})
    ('epoch', 'step')
    """
    told = context.get("clock")
    return told if told in CLOCKS else "step"


def counted(text: str, clock: str) -> str:
    """A text about steps, rewritten in the run's unit.

    >>> counted("rose from 4.09 at step 130, every 17 steps; optimizer.step()  # of step 12", "epoch")
    'rose from 4.09 at epoch 130, every 17 epochs; optimizer.step()  # of epoch 12'
    """
    return text if clock == "step" else _COUNTED.sub(clock, text)


def in_its_clock(report: Report) -> Report:
    """The report with all its texts in the run's unit."""
    clock = clock_of(report.context)
    if clock == "step":
        return report
    return replace(
        report,
        symptoms=tuple(replace(item, message=counted(item.message, clock)) for item in report.symptoms),
        diagnoses=tuple(_diagnosis(item, clock) for item in report.diagnoses),
        suggestions=tuple(_suggestion(item, clock) for item in report.suggestions),
    )


def _diagnosis(diagnosis: Diagnosis, clock: str) -> Diagnosis:
    measure = diagnosis.cause == "unknown"  # its evidence is what to measure next, in optimizer steps
    return replace(
        diagnosis,
        evidence=diagnosis.evidence if measure else tuple(counted(text, clock) for text in diagnosis.evidence),
        suggestions=tuple(_suggestion(item, clock) for item in diagnosis.suggestions),
    )


def _suggestion(suggestion: Suggestion, clock: str) -> Suggestion:
    return replace(suggestion, code=counted(suggestion.code, clock), reason=counted(suggestion.reason, clock))
