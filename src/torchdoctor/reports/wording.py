"""Words that every form of a report shares: numbers and names as text, and strings that are safe to show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchdoctor.records import (
    Severity,
    Symptom,
    number_text,
)
from torchdoctor.reports.report import Report

COUNTED = (("critical", "critical", "critical"), ("warning", "warning", "warnings"), ("info", "note", "notes"))
"""What findings of each severity are called, singular and plural; the worst first."""
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.?", re.DOTALL
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_BREAKS = re.compile("[\t\n\u2028\u2029]+")
_SURROGATES = re.compile("[\ud800-\udfff]")
ASKED_FIRST = (
    "model",
    "optimizer",
    "scheduler",
    "batch_size",
    "dataset_size",
    "precision",
    "devices",
    "world_size",
    "seed",
)


def printable(value: object, *, lines: bool = False) -> str:
    """Text without terminal escapes, control characters, direction overrides and line breaks: logs are untrusted.

    >>> printable("fc1.weight\\x1b[2J\\x1b]0;owned\\x07\\nStep 9: all is well")
    'fc1.weight Step 9: all is well'
    """
    text = _UNSEEN.sub("", _ESCAPES.sub("", str(value)))
    return _SURROGATES.sub("\ufffd", text if lines else _BREAKS.sub(" ", text))


def label(symptom: Symptom) -> str:
    """Code and name."""
    return f"{printable(symptom.code)} {printable(symptom.name)}"


def percent(share: float) -> str:
    """A probability as text.

    >>> percent(0.804), percent(0.004), percent(0.999)
    ('80 %', 'under 1 %', 'over 99 %')
    """
    if share < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def counts_text(severities: Sequence[Severity]) -> str:
    """How many findings there are of each severity, the worst first; empty where there are none.

    >>> counts_text(["info", "warning", "warning", "critical", "info"]), counts_text(["info"])
    ('1 critical, 2 warnings, 2 notes', '1 note')
    """
    told = []
    for severity, one, many in COUNTED:
        if count := severities.count(severity):
            told.append(f"{count} {one if count == 1 else many}")
    return ", ".join(told)


def checkup_texts(report: Report) -> list[str]:
    """The results of a check-up before the run: a sentence per failure and the counts; empty without a check-up.

    >>> from torchdoctor.records import CheckResult
    >>> failed = CheckResult("initial-loss", "CK11", "failed", "loss 9.2", severity="warning")
    >>> checkup_texts(Report(9, checks=(failed,)))
    ['CK11 initial-loss (warning): loss 9.2', '1 failed, 0 passed, 0 skipped']
    """
    if not report.checks:
        return []
    failed = [item for item in report.checks if item.status == "failed"]
    told = [
        printable(f"{item.code} {item.name} ({item.severity or 'critical'}): {item.message} {item.advice}").strip()
        for item in failed
    ]
    counts = (
        f"{sum(item.status == word for item in report.checks)} {word}" for word in ("failed", "passed", "skipped")
    )
    return [*told, ", ".join(counts)]


def steps_text(first: int, last: int, clock: str = "step") -> str:
    """One step, epoch or row, or a span of them."""
    return f"{clock} {first}" if first == last else f"{clock}s {first} to {last}"


def times_text(symptom: Symptom) -> str:
    """How often an episode was seen; empty for once, and for as often as it has steps: a step may be seen twice.

    >>> times_text(Symptom("nan-or-inf", "NU01", "critical", 1.0, 10, 19, 4))
    ', seen 4 times'
    >>> times_text(Symptom("nan-or-inf", "NU01", "critical", 1.0, 10, 19, 12))
    ''
    """
    return f", seen {symptom.count} times" if 1 < symptom.count <= symptom.last_step - symptom.first_step else ""


def where_text(symptom: Symptom, limit: int = 3) -> str:
    """The first few places of a symptom, and its rank; empty if it has none."""
    shown = ", ".join(printable(name) for name in symptom.where[:limit])
    more = f" and {len(symptom.where) - limit} more" if len(symptom.where) > limit else ""
    rank = f"rank {symptom.rank}" if symptom.rank is not None else ""
    return ", ".join(part for part in (shown + more, rank) if part)


def first_line(code: str) -> str:
    """The first line of a suggestion's code."""
    return printable(next(iter(code.splitlines()), ""))


def facts(context: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a colleague would ask first, as (name, value) lines.

    >>> facts({"seed": 1, "model": {"class": "GPT", "parameters": 10700000}})
    [('model', 'GPT, parameters 10,700,000'), ('seed', '1')]
    """
    order = [key for key in ASKED_FIRST if key in context] + [key for key in context if key not in ASKED_FIRST]
    return [
        (printable(key).replace("_", " "), fact_text(context[key]))
        for key in order
        if context[key] not in (None, [], {}, "")
    ]


def fact_text(value: Any, depth: int = 3) -> str:
    """A value of the context in one line."""
    if isinstance(value, Mapping):
        if depth == 0:
            return "…"
        pairs = ((key, fact_text(item, depth - 1)) for key, item in value.items() if item not in (None, [], {}, ""))
        return ", ".join(
            text if key == "class" else f"{printable(key).replace('_', ' ')} {text}" for key, text in pairs
        )
    if isinstance(value, list | tuple):
        texts = [fact_text(item, depth - 1) for item in value[:8]] if depth else ["…"]
        joined = ("; " if any(isinstance(item, Mapping) for item in value[:8]) else ", ").join(texts)
        return joined + (f" and {len(value) - 8} more" if len(value) > 8 and depth else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return number_text(value) if isinstance(value, float) else printable(value)[:500]
