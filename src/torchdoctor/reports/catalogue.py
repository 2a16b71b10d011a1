"""The catalogue: every finding, cause, action and check by name, each with a page made from its docstring."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

from torchdoctor.diagnoses import CAUSES, Cause
from torchdoctor.errors import TorchDoctorError, did_you_mean
from torchdoctor.reports.check_pages import CheckPage, check_pages
from torchdoctor.reports.markdown import escaped
from torchdoctor.symptoms import DETECTORS, Detector
from torchdoctor.symptoms.paper import PAPER_DETECTORS
from torchdoctor.treatments import ACTIONS, Action
from torchdoctor.treatments.prescription import SUGGESTED

STOP = (
    "When three changes in a row have not helped, or when searching on costs more than another approach: another "
    "architecture, another formulation of the task, better data. See `torchdoctor explain ask-for-help`."
)
TRY = (
    "Change one thing at a time and give it 100 to 1,000 steps. If it has not helped by then, undo it before you try "
    "the next. After three failed changes, try another approach."
)
SAFETY = {
    "apply": "apply (safe to automate in the training loop)",
    "ask": "ask (can be automated, but ask a person first)",
    "show": "show (change it by hand)",
}
_GRADIENTS = (
    "Rules of thumb, which depend on the scale of the loss: a global gradient norm of 0.1 to 10, and layers within two "
    "orders of magnitude of each other (embeddings may be larger). A global norm below 0.01 is suspicious, and above "
    "100 it is an explosion in most runs. Below 1e-7, early layers no longer learn."
)
HEALTHY: Mapping[str, str] = {
    "gradient-explosion": _GRADIENTS,
    "gradient-vanishing": _GRADIENTS,
    "gradient-instability": _GRADIENTS,
    "no-gradient": _GRADIENTS,
    "saturated-activations": "Pre-activations between -3 and 3: beyond them sigmoid and tanh are flat.",
    "dead-units": "Half of a ReLU layer's values at zero is healthy; a unit that is zero for every input is not.",
    "overfitting": "A validation loss below twice the training loss.",
    "underfitting": "A training loss under 0.1 on many tasks. One batch can be learned to a loss under 0.01 within "
    "1,000 steps.",
    "not-learning": "One batch can be learned to a loss under 0.01 within 1,000 steps.",
    "update-ratio-abnormal": "Updates of 1e-4 to 1e-2 of the weight norm per step, typically about 1e-3.",
    "slow-learning": "Updates of 1e-4 to 1e-2 of the weight norm per step, typically about 1e-3.",
}
"""By finding, rules of thumb that are often quoted. They are not the thresholds, which are scale-free."""


@dataclass(frozen=True)
class Entry:
    """One name that can be explained."""

    kind: Literal["finding", "cause", "action", "check"]
    name: str
    code: str
    summary: str
    """One sentence."""
    page: str
    """Markdown."""


def entries() -> tuple[Entry, ...]:
    """All of them: findings, then causes, then actions, then the checks of a check-up."""
    return (*map(_finding, DETECTORS), *map(_cause, CAUSES), *map(_action, ACTIONS), *map(_check, check_pages()))


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
    found = [entry for entry in known if wanted in (entry.name, entry.code.lower())]
    if wanted and found:  # a check may have the name of the cause that it looks for
        return replace(found[0], page="\n\n".join(entry.page for entry in found))
    group = [entry.name for entry in known if entry.code[:2].lower() == wanted]
    if wanted and group:
        raise TorchDoctorError(f"{name!r} stands for several: {', '.join(group)}. Give one of them.")
    near = did_you_mean(wanted, {entry.name for entry in known})
    hint = near if near.startswith("Did") else "`torchdoctor rules --kind all` lists every name."
    raise TorchDoctorError(f"nothing is called {name!r}. {hint}")


def _finding(detector: type[Detector]) -> Entry:
    doc = inspect.getdoc(detector) or ""
    causes = [cause.name for cause in CAUSES if detector.name in cause.explains and cause.name != "unknown"]
    thresholds = [f"- `{item.name}` = {item.default!r}" for item in fields(detector)]
    page = [
        f"# {detector.code} {detector.name}",
        _fenced_examples(doc),
        _section("Healthy ranges", HEALTHY.get(detector.name, "")),
        _section("Possible causes", _names(causes)),
        _section("Thresholds", "\n".join(thresholds)),
        _section("With the preset paper", _published(detector)),
        *_ending(doc, detector.references),
    ]
    return Entry("finding", detector.name, detector.code, _summary(doc), _joined(page))


def _published(detector: type[Detector]) -> str:
    """The rule that replaces a finding in the preset "paper", with its thresholds; empty if none does."""
    rule = next((item for item in PAPER_DETECTORS if item.name == detector.name and item is not detector), None)
    if rule is None:
        return ""
    thresholds = [f"`{item.name}` = {item.default!r}" for item in fields(rule) if item.name != "rule"]
    return f"{_summary(inspect.getdoc(rule) or '')} Thresholds: {', '.join(thresholds)}."


def _cause(cause: type[Cause]) -> Entry:
    doc = inspect.getdoc(cause) or ""
    page = [
        f"# {cause.name}",
        _fenced_examples(doc),
        _section("What it can explain", _names(cause.explains) if cause.name != "unknown" else "Any finding."),
        _section("Actions, the most fitting first", _names(cause.suggests)),
        *_ending(doc, cause.references),
    ]
    return Entry("cause", cause.name, "", _summary(doc), _joined(page))


def _action(action: Action) -> Entry:
    facts = [
        f"- kind: {action.kind}, place {action.priority} in the queue",
        f"- safety: {SAFETY[action.safety]}",
        f"- confidence before any evidence: {action.prior:.2f}",
        *(f"- `{name}`: from {low:g} to {high:g}" for name, (low, high) in action.parameters.items()),
    ]
    page = [
        f"# {action.slug}",
        action.summary,
        _section("When it helps", action.when),
        _section("What to change", f"```python\n{action.code}\n```"),
        _section("How to see that it helped", action.check),
        _section("When to stop", TRY),
        _section("Facts", "\n".join(facts)),
        _section("Suggested for", _names(name for name, slugs in SUGGESTED.items() if action.slug in slugs)),
        *_ending("## When to stop", action.references),
    ]
    return Entry("action", action.slug, "", action.summary, _joined(page))


def _check(check: CheckPage) -> Entry:
    thresholds = [f"- `{name}` = {value!r}" for name, value in check.thresholds.items()]
    when = "In every check-up." if check.quick else "In a full check-up; `--quick` leaves it out."
    page = [
        f"# {check.code} {check.name}",
        _fenced_examples(check.doc),
        _section("When it is done", when),
        _section("Actions", _names(check.suggests)),
        _section("Thresholds", "\n".join(thresholds)),
        _section("References", _links(check.references)),
    ]
    return Entry("check", check.name, check.code, _summary(check.doc), _joined(page))


def _ending(doc: str, references: Sequence[str]) -> list[str]:
    """The end of a page: when to stop, unless the text says so itself, and the references."""
    return [
        "" if "## When to stop" in doc else _section("When to stop", STOP),
        _section("References", _links(references)),
    ]


def _links(references: Sequence[str]) -> str:
    return "\n".join(f"- <{link}>" for link in references)


def _section(title: str, text: str) -> str:
    return f"## {title}\n{text}" if text else ""


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, parts))


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


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
