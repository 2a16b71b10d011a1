"""The page in a real browser: it opens, follows the run, and nothing that a log says runs in it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.growing import HEADER, append, lines, steps, vitals

from torchdoctor.live.server import Board, serve
from torchdoctor.live.ward import Ward
from torchdoctor.settings import Settings

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    pytest.skip("needs a Chromium browser", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to drive a browser")

PATIENCE = 30_000
"""Milliseconds until a test gives up; how long things take is measured by benchmarks/live.py."""
XSS = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@contextmanager
def watching(*paths: Path) -> Iterator[str]:
    """A page on these runs; its address."""
    ward, board, stop = Ward(paths, Settings()), Board(), threading.Event()

    def follow() -> None:
        while not stop.is_set():
            ward.poll()
            board.post(ward.sights())
            stop.wait(0.05)

    thread = threading.Thread(target=follow)
    with serve(board) as server:
        thread.start()
        try:
            yield server.address
        finally:
            stop.set()
            thread.join()


@contextmanager
def opened(browser: Any, address: str, **device: Any) -> Iterator[Any]:
    """The page in a window of its own; an error in it fails the test."""
    context = browser.new_context(**device)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(address)
    yield page
    assert errors == []
    context.close()


def has(page: Any, words: str) -> None:
    page.get_by_text(words).first.wait_for()


def test_it_follows_a_run_from_before_it_exists_to_its_end(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "run" / "journal.jsonl"
    with watching(path.parent) as address, opened(browser, address) as page:
        has(page, "Waiting for the first step")
        assert "token" not in page.url and page.evaluate("document.cookie") == ""
        append(path, lines(HEADER) + steps(0, 100))
        has(page, "step 99")
        has(page, "Healthy")
        assert page.locator("canvas").count() == 3
        blank = "c => !c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(Boolean)"
        assert not page.locator("#panels canvas").first.evaluate(blank)
        append(path, steps(100, 140, jump_at=130))
        has(page, "gradient-explosion")
        assert page.title().startswith("Sick")
        path.unlink()
        append(path, lines(HEADER) + steps(0, 20))
        has(page, "step 19")
        has(page, "Healthy")
        path.write_text(lines(HEADER) + steps(0, 5), encoding="utf-8")
        has(page, "step 4")
        append(path, lines({"type": "end", "step": 4}))
        has(page, "ended")


def test_where_a_loss_is_not_finite_the_curve_breaks_off_and_says_so(browser: Any, tmp_path: Path) -> None:
    append(tmp_path / "journal.jsonl", lines(HEADER) + steps(0, 100) + steps(100, 160, nan_at=100) + steps(160, 200))
    with watching(tmp_path) as address, opened(browser, address) as page:
        has(page, "step 199")
        canvas = page.locator("#panels canvas").first
        box = canvas.bounding_box()
        for share, told in ((0.3, "loss 2."), (0.65, "loss NaN or infinite"), (0.95, "loss 1.")):
            canvas.hover(position={"x": 58 + (box["width"] - 68) * share, "y": 40})
            has(page, told)
        assert page.evaluate("unbroken(detail.panels[0].curves[0]).map((piece) => piece.length)") == [100, 40]


def test_several_runs_and_one_that_appears(browser: Any, tmp_path: Path) -> None:
    append(tmp_path / "a" / "journal.jsonl", lines(HEADER) + steps(0, 50))
    append(tmp_path / "b" / "journal.jsonl", lines(HEADER) + steps(0, 140, jump_at=130))
    with watching(tmp_path) as address, opened(browser, address) as page:
        row = page.get_by_role("button")
        row.nth(1).wait_for()
        page.get_by_role("button", name="Sick").click()
        has(page, "gradient-explosion")
        page.get_by_role("button", name="Healthy").click()
        has(page, "a · step 49")
        assert page.get_by_text("gradient-explosion").count() == 0
        append(tmp_path / "c" / "journal.jsonl", lines(HEADER) + steps(0, 7))
        row.nth(2).wait_for()


def test_it_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    for name in ("a" * 80, "b/" * 3):
        append(tmp_path / name / "journal.jsonl", lines(HEADER) + steps(0, 140, jump_at=130))
    phone = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    with watching(tmp_path) as address, opened(browser, address, **phone) as page:
        has(page, "gradient-explosion")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_nothing_that_a_log_says_runs(browser: Any, tmp_path: Path) -> None:
    header = {**HEADER, "tensors": [XSS], "context": {"model": {"class": XSS}}}
    hostile = [{**vitals(step), "vitals": {**vitals(step)["vitals"], f"val_{XSS}": 1.0}} for step in range(130)]
    note = {"type": "note", "step": 3, "text": XSS}
    jump = [vitals(step, jump_at=130) for step in range(130, 150)]
    origin = {"type": "origin", "step": 149, "module": XSS, "kind": XSS}
    name = XSS.replace("/", "")
    append(tmp_path / name / "journal.jsonl", lines(header, *hostile, note, *jump, origin, vitals(150, nan_at=150)))
    append(tmp_path / "other" / "journal.jsonl", lines(HEADER) + steps(0, 5))
    with watching(tmp_path) as address, opened(browser, address) as page:
        page.get_by_role("button", name="Critical").click()
        has(page, "nan-or-inf")
        assert "owned" not in page.title().replace(name, "")
        assert page.locator("img, #run script").count() == 0
        assert page.get_by_text("<script>").count() >= 2  # shown as it is


def test_it_says_when_the_connection_is_lost_and_comes_back_by_itself(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    append(path, lines(HEADER) + steps(0, 5))
    with watching(tmp_path) as address:
        context = browser.new_context()
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.goto(address)
        has(page, "step 4")
        context.set_offline(True)
        page.evaluate("source.close(), connect()")  # what is open already is not cut off by going offline
        has(page, "lost connection")
        append(path, steps(5, 9))
        context.set_offline(False)
        has(page, "step 8")
        assert page.locator("#link").inner_text() == "connected"
    has(page, "lost connection")
    context.close()


def test_a_watch_that_was_started_again_asks_for_its_new_address(browser: Any, tmp_path: Path) -> None:
    append(tmp_path / "journal.jsonl", lines(HEADER) + steps(0, 5))
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    with watching(tmp_path) as address:
        page.goto(address)
        has(page, "step 4")
        context.clear_cookies()  # what another token comes to
        page.evaluate("source.close(), connect()")
        has(page, "was restarted")
    context.close()
