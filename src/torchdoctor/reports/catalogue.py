"""The catalogue: every finding, cause and action by name, with the page that its docstring is."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal

from torchdoctor.diagnoses import CAUSES, Cause
from torchdoctor.errors import TorchDoctorError, did_you_mean
from torchdoctor.reports.markdown import escaped
from torchdoctor.symptoms import DETECTORS, Detector
from torchdoctor.treatments import ACTIONS, Action


@dataclass(frozen=True)
class Entry:
    """One name that can be explained."""

    kind: Literal["finding", "cause", "action"]
    name: str
    code: str
    summary: str
    """One sentence."""
    page: str
    """Markdown."""


def entries() -> tuple[Entry, ...]:
    """All of them: findings, then causes, then actions."""
    return (*map(_finding, DETECTORS), *map(_cause, CAUSES), *map(_action, ACTIONS))


def find(name: str) -> Entry:
    """The entry of a name or a code, in any case.

    >>> find("gr01").name
    'gradient-explosion'
    >>> find("gradient-explosoin")
    Traceback (most recent call last):
    ...
    torchdoctor.errors.TorchDoctorError: nothing is called 'gradient-explosoin'. Did you mean 'gradient-explosion'?
    """
    known = entries()
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    for entry in known:
        if wanted in (entry.name, entry.code.lower()):
            return entry
    near = did_you_mean(wanted, {entry.name for entry in known})
    hint = near if near.startswith("Did") else "`torchdoctor rules` lists the findings."
    raise TorchDoctorError(f"nothing is called {name!r}. {hint}")


def _finding(detector: type[Detector]) -> Entry:
    doc = inspect.getdoc(detector) or ""
    page = [f"# {detector.code} {detector.name}", _fenced_examples(doc)]
    thresholds = [f"- `{item.name}` = {item.default!r}" for item in fields(detector)]
    if thresholds:
        page.append("## Thresholds\n" + "\n".join(thresholds))
    if detector.references:
        page.append("## References\n" + "\n".join(f"- <{link}>" for link in detector.references))
    return Entry("finding", detector.name, detector.code, _summary(doc), "\n\n".join(page))


def _cause(cause: type[Cause]) -> Entry:
    doc = inspect.getdoc(cause) or ""
    return Entry("cause", cause.name, "", _summary(doc), f"# {cause.name}\n\n{_fenced_examples(doc)}")


def _action(action: Action) -> Entry:
    facts = [
        f"- kind: {action.kind}, place {action.priority} in the queue",
        f"- safety: {action.safety}",
        f"- confidence before any evidence: {action.prior:.2f}",
        *(f"- `{name}`: from {low:g} to {high:g}" for name, (low, high) in action.parameters.items()),
    ]
    page = [f"# {action.slug}", action.summary, "\n".join(facts), f"```python\n{action.code}\n```"]
    return Entry("action", action.slug, "", action.summary, "\n\n".join(page))


def _summary(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())


def _fenced_examples(doc: str) -> str:
    """Doctests as code blocks, which Markdown would otherwise take for quotations."""
    return re.sub(
        r"(?m)^>>> (?:.*\n?)(?:^(?!## ).+\n?)*", lambda found: f"```python\n{found[0].rstrip()}\n```\n", doc
    ).rstrip()


def _concise(chosen: Sequence[Entry]) -> str:
    return "\n".join(f"{entry.code or entry.kind} {entry.name}: {entry.summary}" for entry in chosen)


def _rows(chosen: Sequence[Entry]) -> list[dict[str, str]]:
    return [asdict(entry) for entry in chosen]


def _markdown(chosen: Sequence[Entry]) -> str:
    head = ["| code | name | meaning |", "|---|---|---|"]
    return "\n".join(head + [f"| {entry.code} | `{entry.name}` | {escaped(entry.summary)} |" for entry in chosen])


LISTS: Mapping[str, Callable[[Sequence[Entry]], str]] = {
    "concise": _concise,
    "json": lambda chosen: json.dumps(_rows(chosen), indent=2),
    "jsonl": lambda chosen: "\n".join(map(json.dumps, _rows(chosen))),
    "markdown": _markdown,
}
