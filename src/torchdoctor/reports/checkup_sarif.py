"""A check-up as SARIF 2.1.0, which code hosts show beside the code."""

from __future__ import annotations

import json
from typing import Any

from torchdoctor.journal.lines import encode
from torchdoctor.records import CheckResult, Severity
from torchdoctor.reports.checkup import Checkup
from torchdoctor.reports.wording import printable

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS: dict[Severity | None, str] = {"info": "note", "warning": "warning", "critical": "error", None: "error"}


def render(checkup: Checkup, artifact: str | None = None) -> str:
    """The check-up as one SARIF run; `artifact` is the file that its findings belong to, where there is one."""
    return json.dumps(json.loads(encode(log(checkup, artifact))), indent=2)


def log(checkup: Checkup, artifact: str | None = None) -> dict[str, Any]:
    """The same as plain data.

    >>> from torchdoctor.records import CheckResult
    >>> found = log(Checkup((CheckResult("gradient-flow", "CK03", "failed", "none", severity="critical"),)))
    >>> found["version"], found["runs"][0]["results"][0]["ruleId"], found["runs"][0]["results"][0]["level"]
    ('2.1.0', 'CK03', 'error')
    """
    from torchdoctor import __version__

    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "torchdoctor",
                        "version": __version__,
                        "semanticVersion": __version__,
                        "rules": [_rule(item) for item in checkup.results],
                    }
                },
                "results": [_result(number, item, artifact) for number, item in enumerate(checkup.results)],
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {"level": "note", "message": {"text": printable(text)}} for text in checkup.notes
                        ],
                    }
                ],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }


def _rule(item: CheckResult) -> dict[str, Any]:
    words = item.name.split("-")
    return {
        "id": item.code,
        "name": "".join(word.capitalize() for word in words),
        "shortDescription": {"text": item.name},
    }


def _result(number: int, item: CheckResult, artifact: str | None) -> dict[str, Any]:
    kinds = {"passed": "pass", "failed": "fail", "skipped": "notApplicable"}
    text = printable(item.message) or item.name
    if item.status == "failed" and item.advice:
        text = f"{text}. {printable(item.advice)}"
    found: dict[str, Any] = {
        "ruleId": item.code,
        "ruleIndex": number,
        "kind": kinds[item.status],
        "level": LEVELS[item.severity] if item.status == "failed" else "none",
        "message": {"text": text},
        "properties": {"value": item.value, "limit": item.limit, "seconds": item.seconds},
    }
    place: dict[str, Any] = {}
    if item.where:
        place["logicalLocations"] = [{"fullyQualifiedName": printable(name), "kind": "member"} for name in item.where]
    if artifact:
        place["physicalLocation"] = {"artifactLocation": {"uri": artifact}, "region": {"startLine": 1}}
    if place:
        found["locations"] = [place]
    return found
