from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torchdoctor.cli import group
from torchdoctor.clinic import RECIPES, demonstration


def demo(*options: str) -> Result:
    return CliRunner().invoke(group, ["demo", *options], catch_exceptions=False)


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("demo") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demonstration, "PATIENT", RECIPES["tiny"])
        return demo("--steps", "300", "--journal", str(folder)), folder


def test_every_act_is_announced_and_found(shown: tuple[Result, Path]) -> None:
    result, _ = shown
    assert result.exit_code == 0
    for act in ("step 120: Injected", "step 180: Injected", "step 255: For real"):
        assert act in result.stdout
    table = result.stdout.partition("What happened, and what was found")[2]
    assert "gradient-explosion" in table
    assert "gradient-vanishing" in table
    assert "not found" not in table
    assert result.stdout.index("step 120: Injected") < result.stdout.index("GR01") < result.stdout.index("GR02")


def test_each_diagnosis_says_what_why_and_what_to_change(shown: tuple[Result, Path]) -> None:
    said = shown[0].stdout.partition("step 180: Injected")[0]
    for part in ("what   gradient norm", "why    ", " %)", "fix    "):
        assert part in said


def test_the_journal_and_the_reports_are_written_and_named(shown: tuple[Result, Path]) -> None:
    result, folder = shown
    for name in ("journal.jsonl", "report.html", "report.txt"):
        assert str(folder / name) in result.stdout
        assert (folder / name).stat().st_size > 0
    kinds = [record["type"] for record in records(folder)]
    assert kinds[0] == "header"
    assert "end" in kinds
    assert kinds.count("vitals") == 300


def test_progress_goes_to_stderr(shown: tuple[Result, Path]) -> None:
    result, _ = shown
    assert "step 300 of 300, loss" in result.stderr
    assert " of 300, loss" not in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "10"], "200<=x<=100000"),
        (["--data", "shakespear_char"], "Did you mean 'shakespeare_char'?"),
        (["--speed", "1"], "No such option"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(options: list[str], message: str, tmp_path: Path) -> None:
    result = demo("--journal", str(tmp_path / "run"), *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


def test_the_default_journal_is_a_dated_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, doctor: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demonstration.Demonstration, "run", interrupted)
    assert demo().exit_code == 130
    (folder,) = (tmp_path / "torchdoctor_runs").iterdir()
    assert folder.name.endswith("_demo")
    assert {path.name for path in folder.iterdir()} == {"journal.jsonl", "report.html", "report.txt"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT to send to one process")
def test_ctrl_c_leaves_a_valid_journal_and_reports(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "torchdoctor", "demo", "--steps", "200", "--journal", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first line of progress: training is under way
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted after step" in out
    assert "Traceback" not in err
    assert "end" in [record["type"] for record in records(folder)]
    assert (folder / "report.html").exists()
    assert (folder / "report.txt").exists()


def test_before_torch_is_there_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdoctor.clinic.demonstration", None)
    result = demo()
    assert result.exit_code == 2
    assert "pip install 'torchdoctor[torch]'" in result.stderr


def test_the_command_does_not_import_torch_until_it_runs() -> None:
    code = "import sys, torchdoctor.cli.demo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
