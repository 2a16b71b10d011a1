"""The page in a real browser: its pictures answer, and nothing that was smuggled in runs or asks for anything."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tests.reports.samples import SICK, XSS, outline, poisoned

from torchdoctor.comparing import compare
from torchdoctor.records import Symptom
from torchdoctor.reports import comparison_html
from torchdoctor.reports.report import Report

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a Chromium browser")

OWNED = "window.owned = true"
SMUGGLED = (
    " ".join(XSS),
    "".join(reversed(XSS)),
    f"</script><script>{OWNED}</script>",
    f"</script><img src=x onerror='{OWNED}'>",
    f"<!--<script>{OWNED}//-->",
    f"]]><svg/onload={OWNED}>",
    f"\u2028{OWNED}//",
    "https://example.org/x.png",
    "__proto__",
    "x" * 3000,
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens a report; what the page complained of and asked for must be nothing."""
    complaints: list[str] = []
    pages = []

    def opened(report: Report, **options):
        file = report.save(tmp_path / "report.html")
        page = browser.new_page(**{"viewport": {"width": 1100, "height": 900}, **options})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith((file.as_uri(), "data:")) else complaints.append(request.url)
            ),
        )
        page.goto(file.as_uri())
        settle(page)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert complaints == []


def settle(page) -> None:
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def ink(page, index: int = 0) -> str:
    """What a canvas shows, as a string that differs when the picture does."""
    settle(page)
    return page.locator("canvas").nth(index).evaluate("(canvas) => canvas.toDataURL()")


def shown(page) -> str:
    settle(page)
    return page.locator("output").inner_text()


@pytest.mark.parametrize("string", SMUGGLED, ids=range(len(SMUGGLED)))
def test_nothing_that_was_smuggled_in_runs(open_page, string):
    page = open_page(poisoned(string))
    for chip in page.locator(".chip").all()[:2]:
        chip.click()
    for canvas in page.locator("canvas").all():
        canvas.hover()
        settle(page)
    page.locator("select").first.select_option(index=1)
    settle(page)
    assert page.evaluate("window.owned") is None and page.title() != "owned"
    assert page.locator("script").count() == 2 and page.locator("iframe, img, object, embed").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_episode_is_clicked_to_and_the_way_back_is_there(open_page):
    page = open_page(SICK)
    whole = ink(page)
    assert shown(page) == "the whole run, steps 0 to 1,999"
    page.get_by_role("button", name="Zoom to GR01 gradient-explosion").click()
    first, last = (int(part.replace(",", "")) for part in shown(page).removeprefix("steps ").split(" to "))
    assert 0 < first < 600 < last < 1000
    assert ink(page) != whole
    page.get_by_role("button", name="Whole run").click()
    assert shown(page) == "the whole run, steps 0 to 1,999" and ink(page) == whole


def test_findings_lead_to_the_curves(open_page):
    page = open_page(SICK)
    page.get_by_role("button", name="Show step 600 in the curves").click()
    assert "the whole run" not in shown(page)
    assert page.locator("canvas").first.is_visible()


def test_dragging_zooms_shift_moves_and_a_double_click_goes_back(open_page):
    page = open_page(SICK)
    box = page.locator("canvas").first.bounding_box()

    def drag(start: float, end: float) -> None:
        page.mouse.move(box["x"] + start, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + end, box["y"] + 60, steps=4)
        page.mouse.up()

    drag(300, 500)
    zoomed = shown(page)
    assert "the whole run" not in zoomed
    page.keyboard.down("Shift")
    drag(300, 500)
    page.keyboard.up("Shift")
    assert shown(page) != zoomed
    page.mouse.dblclick(box["x"] + 300, box["y"] + 60)
    assert "the whole run" in shown(page)


def test_the_keyboard_is_enough(open_page):
    page = open_page(SICK)
    page.locator(".live").first.focus()
    for key in ("+", "+", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert "the whole run" not in shown(page)
    page.keyboard.press("0")
    assert "the whole run" in shown(page)
    unnamed = "(all) => all.filter((item) => !(item.getAttribute('aria-label') || item.textContent.trim())).length"
    assert page.locator("button, canvas, select").evaluate_all(unnamed) == 0
    levels = page.locator("h1, h2, h3").evaluate_all("(all) => all.map((item) => Number(item.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))


def test_hovering_tells_values_of_curves_and_cells(open_page):
    page = open_page(SICK)
    box = page.locator("canvas").first.bounding_box()
    page.mouse.move(box["x"] + 64 + (box["width"] - 76) / 2, box["y"] + 100)
    settle(page)
    told = page.locator(".tip").inner_text()
    assert re.search(r"^step (999|1,000|1,001)\nloss 2\.99\d \(2\.99\d to 3 over steps 1,000 to 1,003\)", told)
    assert "lr 0.001" in told
    page.locator("canvas").last.hover(position={"x": 840, "y": 14})
    settle(page)
    told = page.locator(".tip").inner_text()
    assert "blocks.0.weight" in told and "gradient norm not finite" in told


def test_where_a_loss_is_not_finite_nothing_is_drawn_and_the_tip_says_so(open_page):
    """Of 100,000 steps the last tenth is NaN: a bucket of 128 steps must not stand for them."""
    steps = 100_000
    broken = Symptom("nan-or-inf", "NU01", "critical", 1.0, 90_000, steps - 1)
    wavy = outline(range(90_000), lambda step: 2 + math.sin(step))
    page = open_page(
        Report(steps - 1, (broken,), curves={"loss": wavy, "lr": outline(range(steps), lambda step: 1e-3)})
    )
    blue = """(canvas) => {
      const { width, data } = canvas.getContext("2d").getImageData(0, 0, canvas.clientWidth, 230);
      return [0.5, 0.95].map((share) => {
        const at = Math.round(64 + (width - 76) * share);
        const rows = Array.from({ length: 220 }, (_, y) => 4 * ((10 + y) * width + at));
        return rows.filter((place) => data[place + 2] > data[place] + 20).length;
      });
    }"""
    before, after = page.locator("canvas").first.evaluate(blue)
    assert before > 10 and after == 0, "the band of the loss"
    box = page.locator("canvas").first.bounding_box()
    page.mouse.move(box["x"] + 64 + (box["width"] - 76) * 0.95, box["y"] + 100)
    settle(page)
    assert "loss NaN or infinite, steps 90,000 to 99,999" in page.locator(".tip").inner_text()


def test_the_scale_is_switched_and_curves_are_hidden_and_added(open_page):
    page = open_page(SICK)
    before = ink(page)
    page.get_by_label("log scale").first.check()
    logarithmic = ink(page)
    assert logarithmic != before
    page.get_by_role("button", name="val_loss").click()
    assert ink(page) != logarithmic
    count = page.locator("canvas").count()
    page.get_by_label("Add another curve").select_option(label="step_seconds")
    assert page.locator("canvas").count() == count + 1
    page.get_by_role("button", name="Remove step_seconds").click()
    assert page.locator("canvas").count() == count


def test_code_is_copied(open_page):
    page = open_page(SICK)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy this code").first.click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("learning_rate *= 0.5")


def test_a_spike_of_one_step_in_a_million_is_on_the_screen_and_can_be_looked_into(open_page):
    steps, spike = 1_000_000, 400_123
    around = np.arange(spike - 100, spike + 100)
    report = Report(
        steps - 1,
        (Symptom("loss-spike", "LO01", "warning", 0.9, spike, spike),),
        curves={"loss": outline(range(0, steps, 10), lambda step: 9.0 if step == 400_120 else 2.0)},
        closeups={"loss": ((around, np.where(around == spike, 9.0, 2.0)),)},
    )
    page = open_page(report)
    flat = ink(open_page(replace(report, curves={"loss": outline(range(0, steps, 10), lambda step: 2.0)}, closeups={})))
    assert ink(page) != flat
    page.locator(".chip").click()
    box = page.locator("canvas").first.bounding_box()
    page.mouse.move(box["x"] + 64 + (box["width"] - 76) / 2, box["y"] + 100)
    settle(page)
    assert "loss 9" in page.locator(".tip").inner_text()


def pixels(page, left: float, top: float, width: float, height: float) -> list[int]:
    """The opacity of every pixel of a part of the first canvas, in shares of what is inside its axes."""
    settle(page)
    return page.locator("canvas").first.evaluate(
        """(canvas, [left, top, width, height]) => {
          const across = canvas.clientWidth - 76, down = canvas.clientHeight - 30;
          const box = [64 + left * across, 8 + top * down, width * across, height * down];
          const scaled = box.map((side) => Math.round(side * canvas.width / canvas.clientWidth));
          const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
          const pen = copy.getContext("2d", { willReadFrequently: true });
          pen.drawImage(canvas, 0, 0);
          return [...pen.getImageData(...scaled).data].filter((_, at) => at % 4 === 3);
        }""",
        [left, top, width, height],
    )


def test_the_line_reaches_a_spike_of_one_step_and_its_band_is_gone_where_values_are_exact(open_page):
    steps, spike = 100_000, 50_000
    around = np.arange(spike - 100, spike + 300)
    report = Report(
        steps - 1,
        (Symptom("loss-spike", "LO01", "warning", 0.9, spike + 100, spike + 100),),  # its mark must not be the ink
        curves={"loss": outline(range(steps), lambda step: 8.0 if step == spike else 2 + 0.2 * np.sin(7.3 * step))},
        closeups={"loss": ((around, np.where(around == spike, 8.0, 2.0)),)},
    )
    page = open_page(report)
    peak = pixels(page, 0.49, 0.15, 0.012, 0.3)
    assert max(peak) > 200, "a line, not a pale band"
    page.locator(".chip").click()
    assert max(pixels(page, 0.05, 0.3, 0.2, 0.02)) == 0, "no pale block behind exact values"


def test_paper_shows_still_pictures_and_no_buttons(open_page):
    page = open_page(SICK)
    page.emulate_media(media="print")
    assert page.locator("svg").first.is_visible() and not page.locator("canvas").first.is_visible()
    assert not page.locator("button:visible").count()


def test_on_paper_no_heading_stands_alone_and_a_long_problem_may_break(open_page):
    page = open_page(SICK)
    page.emulate_media(media="print")
    kept = page.locator("h2").evaluate_all("(all) => all.map((one) => getComputedStyle(one).breakAfter)")
    assert kept and set(kept) == {"avoid"}
    assert page.locator(".card").first.evaluate("(card) => getComputedStyle(card).breakInside") == "auto"


def test_on_paper_nothing_of_a_comparison_is_behind_a_scroll_bar(browser, tmp_path):
    for place in range(6):
        name = f"{'abcdef'[place] * 25}_of_the_large_model_with_{'uvwxyz'[place] * 25}"
        lines = [f"{at},{2 - at / 90:.4f},{2 - at / 90 + at * place / 100:.4f}" for at in range(90)]
        (tmp_path / f"{name}.csv").write_text("step,loss,val_loss\n" + "\n".join(lines))
    found = compare([tmp_path])
    (tmp_path / "page.html").write_text(comparison_html.render(found.found, found.curves), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 700})  # about what a sheet has across
    page.goto((tmp_path / "page.html").as_uri())
    cut = (
        "(all) => all.filter((one) => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight).length"
    )
    assert page.locator(".scroll").evaluate_all(cut) > 0
    page.emulate_media(media="print")
    assert page.locator(".scroll").evaluate_all(cut) == 0
    page.close()


NOTEBOOK = """<html style="font-size: 10px"><style>
.host table { table-layout: fixed; font-size: 9px } .host tbody tr:nth-child(odd) { background: #fff }
.host td, .host th { text-align: right; padding: 30px; white-space: normal } .host dd { width: 40%; float: left }
.host :not(pre) > code { background: #fff; padding: 9px }
</style><body data-jp-theme-light="true"><div class="host">REPORT</div></body></html>"""


def test_the_rules_of_a_notebook_do_not_reach_into_a_report(browser):
    page = browser.new_page(viewport={"width": 900, "height": 900}, color_scheme="dark")
    page.set_content(NOTEBOOK.replace("REPORT", SICK._repr_html_()))
    name = page.locator("section").last.locator("th").first
    assert name.bounding_box()["width"] > 100 and name.evaluate("(th) => getComputedStyle(th).textAlign") == "left"
    assert page.locator("table").first.evaluate("(table) => getComputedStyle(table).tableLayout") == "auto"
    row = page.locator("section").last.locator("tr").first
    assert row.evaluate("(row) => getComputedStyle(row).backgroundColor") == "rgba(0, 0, 0, 0)"
    assert page.locator(".faint").first.evaluate("(text) => parseFloat(getComputedStyle(text).fontSize)") > 12
    card = page.locator(".card").first.evaluate("(card) => getComputedStyle(card).backgroundColor")
    assert card == "rgb(255, 255, 255)", "a light notebook shows a light report, whatever the system prefers"
    page.close()


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 740}}, {}])
def test_text_can_be_read_in_light_in_dark_and_on_a_phone(open_page, options):
    page = open_page(SICK, **options)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    faint = page.evaluate(CONTRAST)
    assert min(faint.values()) >= 4.5, faint


CONTRAST = """() => {
  const style = getComputedStyle(document.querySelector(".torchdoctor"));
  const light = (name) => {
    const parts = style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16) / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const names = ["--ink", "--faint", "--good", "--info", "--warning", "--critical"];
  const least = (name) => Math.min(ratio(light(name), light("--card")), ratio(light(name), light("--page")));
  return Object.fromEntries(names.map((name) => [name, least(name)]));
}"""


def test_a_notebook_gets_no_script_and_a_page_without_scripts_is_complete(open_page, browser, tmp_path):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(SICK.save(tmp_path / "still.html").as_uri())
    assert page.locator("svg").first.is_visible() and page.locator("svg image").is_visible()
    assert "lr-too-high" in page.locator("header").inner_text() and not page.locator("canvas").count()
    context.close()
