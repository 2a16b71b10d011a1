"""``torchdoctor report``: a page where one looks for it, from any run that can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchdoctor.cli import group


def journal(folder: Path, steps: int = 60) -> Path:
    folder.mkdir(parents=True)
    rows = [{"type": "header", "schema": 1, "step": -1, "context": {"seed": 1}}]
    rows += [{"type": "vitals", "step": step, "vitals": {"loss": 3.0 - step / 60}} for step in range(steps)]
    (folder / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def called(*arguments):
    return CliRunner().invoke(group, ["report", *map(str, arguments)])


def test_the_page_lies_beside_the_journal_and_its_path_is_printed(tmp_path):
    run = journal(tmp_path / "runs" / "first")
    done = called(run)
    assert done.exit_code == 0, done.output
    assert done.output == f"{run / 'report.html'}\n"
    assert "first" in (run / "report.html").read_text().partition("</title>")[0]


def test_output_says_where_and_in_which_form(tmp_path):
    run = journal(tmp_path / "run")
    assert called(run, "--output", tmp_path / "new" / "r.md").exit_code == 0
    assert (tmp_path / "new" / "r.md").read_text().startswith("# Healthy at step 59")
    assert called(run, "--output", tmp_path / "r.out", "--format", "json").exit_code == 0
    assert json.loads((tmp_path / "r.out").read_text())["step"] == 59


def test_a_format_is_printed(tmp_path):
    run = journal(tmp_path / "run")
    done = called(run, "--format", "json")
    assert json.loads(done.output)["health"] == "healthy" and not (run / "report.html").exists()


def test_a_foreign_log_is_reported_here_under_its_name(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    lines = ["epoch,loss,val_loss", *(f"{epoch},{2 / (epoch + 1)},{2.1 / (epoch + 1)}" for epoch in range(30))]
    (elsewhere / "my run.csv").write_text("\n".join(lines))
    done = called(elsewhere / "my run.csv")
    assert done.exit_code == 0, done.output
    assert done.output == "my-run-report.html\n" and Path("my-run-report.html").read_text().startswith("<!DOCTYPE")


def test_columns_can_be_named(tmp_path):
    Path("odd.csv").write_text("\n".join(["t,zz", *(f"{step},{2 - step / 50}" for step in range(40))]))
    done = called("odd.csv", "--map", "loss=zz", "--map", "step=t")
    assert done.exit_code == 0, done.output
    assert '"name":"loss"' in Path("odd-report.html").read_text()


def test_of_several_runs_each_gets_a_page(tmp_path):
    for name in ("a", "b"):
        journal(tmp_path / "sweep" / name)
    done = called(tmp_path / "sweep")
    assert done.exit_code == 0, done.output
    assert sorted(done.output.split()) == [str(tmp_path / "sweep" / name / "report.html") for name in "ab"]
    refused = called(tmp_path / "sweep", "--output", "r.html")
    assert refused.exit_code == 2 and "holds 2 runs" in refused.output


def test_open_asks_the_browser(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("click.launch", opened.append)
    called(journal(tmp_path / "run"), "--open")
    assert opened == [str(tmp_path / "run" / "report.html")]


@pytest.mark.parametrize(
    ("arguments", "words"), [(("missing",), "does not exist"), (("run", "--output", "r.pdf"), "must be one of .html")]
)
def test_what_cannot_be_done_is_said(tmp_path, arguments, words):
    journal(Path("run"))
    done = called(*arguments)
    assert done.exit_code == 2 and words in done.output
