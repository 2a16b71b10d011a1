"""``torchdoctor diagnose`` on logs of others."""

import json

import pytest
from click.testing import CliRunner

from torchdoctor.cli import group


def diagnose(*arguments):
    return CliRunner().invoke(group, ["diagnose", *map(str, arguments)])


def table(path, columns="step,loss", rows=60):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{columns}\n" + "".join(f"{row},{3 - row / 100}\n" for row in range(rows)))
    return path


def test_every_run_of_a_folder_is_reported(tmp_path):
    for name in ("a", "b"):
        table(tmp_path / name / "metrics.csv")
    result = diagnose(tmp_path, "--format", "json")
    assert result.exit_code == 0
    assert [report["context"]["run"] for report in json.loads(result.stdout)] == ["metrics.csv", "metrics.csv"]
    result = diagnose(tmp_path, "--format", "concise")
    assert str(tmp_path / "a" / "metrics.csv") in result.stdout
    assert str(tmp_path / "b" / "metrics.csv") in result.stdout


def test_columns_are_named_with_map(tmp_path):
    path = table(tmp_path / "log.csv", "tick,zeta")
    result = diagnose(path)
    assert result.exit_code == 2
    assert "Its numeric columns: tick, zeta" in result.stderr
    result = diagnose(path, "--map", "loss=zeta", "--map", "step=tick", "--format", "json")
    assert json.loads(result.stdout)["context"]["columns"] == {"loss": "zeta"}
    result = diagnose(path, "--map", "zeta")
    assert result.exit_code == 2
    assert "write it as loss=COLUMN" in result.stderr
    result = diagnose(path, "--map", "zeta=loss")
    assert result.exit_code == 2
    assert "'zeta' is not a known vital" in result.stderr


def test_lines_are_read_with_pattern(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(f"<{step}> E={3 - step / 100}\n" for step in range(60)))
    result = diagnose(path, "--pattern", r"<(?P<step>\d+)> E=(?P<loss>\S+)", "--format", "json")
    assert json.loads(result.stdout)["step"] == 59
    result = diagnose(path, "--pattern", "(")
    assert result.exit_code == 2
    assert "is not a regular expression" in result.stderr


def test_one_file_for_several_runs_needs_a_format(tmp_path):
    for name in ("a", "b"):
        table(tmp_path / name / "metrics.csv")
    result = diagnose(tmp_path, "--output", tmp_path / "report.md")
    assert result.exit_code == 2
    assert "--output takes one run" in result.stderr


@pytest.mark.parametrize("path", ["-", "/dev/stdin"])
def test_standard_input(tmp_path, path):
    text = table(tmp_path / "log.csv").read_text() + "60,nan\n" * 3
    result = CliRunner().invoke(group, ["diagnose", path, "--format", "json"], input=text)
    report = json.loads(result.stdout)
    assert [item["name"] for item in report["symptoms"]] == ["nan-or-inf"]
    assert (report["context"]["run"], result.exit_code) == ("standard input", 1)


@pytest.mark.parametrize(
    ("text", "said"), [("", "standard input is empty"), ("hello\n", "standard input is not a log")]
)
def test_standard_input_that_is_no_log(text, said):
    result = CliRunner().invoke(group, ["diagnose", "-"], input=text)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {said}")
