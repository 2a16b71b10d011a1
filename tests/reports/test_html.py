"""The page: self-contained, without script, with every string escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from tests.reports.samples import HEALTHY, SICK, XSS, poisoned

from torchdoctor.records import Symptom
from torchdoctor.reports import curves, html
from torchdoctor.reports.report import Report
from torchdoctor.series import Outline


class Page(HTMLParser):
    """What a browser would see: tags, attributes and texts."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_data(self, data):
        self.text += data


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
    ):
        assert part in page.text
    assert page.tags.count("article") == 3
    assert "width:81%" in dict(page.attributes).get("style", "") or ("style", "width:81%") in page.attributes


def test_it_asks_for_nothing_and_runs_nothing():
    content = html.render(SICK)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in content
    page = Page(content)
    assert not {"script", "link", "iframe", "img", "object", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("href", "src", "xlink:href")]
    assert "url(" not in content and "@import" not in content and "http://" not in content and "https://" not in content


@pytest.mark.parametrize("string", XSS)
def test_hostile_strings_are_text(string):
    for content in (html.render(poisoned(string)), html.fragment(poisoned(string))):
        page = Page(content)
        assert set(page.tags) <= HARMLESS
        assert not [name for name, _ in page.attributes if name.startswith("on")]
        assert "\x00" not in content and "\x1b" not in content and "\u202e" not in content
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
    assert depth == 0 and outside.split() == [".torchdoctor"]


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


def test_extremes_survive_thinning():
    buckets = [(step, -50.0 if step == 4001 else 1.0, 1.0, 90.0 if step == 777 else 1.0) for step in range(5000)]
    thin = curves.thinned(buckets)
    assert len(thin) <= curves.POINTS
    assert (min(bucket[1] for bucket in thin), max(bucket[3] for bucket in thin)) == (-50.0, 90.0)
