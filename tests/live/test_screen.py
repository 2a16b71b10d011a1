"""The terminal's view: it fits, it says what matters, and nothing that a log says gets at the terminal."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console
from tests.reports.samples import SICK

from torchdoctor.live.screen import render
from torchdoctor.live.sight import Sight
from torchdoctor.live.spark import plot, spark
from torchdoctor.records import Symptom
from torchdoctor.reports.report import Report

CURVES = {
    "loss": [(step, 1.0, 4 - step / 40, 5.0) for step in range(100)],
    "grad_norm": [(step, 0.1, 1.0, 2.0) for step in range(100)],
    "lr": [(step, 1e-3, 1e-3, 1e-3) for step in range(100)],
}
LATEST = {"loss": math.nan, "grad_norm": 1.0, "lr": 1e-3}


def watched(name: str = "runs/a", report: Report = SICK) -> Sight:
    return Sight(
        name,
        name,
        "running",
        replace(report, curves=CURVES),
        frozenset({(report.symptoms[0].name, report.symptoms[0].first_step)} if report.symptoms else ()),
        LATEST,
        5000,
        2.5,
        0.0,
        120.0,
    )


def shown(*sights: Sight, width: int = 80, height: int = 40, **options: object) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=str(options.pop("encoding", "utf-8")))
    console = Console(
        file=out, width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False
    )
    console.print(render(sights, console, now=1.0), soft_wrap=True)
    out.flush()
    return out.buffer.getvalue().decode(out.encoding).splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 40), (40, 12), (200, 60)])
@pytest.mark.parametrize("runs", [1, 3, 60])
def test_it_fits(width: int, height: int, runs: int) -> None:
    lines = shown(*(watched(f"runs/number-{number}") for number in range(runs)), width=width, height=height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_it_says_what_why_and_what_to_change() -> None:
    text = "\n".join(shown(watched(), height=60))
    for words in (
        "step 1,999 of 5,000",
        "2.5 steps/s",
        "20 min left",
        "loss-divergence",
        "lr-too-high",
        "learning_rate *= 0.5",
    ):
        assert words in text
    assert "NaN" in text and "▲" in text and "since step" in text


def test_several_runs_are_a_row_each_and_the_worst_is_told() -> None:
    lines = shown(watched("runs/a"), watched("runs/b", Report(step=5)), Sight("c", "runs/c"))
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["runs/a", "Critical"],
        ["runs/b", "Healthy"],
        ["runs/c", "waiting,"],
    ]
    assert any("lr-too-high" in line for line in lines)


def test_a_terminal_without_these_characters_gets_others() -> None:
    text = "\n".join(shown(watched(), encoding="ascii", height=60))
    assert text.isascii() and "#" in text


def test_nothing_in_a_log_gets_at_the_terminal() -> None:
    evil = "x\x1b[2J\x1b]0;owned\x07[bold]y[/bold]\n\u202ez"
    symptom = Symptom(evil, "LO01", "warning", 0.9, 3, 4, where=(evil,), message=evil)
    report = Report(step=9, symptoms=(symptom,), notes=(evil,))
    sight = replace(watched(evil, report), problem=evil)
    sight = replace(
        sight, report=replace(sight.report, curves={evil + "loss": CURVES["loss"]}), latest={evil + "loss": 1.0}
    )
    for view in (shown(sight), shown(sight, sight)):
        text = "\n".join(view)
        assert "\x1b" not in text and "owned" not in text and "\u202e" not in text
        assert "[bold]" in text  # shown as it is, not obeyed


def test_a_spike_of_one_step_is_seen_among_a_thousand() -> None:
    buckets = [(step, 1.0, 1.0, 50.0 if step == 500 else 1.1) for step in range(1000)]
    rows = plot(buckets, 50, 3)
    assert rows[0].count("█") + rows[0].count("▇") == 1


def test_a_constant_is_drawn_as_one() -> None:
    """The mean of a thousand times 0.001 is not 0.001: at full height that would look like a comb."""
    noisy = [(step, 0.001, 0.001 * (1 + 2e-13 * (step % 7)), 0.001) for step in range(90)]
    assert set(spark(noisy, 30)) == {"▅"} and set(spark([(0, 0.0, 0.0, 0.0), (1, 0.0, 0.0, 0.0)], 9)) == {"▅"}
    assert len(set(spark([(step, 0.0, 1 + 0.001 * step, 2.0) for step in range(90)], 30))) == 8


@pytest.mark.parametrize("value", [0.0, -1.0, 1e308, 1e-308, -1e308])
def test_any_number_can_be_drawn(value: float) -> None:
    for other in (0.0, value, 1e308, -1e308, 1e-300):
        assert len(spark([(0, value, value, value), (1, other, other, other)], 10)) == 2


def test_long_names_are_cut_where_they_are_alike() -> None:
    names = [f"experiments/of/a/long/week/with_a_long_common_beginning__{number}__and_end" for number in range(4)]
    lines = shown(*(watched(name) for name in names), width=80)
    assert len({line.split()[0] for line in lines[1:5]}) == 4
    assert any("Critical" in line for line in lines[6:])  # the verdict is still to be seen behind the name
