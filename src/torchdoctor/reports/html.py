"""A report as one self-contained HTML file: no request, light and dark, on paper and on a phone.

Everything can be read without its script, which makes the curves and heat maps live.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from torchdoctor.records import Diagnosis, Suggestion, Symptom
from torchdoctor.reports import page
from torchdoctor.reports.chart_data import chart_data, named_places
from torchdoctor.reports.checkup import Checkup
from torchdoctor.reports.checkup_html import failure, table
from torchdoctor.reports.clock import clock_of
from torchdoctor.reports.curves import figure
from torchdoctor.reports.heat_map import heat_maps, picture
from torchdoctor.reports.markup import element, put
from torchdoctor.reports.problem import (
    Problem,
    episodes,
    heading,
    meaning,
    overview,
    problems,
    remedy,
    stands_out,
    story,
    told_apart,
    weighed,
)
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import (
    HEALTH_WORDS,
    change_words,
    changes_title,
    first_change,
    leading,
    open_question,
    verdict,
)
from torchdoctor.reports.wording import counts_text, facts, label, percent, steps_text, times_text, where_text

SEVERITY_MARKS = {"info": "i", "warning": "!", "critical": "!!"}


def render(report: Report) -> str:
    """A whole page."""
    run = f"{report.run}: " if report.run else ""
    title = f"Training Doctor: {run}{HEALTH_WORDS[report.health].lower()} at {clock_of(report.context)} {report.step}"
    return page.page(title, body(report, "main"), chart_data(report))


def fragment(report: Report) -> str:
    """The same for a notebook's cell, without the script."""
    return page.fragment(body(report))


def body(report: Report, tag: str = "div") -> Element:
    """The report as one element."""
    found = [_problem(item) for item in problems(report)]
    sections = [
        _verdict(report),
        _overview(report),
        _curves(report),
        _map(report),
        _section("What was found", *found) if found else None,
        _changes(report),
        _checkup(report),
        _listed("Phases of training", [str(item.get("message", "")) for item in report.phases]),
        _listed("Notes: what could not be judged, and how the data was read", list(report.notes)),
        _run(report),
    ]
    return element(tag, *sections, class_=f"torchdoctor {report.health}")


def _section(title: str, *children: Element | None) -> Element:
    return element("section", element("h2", title), *children)


def _verdict(report: Report) -> Element:
    told = counts_text([item.severity for item in report.symptoms]) or "no findings"
    run = f" · {report.run}" if report.run else ""
    at = f"{clock_of(report.context)} {max(report.step, 0)}"
    return element(
        "header",
        element("p", element("strong", "Training Doctor"), f"{run} · {at} · {told}", class_="brand"),
        element(
            "h1",
            element("span", HEALTH_WORDS[report.health], class_="badge"),
            verdict(report).removeprefix(HEALTH_WORDS[report.health]),
        ),
        _summary(report),
    )


def _summary(report: Report) -> Element | None:
    """Where, why, and the first thing to change, as far as known: what somebody in a hurry reads."""
    told = element("dl", class_="summary")
    first = leading(report)
    if first is not None and (where := where_text(first)):
        put(told, element("dt", "Where"))
        put(told, element("dd", element("code", where)))
    if report.diagnoses:
        best = report.diagnoses[0]
        known = stands_out(best)
        put(told, element("dt", "Why"))
        words = f"{best.cause} ({percent(best.probability)})" if known else "No cause stands out."
        put(told, element("dd", element("strong", words), f": {meaning(best)}" if known and meaning(best) else ""))
    if question := open_question(report):
        put(told, element("dt", "To find out"))
        put(told, element("dd", question))
    elif (change := first_change(report)) is not None and (title := change_words(report)):
        put(told, element("dt", title))
        sure = element("span", f"{change.reason} (confidence {change.confidence:.2f})", class_="faint")
        put(told, element("dd", element("pre", element("code", change.code)), sure))
    return told if len(told) else None


def _overview(report: Report) -> Element | None:
    rows = overview(report)
    if not rows:
        return None
    listed = (
        element("li", _mark(item.severity), f" {item.severity}: {words}", class_=item.severity) for item, words in rows
    )
    return _section(f"{len(rows)} problems, worst first", element("ol", *listed, class_="overview"))


def _curves(report: Report) -> Element | None:
    drawn = figure(report)
    if drawn is None:
        return None
    hints = "Drag to zoom in, Shift-drag to move, double-click for the whole run. Keys: + − ← → 0."
    legend = "Shaded: where a finding began and how long it lasted. Bands: lowest to highest value."
    return _section(
        "Curves",
        element("div", element("div", drawn, class_="scroll still"), data_part="curves"),
        element("p", element("span", f"{hints} ", class_="hint"), legend, class_="faint"),
    )


def _map(report: Report) -> Element | None:
    maps = heat_maps(report)
    if not maps:
        return None
    marked = named_places(report)
    words = f"Each row is a tensor or module, first layers on top. {maps[0].title.capitalize()}: {maps[0].range}."
    if marked:
        words += " Names in red belong to findings."
    return _section(
        "Layer by layer over time",
        element("div", element("div", picture(maps[0], marked), class_="scroll still"), data_part="map"),
        element("p", words, class_="faint"),
    )


def _changes(report: Report) -> Element | None:
    if not report.suggestions:
        return None
    ranked = (element("li", *_suggestion(item)) for item in report.suggestions)
    return _section(changes_title(report), element("ol", *ranked, class_="changes"))


def _checkup(report: Report) -> Element | None:
    if not report.checks:
        return None
    checkup = Checkup(report.checks)
    counts = f"{len(checkup.failed)} failed, {len(checkup.passed)} passed, {len(checkup.skipped)} skipped"
    rest = (*checkup.passed, *checkup.skipped)
    listed = element("details", element("summary", "What passed and what was skipped"), table(rest)) if rest else None
    return _section(f"Check-up before the run: {counts}", *(failure(item) for item in checkup.failed), listed)


def _listed(title: str, texts: list[str]) -> Element | None:
    return _section(title, element("ul", *(element("li", text) for text in texts))) if texts else None


def _run(report: Report) -> Element | None:
    if not report.context:
        return None
    told = (
        element("tr", element("th", name, scope="row"), element("td", value)) for name, value in facts(report.context)
    )
    return _section("The run", element("table", element("tbody", *told)))


def _problem(problem: Problem) -> Element:
    told = story(problem)
    card = element(
        "article",
        element("h3", _mark(problem.severity), f" {problem.title}: {problem.severity}, {problem.steps}"),
        element("p", f"What happened: {told}", class_="faint") if told else None,
        element("ul", *(_symptom(*item, problem.clock) for item in episodes(problem)), class_="symptoms"),
        class_=f"card {problem.severity}",
    )
    causes, others = told_apart(problem)
    for diagnosis in causes:
        put(card, _diagnosis(problem, diagnosis))
    if others:
        put(card, element("div", element("p", others), class_="cause"))
    return card


def _mark(severity: str) -> Element:
    return element("span", SEVERITY_MARKS[severity], class_="mark", aria_hidden="true")


def _symptom(symptom: Symptom, remark: str, clock: str) -> Element:
    where = where_text(symptom, limit=5)
    return element(
        "li",
        element("span", symptom.severity, class_=f"tag {symptom.severity}"),
        " ",
        element("strong", label(symptom)),
        f" · {steps_text(symptom.first_step, symptom.last_step, clock)}{times_text(symptom)}",
        element("div", symptom.message) if symptom.message else None,
        element("div", "Where: ", element("code", where), class_="faint") if where else None,
        element("div", remark, class_="faint") if remark else None,
        data_first=str(symptom.first_step),
        data_last=str(symptom.last_step),
    )


def _diagnosis(problem: Problem, diagnosis: Diagnosis) -> Element:
    made = element(
        "div",
        element("p", element("strong", heading(problem, diagnosis))),
        _bar(diagnosis.probability),
        class_="cause told",
    )
    if sentence := meaning(diagnosis):
        put(made, element("p", sentence))
    for words, texts in weighed(diagnosis):
        put(made, element("p", f"{words}:", class_="faint"))
        put(made, element("ul", *(element("li", text) for text in texts)))
    words, code = remedy(problem, diagnosis)
    if code:
        put(made, element("p", f"{words}:", class_="faint"))
        put(made, element("pre", element("code", code)))
    return made


def _bar(share: float) -> Element:
    """A probability as a length: a picture, because the page's policy allows no style in an element."""
    fill = element("rect", class_="fill", width=max(0.0, min(1.0, share)) * 100, height=5.0)
    return element("svg", fill, viewBox="0 0 100 5", preserveAspectRatio="none", class_="bar", aria_hidden="true")


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
