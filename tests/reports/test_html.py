"""The page: self-contained, with one script that the policy names, and every string escaped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.reports.samples import CLIP, HALVE, HEALTHY, SICK, XSS, poisoned

from torchdoctor.outline import Outline
from torchdoctor.records import Symptom
from torchdoctor.reports import curves, html
from torchdoctor.reports.checkup import Checkup
from torchdoctor.reports.checkup_html import render as page_of
from torchdoctor.reports.page import fingerprint
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import change_words, first_change


class Page(HTMLParser):
    """What a browser would see: tags, attributes and texts."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.style = ""
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and self.cdata_elem:
            self.scripts.append(data)
        elif self.cdata_elem == "style":
            self.style += data
        else:
            self.text += data

    @property
    def policy(self) -> dict[str, str]:
        found = next(value for name, value in self.attributes if name == "content" and "default-src" in (value or ""))
        return dict(part.strip().split(" ", 1) for part in found.split(";"))


HARMLESS = set(Page(html.render(SICK)).tags)


def test_the_page_holds_what_a_reader_needs():
    page = Page(html.render(SICK))
    for part in (
        "since step 1730: loss-divergence",
        "lr-too-high",
        "81 %",
        "learning_rate *= 0.5",
        "the learning rate rose 30-fold",
        "gradient-explosion",
        "warning",
        "the raw gradient norm is unknown",
        "steps 0 to 999: stable",
        "AdamW",
        "10,700,000",
        "grad_norm (log scale)",
        "val_loss",
        "GR01 600",
        "LO02 1730",
        "1 failed, 1 passed, 0 skipped",
        "loss 9.2 at the start",
        "Layer by layer over time",
    ):
        assert part in page.text
    assert page.tags.count("article") == 4
    assert ("width", "81") in page.attributes


def test_findings_are_counted_as_one_says_it():
    found = [Symptom("loss-spike", "LO01", severity, 0.9, 5, 6) for severity in ("warning", "warning", "info")]
    assert "2 warnings, 1 note" in html.render(Report(9, tuple(found)))


def test_the_first_screen_says_where_why_and_what_to_change():
    head = html.render(SICK).partition("</header>")[0]
    for part in ("since step 1730: loss-divergence", "lr-too-high (81 %)", "learning_rate *= 0.5", "confidence 0.90"):
        assert part in head
    spike = Report(9, (replace(SICK.symptoms[0], severity="critical"),))
    assert "<code>blocks.0.weight, blocks.1.weight, blocks.2.weight and 5 more, rank 2</code>" in html.render(spike)


def test_the_first_change_is_the_first_of_the_list_and_says_so_where_it_is_for_another_problem():
    other = replace(CLIP, action="clean-data", code="check(batch)", reason="bad-batch (60 %): Look at the batch.")
    mixed = replace(SICK, suggestions=(other, HALVE))
    assert first_change(mixed) is other and change_words(mixed) == "First change, against bad-batch (60 %)"
    assert first_change(SICK) is SICK.suggestions[0] and change_words(SICK) == "First change"
    assert first_change(HEALTHY) is None
    assert "First change, against bad-batch (60 %)" in html.render(mixed)


def test_it_asks_for_nothing_and_runs_its_own_script_only():
    content = html.render(SICK)
    page = Page(content)
    held, code = page.scripts
    assert page.policy == {
        "default-src": "'none'",
        "style-src": f"'{fingerprint(page.style)}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "script-src": f"'{fingerprint(code)}'",
    }
    assert json.loads(held)["episodes"][0]["label"] == "GR01 gradient-explosion"
    assert not {"link", "iframe", "img", "object", "form", "base"} & set(page.tags)
    names = [name for name, _ in page.attributes]
    assert not [name for name in names if name.startswith("on") or name in ("style", "src", "xlink:href")]
    assert all(value.startswith("data:image/png;base64,") for name, value in page.attributes if name == "href")
    for asking in ("url(", "@import", "http://", "https://", "fetch(", "eval(", "innerHTML", "XMLHttp", "import("):
        assert asking not in content


def test_other_pages_have_no_script_at_all():
    for content in (Checkup(SICK.checks)._repr_html_(), page_of(Checkup(SICK.checks)), SICK._repr_html_()):
        assert "script" not in Page(content).tags
    assert "script-src" not in Page(page_of(Checkup(SICK.checks))).policy


@pytest.mark.parametrize("string", XSS)
def test_hostile_strings_are_text(string):
    for content in (html.render(poisoned(string)), html.fragment(poisoned(string))):
        page = Page(content)
        assert set(page.tags) <= HARMLESS
        assert not [name for name, _ in page.attributes if name.startswith("on")]
        assert "\x00" not in content and "\x1b" not in content and "\u202e" not in content
        for held in page.scripts[:1]:
            assert not set("<>&") & set(held) and json.loads(held)["episodes"]
        content.encode("utf-8")


def test_severity_is_never_told_by_colour_alone():
    for tag in re.findall(r'<span class="tag (\w+)">(\w+)</span>', html.render(SICK)):
        assert tag[0] == tag[1]


def test_every_rule_of_the_style_holds_inside_the_report_only():
    style = re.search(r"<style>(.*?)</style>", SICK._repr_html_(), re.DOTALL)
    assert style is not None
    depth, outside = 0, ""
    for char in style[1]:
        depth += (char == "{") - (char == "}")
        outside += char if depth == 0 and char not in "{}" else ""
        assert depth >= 0
    assert depth == 0 and set(outside.split()) == {".torchdoctor" * 3}


def test_light_dark_paper_and_phone_are_provided_for():
    content = html.render(SICK)
    for part in ("prefers-color-scheme: dark", "@media print", "max-width: 40rem", 'name="viewport"'):
        assert part in content


def test_a_run_without_curves_has_no_figure():
    assert "<svg" not in html.render(HEALTHY)


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0],
        [0.0, 0.0],
        [-3.0, -2.0],
        [1e-300, 1e300],
        [1e308, -1e308],
        [5e-324, 1.0],
        [0.0, 1e-8, 3.0],
        [7.0] * 5,
    ],
)
@pytest.mark.parametrize("name", ["loss", "grad_norm", "lr"])
def test_any_curve_is_drawn_inside_the_figure(name, values):
    made = Outline()
    for step, value in enumerate(values):
        made.add(step, value)
    drawing = curves.figure(Report(step=len(values) - 1, curves={name: made.buckets()}))
    assert drawing is not None
    height = float(drawing.get("viewBox", "").split()[3])
    for shape in drawing.iter():
        for point in (shape.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= curves.WIDTH and 0 <= y <= height


def test_labels_never_cover_each_other():
    symptoms = [Symptom("loss-spike", "LO01", "info", 0.9, step, step + 3) for step in range(0, 300, 7)]
    labels, rows = curves.place_labels(symptoms, curves.Axis(0, 300, curves.LEFT, curves.WIDTH - curves.RIGHT))
    assert 0 < rows <= curves.ROWS and len(labels) > 10
    for index, (_, words, x, y) in enumerate(labels):
        assert x + 6.6 * len(words) <= curves.WIDTH
        for _, others, other_x, other_y in labels[:index]:
            assert y != other_y or other_x + 6.6 * len(others) < x or x + 6.6 * len(words) < other_x


def test_the_line_of_a_still_picture_reaches_a_spike_of_one_step():
    """The mean of the steps around it would show 3, where the loss was 8."""
    buckets = [(step, 1.9, 2.0, 8.0 if step == 200 else 2.1) for step in range(400)]
    drawing = curves.figure(Report(399, curves={"loss": buckets}))
    line = next(item for item in drawing.iter() if item.get("class") == "line c1")
    heights = [float(point.split(",")[1]) for point in line.get("points").split()]
    band = next(item for item in drawing.iter() if item.get("class") == "band c1")
    assert min(heights) == min(float(point.split(",")[1]) for point in band.get("points").split())
    assert sorted(heights)[2] > min(heights) + 50, "one step, and no more"


def test_the_axis_of_a_constant_has_no_label_twice():
    axis = curves.value_axis([(0, 0.001, 0.001, 0.001), (9, 0.001, 0.0010000000001, 0.001)], curves.Panel((), 80), 0.0)
    labels = [f"{tick:.3g}" for tick in axis.ticks(3)]
    assert "0.001" in labels and len(set(labels)) == len(labels)


def test_extremes_survive_thinning():
    buckets = [(step, -50.0 if step == 4001 else 1.0, 1.0, 90.0 if step == 777 else 1.0) for step in range(5000)]
    thin = curves.thinned(buckets)
    assert len(thin) <= curves.POINTS
    assert (min(bucket[1] for bucket in thin), max(bucket[3] for bucket in thin)) == (-50.0, 90.0)
