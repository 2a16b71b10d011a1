"""The skill: it is installed beside the other, what it names exists, and its lines of use work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.consulting.journals import recorded

from torchdoctor.cli import COMMANDS, group
from torchdoctor.consulting.complaints import COMPLAINTS
from torchdoctor.reports.catalogue import entries
from torchdoctor.reports.skill_files import NAMES, skill_folder

TEXT = (skill_folder("train-debug") / "SKILL.md").read_text(encoding="utf-8")


def test_both_are_installed_all_or_none(tmp_path: Path) -> None:
    done = CliRunner().invoke(group, ["skill", "install", str(tmp_path)])
    assert done.exit_code == 0 and {item.name for item in tmp_path.iterdir()} == set(NAMES)
    (tmp_path / "train-debug" / "SKILL.md").write_text("mine", encoding="utf-8")
    (tmp_path / "training-diagnostics" / "SKILL.md").unlink()
    again = CliRunner().invoke(group, ["skill", "install", str(tmp_path)])
    assert again.exit_code == 2 and not (tmp_path / "training-diagnostics" / "SKILL.md").exists()


def test_its_head_says_what_it_is_for() -> None:
    fields = dict(line.split(": ", 1) for line in TEXT.split("---\n")[1].splitlines())
    assert fields["name"] == "train-debug" and 100 < len(fields["description"]) < 1024


def test_what_it_names_exists() -> None:
    assert set(re.findall(r"torchdoctor ([a-z][a-z-]+)", TEXT)) <= set(COMMANDS)
    assert set(re.findall(r"torchdoctor explain ([a-z-]+)", TEXT)) <= {entry.name for entry in entries()}
    assert re.findall(r"\| \d \| `([a-z-]+)`", TEXT) == [item.name for item in COMPLAINTS]
    options = set(re.findall(r"(--[a-z]+)", TEXT))
    help_text = CliRunner().invoke(group, ["consult", "--help"]).stdout
    assert options and all(option in help_text for option in options)


def test_its_lines_of_use_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "runs" / "today")
    (tmp_path / "answers.json").write_text('{"symptoms": ["plateau"], "at_floor": "no"}', encoding="utf-8")
    script = skill_folder("train-debug") / "scripts" / "consult.py"
    line = ["runs/today", "--answers", "answers.json", "--format", "json", "--no-casebook"]
    done = subprocess.run([sys.executable, str(script), *line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"readings", "trees", "proposals", "stop", "plan"} <= set(json.loads(done.stdout)["consultation"])
