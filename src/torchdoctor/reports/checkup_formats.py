"""The formats of a check-up: for ``--format`` by name, for `Checkup.save` by suffix."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from torchdoctor.journal.lines import encode
from torchdoctor.reports import checkup_html, checkup_markdown, checkup_sarif, checkup_text
from torchdoctor.reports.checkup import Checkup
from torchdoctor.reports.formats import GITHUB_LEVELS, github_data, github_property
from torchdoctor.reports.wording import printable


def as_json(checkup: Checkup) -> str:
    """`Checkup.to_dict`."""
    return json.dumps(checkup.to_dict(), indent=2)


def concise(checkup: Checkup) -> str:
    """One line a failure, as a linter prints them, and the verdict."""
    lines = [
        printable(f"{item.code} {item.name} ({item.severity or 'critical'}): {item.message}") for item in checkup.failed
    ]
    return "\n".join([*lines, checkup_text.verdict(checkup)])


def jsonl(checkup: Checkup) -> str:
    """One JSON object a line: each check's result, passed and skipped ones too."""
    return "\n".join(encode({"type": "check", **item.to_dict()}) for item in checkup.results)


def github(checkup: Checkup) -> str:
    """Workflow commands, which GitHub Actions shows as annotations."""
    lines = []
    for item in checkup.failed:
        level, title = (
            GITHUB_LEVELS[item.severity or "critical"],
            github_property(printable(f"{item.code} {item.name}")),
        )
        message = f"{item.message}. {item.advice}" if item.advice else item.message
        lines.append(f"::{level} title={title}::{github_data(printable(message))}")
    return "\n".join([*lines, f"::notice title=torchdoctor::{github_data(checkup_text.verdict(checkup))}"])


FORMATS: Mapping[str, Callable[[Checkup], str]] = {
    "full": checkup_text.render,
    "concise": concise,
    "json": as_json,
    "jsonl": jsonl,
    "sarif": checkup_sarif.render,
    "markdown": lambda checkup: checkup_markdown.render(checkup).rstrip("\n"),
    "github": github,
}

BY_SUFFIX: Mapping[str, Callable[[Checkup], str]] = {
    ".html": checkup_html.render,
    ".json": lambda checkup: as_json(checkup) + "\n",
    ".sarif": lambda checkup: checkup_sarif.render(checkup) + "\n",
    ".md": checkup_markdown.render,
    ".txt": lambda checkup: checkup_text.render(checkup) + "\n",
}
