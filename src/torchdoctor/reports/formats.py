"""The formats of reports: for ``--format`` by name, for `Report.save` by suffix, and whole files on disk."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torchdoctor.errors import TorchDoctorError
from torchdoctor.journal.lines import encode
from torchdoctor.records import Severity
from torchdoctor.reports import html, markdown, text
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import verdict
from torchdoctor.reports.wording import label, printable, where_text

Named = Sequence[tuple[str, Report]]
"""Reports with the names of their runs."""

GITHUB_LEVELS: dict[Severity, str] = {"info": "notice", "warning": "warning", "critical": "error"}


def full(reports: Named) -> str:
    """Each report as text, under its name where there are several."""
    return "\n\n".join(f"{_titled(name, reports)}{text.render(report)}" for name, report in reports)


def concise(reports: Named) -> str:
    """One line a finding, as a linter prints them, and the verdict.

    >>> print(concise([("runs/a", Report(step=9))]))
    runs/a: Healthy at step 9: nothing was found.
    """
    return "\n".join(line for name, report in reports for line in _concise(printable(name), report))


def _concise(name: str, report: Report) -> Iterator[str]:
    for item in report.symptoms:
        where = where_text(item)
        message = printable(item.message) + (f" [{where}]" if where else "")
        yield f"{name}:{item.first_step}: {label(item)} ({item.severity}): {message}"
    yield f"{name}: {verdict(report)}"


def as_json(reports: Named, *, listed: bool = False) -> str:
    """`Report.to_dict`, a list of them where there are several, or where several were asked for."""
    dicts = [report.to_dict() for _, report in reports]
    return json.dumps(dicts if listed or len(dicts) != 1 else dicts[0], indent=2)


def jsonl(reports: Named) -> str:
    """One JSON object a line: each report's summary, then its symptoms, diagnoses and suggestions."""
    return "\n".join(line for name, report in reports for line in _jsonl(name, report))


def _jsonl(name: str, report: Report) -> Iterator[str]:
    yield encode(
        {"type": "report", "run": name, "health": report.health, "step": report.step, "notes": list(report.notes)}
    )
    for kind, items in (
        ("symptom", report.symptoms),
        ("diagnosis", report.diagnoses),
        ("suggestion", report.suggestions),
    ):
        for item in items:
            yield encode({"type": kind, "run": name, **item.to_dict()})


def github(reports: Named) -> str:
    """Workflow commands, which GitHub Actions shows as annotations."""
    found = []
    for name, report in reports:
        for item in report.symptoms:
            title = github_property(label(item))
            at = f"{clock_of(report.context)} {item.first_step}"
            message = github_data(f"{printable(name)}, {at}: {printable(item.message)}")
            found.append(f"::{GITHUB_LEVELS[item.severity]} title={title}::{message}")
        found.append(f"::notice title=torchdoctor::{github_data(printable(name))}: {github_data(verdict(report))}")
    return "\n".join(found)


def github_data(value: str) -> str:
    """The text of a workflow command."""
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def github_property(value: str) -> str:
    """A property of a workflow command."""
    return github_data(value).replace(":", "%3A").replace(",", "%2C")


def as_markdown(reports: Named) -> str:
    """Each report as Markdown."""
    return "\n\n".join(
        f"{_titled(markdown.escaped(name), reports)}{markdown.render(report)}".rstrip("\n") for name, report in reports
    )


def _titled(name: str, reports: Named) -> str:
    return f"{printable(name)}\n\n" if len(reports) > 1 else ""


FORMATS: Mapping[str, Callable[[Named], str]] = {
    "full": full,
    "concise": concise,
    "json": as_json,
    "jsonl": jsonl,
    "github": github,
    "markdown": as_markdown,
}

BY_SUFFIX: Mapping[str, Callable[[Report], str]] = {
    ".html": html.render,
    ".md": markdown.render,
    ".txt": lambda report: text.render(report) + "\n",
    ".json": lambda report: as_json([("", report)]) + "\n",
}


def write_whole(path: Path, content: str, *, mode: int | None = None) -> Path:
    """Write a file so that nobody ever sees half of it: beside its place first, then into it.

    Who may read it is up to the umask, as for any file that a command writes, unless a mode is given. A link is
    replaced, never followed. What is no file, such as a pipe or /dev/null, is written to as it is.
    """
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}")
    try:
        if _is_stream(path):
            path.write_text(content, encoding="utf-8", newline="\n")
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("x", encoding="utf-8", newline="\n") as stream:  # a new file, never one that is there
            stream.write(content)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise TorchDoctorError(f"cannot write {path}: {error.strerror or error}. Choose a writable path.") from error
    return path


def _is_stream(path: Path) -> bool:
    """Whether this is a pipe or a device, or one of the names that the system gives to those."""
    return path.is_fifo() or path.is_char_device() or Path("/dev") in path.absolute().parents
