"""A check-up as one self-contained HTML file, in the clothes of a report."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from torchdoctor.records import CheckResult, names_text
from torchdoctor.reports import page
from torchdoctor.reports.checkup import Checkup
from torchdoctor.reports.checkup_text import status, verdict
from torchdoctor.reports.markup import element
from torchdoctor.reports.report import HEALTH
from torchdoctor.reports.wording import facts


def render(checkup: Checkup) -> str:
    """A whole page."""
    return page.page(f"Training Doctor: check-up, {len(checkup.failed)} failed", body(checkup))


def fragment(checkup: Checkup) -> str:
    """The same for a notebook's cell."""
    return page.fragment(body(checkup))


def body(checkup: Checkup) -> Element:
    """The check-up as one element."""
    sections = [_head(checkup)]
    if checkup.failed:
        sections.append(_section("What failed, worst first", *(failure(item) for item in checkup.failed)))
    if checkup.passed:
        sections.append(_section("What passed", table(checkup.passed)))
    if checkup.skipped:
        sections.append(_section("What was skipped, and why", table(checkup.skipped)))
    if checkup.notes:
        sections.append(_section("Notes", element("ul", *(element("li", text) for text in checkup.notes))))
    if checkup.context:
        told = (
            element("tr", element("th", name, scope="row"), element("td", value))
            for name, value in facts(checkup.context)
        )
        sections.append(_section("What was checked", element("table", element("tbody", *told))))
    return element("div", *sections, class_=f"torchdoctor {HEALTH[checkup.severity]}")


def _head(checkup: Checkup) -> Element:
    counts = f"{len(checkup.passed)} passed, {len(checkup.failed)} failed, {len(checkup.skipped)} skipped"
    badge = "Check-up" if checkup.failed or not checkup.passed else "Well"
    return element(
        "header",
        element(
            "p",
            element("strong", "Training Doctor"),
            f" · check-up · {counts} · {checkup.seconds:.1f} s",
            class_="brand",
        ),
        element("h1", element("span", badge, class_="badge"), f" {verdict(checkup)}"),
    )


def _section(title: str, *children: Element | None) -> Element:
    return element("section", element("h2", title), *children)


def failure(result: CheckResult) -> Element:
    """A check that failed: what, where, and what to do."""
    where = names_text(result.where, 8)
    return element(
        "article",
        element(
            "h3",
            element("span", status(result), class_=f"tag {status(result)}"),
            f" {result.code} {result.name}",
        ),
        element("p", result.message),
        element("p", "Where: ", element("code", where), class_="faint") if where else None,
        element("p", element("strong", "What to do: "), result.advice) if result.advice else None,
        class_=f"card {status(result)}",
    )


def table(results: tuple[CheckResult, ...]) -> Element:
    """A line for each result."""
    made = (
        element("tr", element("th", f"{item.code} {item.name}", scope="row"), element("td", item.message))
        for item in results
    )
    return element("table", element("tbody", *made))
