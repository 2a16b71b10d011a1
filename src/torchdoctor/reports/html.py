"""A report as one self-contained HTML file: no script, no request, light and dark, on paper and on a phone."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from xml.etree.ElementTree import Element

from torchdoctor.records import Diagnosis, Suggestion, Symptom
from torchdoctor.reports.curves import figure
from torchdoctor.reports.markup import element, put
from torchdoctor.reports.markup import render as to_html
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import (
    HEALTH_WORDS,
    Problem,
    advice,
    episodes,
    facts,
    label,
    meaning,
    overview,
    percent,
    problems,
    remedy,
    steps_text,
    story,
    told_apart,
    verdict,
    weighed,
    where_text,
)

SEVERITY_MARKS = {"info": "i", "warning": "!", "critical": "!!"}


def render(report: Report) -> str:
    """A whole page."""
    return Template(asset("report.html")).substitute(
        title=escape(f"Training Doctor: {HEALTH_WORDS[report.health].lower()} at step {report.step}"),
        style=asset("report.css"),
        body=to_html(body(report)),
    )


def fragment(report: Report) -> str:
    """The same for a notebook's cell: every rule of its style holds inside the report only."""
    return f"<style>{asset('report.css')}</style>{to_html(body(report))}"


@cache
def asset(name: str) -> str:
    """A file beside this one, as text."""
    return files("torchdoctor.reports").joinpath(name).read_text(encoding="utf-8")


def body(report: Report) -> Element:
    """The report as one element."""
    sections = [_verdict(report)]
    if rows := overview(report):
        listed = (
            element("li", _mark(item.severity), f" {item.severity}: {words}", class_=item.severity)
            for item, words in rows
        )
        sections.append(_section(f"{len(rows)} problems, worst first", element("ol", *listed, class_="overview")))
    curves = figure(report)
    if curves is not None:
        sections.append(_section("Curves", element("div", curves, class_="scroll"), _legend(report)))
    found = [_problem(item) for item in problems(report)]
    if found:
        sections.append(_section("What was found", *found))
    if report.suggestions:
        ranked = (element("li", *_suggestion(item)) for item in report.suggestions)
        sections.append(
            _section("What to change, best first; one thing at a time", element("ol", *ranked, class_="changes"))
        )
    sections.extend(_lists(report))
    if report.context:
        told = (
            element("tr", element("th", name, scope="row"), element("td", value))
            for name, value in facts(report.context)
        )
        sections.append(_section("The run", element("table", element("tbody", *told))))
    return element("div", *sections, class_=f"torchdoctor {report.health}")


def _section(title: str, *children: Element | None) -> Element:
    return element("section", element("h2", title), *children)


def _verdict(report: Report) -> Element:
    counts = [
        (severity, sum(item.severity == severity for item in report.symptoms))
        for severity in ("critical", "warning", "info")
    ]
    told = ", ".join(f"{count} {severity}" for severity, count in counts if count) or "no findings"
    return element(
        "header",
        element("p", element("strong", "Training Doctor"), f" · step {max(report.step, 0)} · {told}", class_="brand"),
        element(
            "h1",
            element("span", HEALTH_WORDS[report.health], class_="badge"),
            verdict(report).removeprefix(HEALTH_WORDS[report.health]),
        ),
        element("p", advice(report), class_="advice") if advice(report) else None,
    )


def _legend(report: Report) -> Element | None:
    if not report.symptoms:
        return None
    return element(
        "p", "Shaded: where a finding began and how long it lasted. Bands: lowest to highest value.", class_="faint"
    )


def _problem(problem: Problem) -> Element:
    told = story(problem)
    card = element(
        "article",
        element("h3", _mark(problem.severity), f" {problem.title}: {problem.severity}, {problem.steps}"),
        element("p", f"What happened: {told}", class_="faint") if told else None,
        element("ul", *(_symptom(item, remark) for item, remark in episodes(problem.symptoms)), class_="symptoms"),
        class_=f"card {problem.severity}",
    )
    causes, others = told_apart(problem)
    for words, diagnosis in causes:
        put(card, _diagnosis(words, diagnosis))
    if others:
        put(card, element("div", *(element("p", text) for text in others), class_="cause"))
    return card


def _mark(severity: str) -> Element:
    return element("span", SEVERITY_MARKS[severity], class_="mark", aria_hidden="true")


def _symptom(symptom: Symptom, remark: str) -> Element:
    where = where_text(symptom, limit=5)
    times = f", seen {symptom.count} times" if symptom.count > 1 else ""
    return element(
        "li",
        element("span", symptom.severity, class_=f"tag {symptom.severity}"),
        " ",
        element("strong", label(symptom)),
        f" · {steps_text(symptom.first_step, symptom.last_step)}{times}",
        element("div", symptom.message) if symptom.message else None,
        element("div", "Where: ", element("code", where), class_="faint") if where else None,
        element("div", remark, class_="faint") if remark else None,
    )


def _diagnosis(words: str, diagnosis: Diagnosis) -> Element:
    width = max(0.0, min(1.0, diagnosis.probability)) * 100
    made = element(
        "div",
        element(
            "p",
            f"{words} ({percent(diagnosis.probability)}): ",
            element("strong", diagnosis.cause),
        ),
        element("div", element("div", class_="fill", style=f"width:{width:.0f}%"), class_="bar", aria_hidden="true"),
        class_="cause told",
    )
    if sentence := meaning(diagnosis):
        put(made, element("p", sentence))
    for heading, texts in weighed(diagnosis):
        put(made, element("p", f"{heading}:", class_="faint"))
        put(made, element("ul", *(element("li", text) for text in texts)))
    if diagnosis.suggestions:
        put(made, element("p", f"{remedy(diagnosis)}:", class_="faint"))
        put(made, element("pre", element("code", diagnosis.suggestions[0].code)))
    return made


def _suggestion(suggestion: Suggestion) -> list[Element]:
    return [
        element(
            "p",
            element("strong", suggestion.action),
            element("span", f"confidence {suggestion.confidence:.2f}", class_="percent"),
        ),
        element("pre", element("code", suggestion.code)),
        element("p", suggestion.reason, class_="faint"),
    ]


def _lists(report: Report) -> list[Element]:
    lists = {
        "Phases of training": [str(item.get("message", "")) for item in report.phases],
        "What could not be measured, and other notes": list(report.notes),
    }
    return [
        _section(title, element("ul", *(element("li", text) for text in texts)))
        for title, texts in lists.items()
        if texts
    ]
