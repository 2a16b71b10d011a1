"""The page in a real browser: nothing that was smuggled in runs, and the report is there to read."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from tests.reports.samples import SICK, XSS, poisoned

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a Chromium browser")


def opened(page, folder) -> str:
    """The page as the browser sees it after loading."""
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=500",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_smuggled_scripts_do_not_run(tmp_path):
    page = poisoned(" ".join(XSS)).save(tmp_path / "report.html")
    seen = opened(page, tmp_path)
    assert re.search("<title>Training Doctor: .*critical at step 1999</title>", seen)
    assert seen.lower().count("<script") == 2 and "<iframe" not in seen.lower()
    assert "torchdoctor critical scripted" in seen


def test_scripts_would_be_refused_even_if_escaping_failed(tmp_path):
    page = SICK.save(tmp_path / "report.html")
    page.write_text(
        page.read_text(encoding="utf-8").replace("</body>", "<script>document.title='owned'</script></body>"),
        encoding="utf-8",
    )
    assert "<title>Training Doctor: critical at step 1999</title>" in opened(page, tmp_path)


def test_the_report_is_there(tmp_path):
    seen = opened(SICK.save(tmp_path / "report.html"), tmp_path)
    for part in ("lr-too-high", "<svg", "learning_rate *= 0.5"):
        assert part in seen
