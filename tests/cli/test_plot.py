"""`torchdoctor plot`: a run as pictures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torchdoctor.cli import group
from torchdoctor.journal import Journal
from torchdoctor.reports.drawing import Figure, Line, Mark, Plot, points, svg
from torchdoctor.reports.markup import render
from torchdoctor.reports.plots import can_draw_png, loss_plot, running_mean, save

HEADER = {"type": "header", "schema": 1, "context": {}}


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with Journal(tmp_path / "logs", HEADER) as journal:
        for step in range(400):
            loss = math.nan if step == 350 else 1 + math.exp(-step / 50) + 0.02 * math.sin(step * 7.3)
            vitals = {"loss": loss, "grad_norm": 40.0 if step == 200 else 1 + 0.1 * math.sin(step), "lr": 1e-3}
            journal.write({"type": "vitals", "step": step, "vitals": vitals})
        journal.write({"type": "validation", "step": 399, "vitals": {"val_loss": 1.1}})
    return tmp_path / "logs"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["plot", *map(str, arguments)])


def test_two_pictures_by_default(logs: Path) -> None:
    done = run(logs)
    assert done.exit_code == 0, done.output
    suffix = "png" if can_draw_png() else "html"
    for name in ("loss_curve", "lr_loss_correlation"):
        assert (logs.parent / f"{name}.{suffix}").stat().st_size > 1000
    assert len(done.stdout.splitlines()) == 1


def test_one_page_with_everything(logs: Path) -> None:
    run(logs, "--output", "all.html")
    page = (logs.parent / "all.html").read_text(encoding="utf-8")
    for words in ("100-step average", "gradient norm", "lr", "validation", "gradient-explosion", "<svg"):
        assert words in page
    assert "<script" not in page and "http" not in page.split("<body>")[1]


def test_json_holds_the_series_and_the_episodes(logs: Path) -> None:
    found = json.loads(run(logs, "--format", "json", "--folder", "here").stdout, parse_constant=pytest.fail)
    assert found["series"]["loss"]["values"][350] == "NaN" and len(found["loss_average"]) == 400
    assert "gradient-explosion" in {item["name"] for item in found["episodes"]}
    assert all(Path(file).is_file() and Path(file).parent.name == "here" for file in found["files"])


def test_the_average_is_that_of_the_last_hundred_finite_values() -> None:
    values = [float(value) for value in range(300)]
    assert running_mean(values)[-1] == pytest.approx(249.5) and running_mean(values)[0] == 0
    values[250] = math.inf
    assert running_mean(values)[250] == running_mean(values)[249]


@pytest.mark.skipif(not can_draw_png(), reason="matplotlib is not installed")
def test_a_png_of_everything(logs: Path) -> None:
    assert run(logs, "--output", "all.png").exit_code == 0
    assert (logs.parent / "all.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_png_that_was_asked_for_is_refused(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdoctor.reports.plots.can_draw_png", lambda: False)
    done = run(logs, "--output", "all.png")
    assert done.exit_code == 2 and "torchdoctor[plots]" in done.stderr
    done = run(logs)
    assert done.exit_code == 0 and (logs.parent / "loss_curve.html").is_file() and "HTML" in done.stderr


def test_hostile_names_and_values_are_drawn_as_text(tmp_path: Path) -> None:
    values = [1.0, math.nan, math.inf, 1e308, -1e308, 0.0]
    name = "<script>alert(1)</script>\x1b[2J $x$ _{"
    figure = Figure(
        "Hostile",
        (Plot("y", (Line(name, list(range(6)), values),), log=True), Plot("none", (Line("empty", [], []),))),
        marks=(Mark(2, name, "critical", 4),),
        x_names=(name,) * 6,
    )
    assert "<script" not in render(svg(figure))
    save(figure, tmp_path / "page.html")
    if can_draw_png():
        save(figure, tmp_path / "page.png")


def test_extremes_survive_thinning() -> None:
    values = [0.0] * 100_000
    values[54_321] = 9.0
    drawn = points(Line("loss", list(range(100_000)), values))
    assert len(drawn) < 2000 and (54_321, 9.0) in drawn


def test_a_run_without_a_loss_says_so(tmp_path: Path) -> None:
    with Journal(tmp_path / "logs", HEADER) as journal:
        journal.write({"type": "vitals", "step": 0, "vitals": {"grad_norm": 1.0}})
    done = run(tmp_path / "logs", "--folder", tmp_path)
    assert done.exit_code == 2 and "no values to draw" in done.stderr


def test_the_loss_that_is_trained_on_is_drawn() -> None:
    ours = {name: ([0, 1], [1.0, 0.5]) for name in ("last_position_loss", "guess_loss", "loss", "val_loss")}
    assert [line.name for line in loss_plot(ours).lines] == ["loss", "loss, 100-step average", "validation"]
    others = {name: ([0, 1], [1.0, 0.5]) for name in ("d_loss", "g_loss", "other_position_loss")}
    assert [line.name for line in loss_plot(others).lines][::2] == ["d_loss", "g_loss"]
