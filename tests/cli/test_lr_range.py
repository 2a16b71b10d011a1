"""`torchdoctor lr-range`: a rate, a reason, a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from torchdoctor.cli import group

FACTORY = """
import torch
from torch import nn

def net():
    return nn.Linear(4, 1)

def loader():
    x = torch.randn(128, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    return torch.utils.data.DataLoader(data, batch_size=32)

def hopeless(output, target):
    return 0 * output.sum() + 1.0
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "range_nets.py").write_text(FACTORY, encoding="utf-8")
    torch.manual_seed(0)
    return tmp_path


def run(*arguments: object) -> Result:
    named = ("--model", "range_nets.py:net", "--data", "range_nets.py:loader", "--steps", 60, "--trials", 20)
    return CliRunner().invoke(group, ["lr-range", *map(str, (*named, *arguments))])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_rate_is_suggested(here: Path, optimizer: str) -> None:
    done = run("--optimizer", optimizer, "--output", "range.html")
    assert done.exit_code == 0, done.output
    assert "Suggested learning rate:" in done.stdout and "safe maximum" in done.stdout
    assert "steepest" in (here / "range.html").read_text(encoding="utf-8")


def test_json(here: Path) -> None:
    found = json.loads(run("--format", "json", "--no-plot").stdout, parse_constant=pytest.fail)
    assert found["suggestion"] > 0 and len(found["lrs"]) == len(found["losses"]) and found["lrs"][0] == 1e-7


def test_no_rate_is_exit_code_1(here: Path) -> None:
    done = run("--loss", "range_nets.py:hopeless", "--no-plot")
    assert done.exit_code == 1 and "No learning rate is suggested" in done.stdout


def test_wrong_bounds_are_exit_code_2(here: Path) -> None:
    assert run("--start", 1, "--end", 0.1).exit_code == 2


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_trials(here: Path) -> None:
    done = run("--output", "range.pdf")
    assert done.exit_code == 2 and done.stdout == "" and "must be .png or .html" in done.stderr
