"""The live view: how long a finding takes to be seen, what watching costs while nothing happens, and a long past.

    python benchmarks/live.py [--findings 10] [--idle 20] [--steps 1000000]

The page's delay needs a Chromium browser and playwright; without them the pipe's is measured alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADER = json.dumps({"type": "header", "step": 0, "schema": 1, "context": {}})
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CALM = 150
"""Steps between two findings: an episode has closed, and its baseline is calm again."""


def line(step: int, jump: bool = False) -> str:
    """A training step of a calm run, or of one whose gradients jump."""
    noise = math.sin(step * 7.3)
    values = {"loss": 1 + 3 * math.exp(-step / 80) + 0.02 * noise, "grad_norm": (60 if jump else 1) * (1 + 0.1 * noise)}
    return json.dumps({"type": "vitals", "step": step, "vitals": values})


def append(path: Path, lines: list[str]) -> None:
    """Write what a run would have written by now."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{item}\n" for item in lines))


def watch(*arguments: object) -> subprocess.Popen[str]:
    """The command, at work."""
    return subprocess.Popen(
        [sys.executable, "-m", "torchdoctor", "watch", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def delays(path: Path, count: int, seen: Callable[[int], object]) -> list[float]:
    """Seconds from a finding's being written to its being seen, for findings at moments that no poll knows."""
    found = []
    for number in range(1, count + 1):
        step = number * CALM
        append(path, [line(item) for item in range(step - CALM + 1, step)])
        time.sleep(1.0 + 0.37 * (number % 3))
        append(path, [line(step, jump=True)])
        began = time.perf_counter()
        seen(step)
        found.append(time.perf_counter() - began)
    return found


def in_a_pipe(folder: Path, count: int) -> list[float]:
    """The delays of lines on stdout."""
    path = folder / "pipe.jsonl"
    append(path, [HEADER, line(0)])
    process = watch(path)
    assert process.stdout
    process.stdout.readline()

    def seen(step: int) -> None:
        assert process.stdout
        while f":{step}: GR01" not in process.stdout.readline():
            pass

    try:
        return delays(path, count, seen)
    finally:
        process.terminate()
        process.wait()


def on_the_page(folder: Path, count: int) -> list[float]:
    """The delays of text in a browser."""
    from playwright.sync_api import sync_playwright

    path = folder / "page.jsonl"
    append(path, [HEADER, line(0)])
    process = watch(path, "--web")
    assert process.stderr
    address = re.search(r"http\S+", process.stderr.readline())
    assert address
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page()
            page.goto(address[0])
            page.get_by_text("Healthy").first.wait_for()
            cards = page.locator("#problems .symptom")
            found = delays(path, count, lambda step: cards.get_by_text(f"step {step}").first.wait_for())
            browser.close()
            return found
    finally:
        process.terminate()
        process.wait()


def idle(folder: Path, runs: int, seconds: float) -> tuple[float, float]:
    """The share of one processor, and megabytes, that watching takes while nothing happens."""
    for number in range(runs):
        place = folder / f"idle-{runs}" / str(number)
        place.mkdir(parents=True)
        append(place / "journal.jsonl", [HEADER, *(line(step) for step in range(300))])
    process = watch(folder / f"idle-{runs}", "--web")
    assert process.stdout
    for _ in range(runs):
        process.stdout.readline()
    time.sleep(2)
    before = processor_seconds(process.pid)
    time.sleep(seconds)
    share, memory = (processor_seconds(process.pid) - before) / seconds, megabytes(process.pid)
    process.terminate()
    process.wait()
    return share, memory


def processor_seconds(process: int) -> float:
    """What a process has used of a processor so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(process: int) -> float:
    """What a process has in memory now."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def past(folder: Path, steps: int) -> tuple[float, float]:
    """Seconds until a run with a long past is shown, and the memory that it takes at most."""
    path = folder / "past.jsonl"
    append(path, [HEADER])
    for start in range(0, steps, 10_000):  # little at a time: a child begins with the memory of its parent
        append(path, [line(step) for step in range(start, min(start + 10_000, steps))])
    began = time.perf_counter()
    _, code, used = os.wait4(watch(path, "--once").pid, 0)
    assert code == 0, "the run was not shown"
    return time.perf_counter() - began, used.ru_maxrss / 1e3


def told(name: str, found: list[float]) -> None:
    """Print one row."""
    ordered = sorted(found)
    print(f"{name:<34} median {statistics.median(ordered):.2f} s, slowest {ordered[-1]:.2f} s, of {len(ordered)}")


def main() -> None:
    """Measure and print everything."""
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--findings", type=int, default=10)
    parser.add_argument("--idle", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told("a finding is a line in a pipe", in_a_pipe(folder, given.findings))
        if BROWSER and importlib.util.find_spec("playwright"):
            told("a finding is on the page", on_the_page(folder, given.findings))
        for runs in (1, 50):
            share, memory = idle(folder, runs, given.idle)
            print(f"{f'{runs} runs, nothing happens':<34} {100 * share:.2f} % of a processor, {memory:.0f} MB")
        seconds, most = past(folder, given.steps)
        print(f"{f'{given.steps:,} steps before the first look':<34} {seconds:.1f} s, {most:.0f} MB at most")


if __name__ == "__main__":
    main()
