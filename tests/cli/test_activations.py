"""`torchdoctor activations`: the table, the verdict, the picture."""

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

def net(bias=0.0):
    made = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
    nn.init.constant_(made[0].bias, bias)
    return made, None, (torch.randn(128, 8), torch.randint(3, (128,)))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "activation_nets.py").write_text(FACTORY, encoding="utf-8")
    torch.manual_seed(0)
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["activations", "--model", "activation_nets.py:net", *map(str, arguments)])


def test_the_factory_may_bring_the_batch(here: Path) -> None:
    done = run("--output", "page.html")
    assert done.exit_code == 0, done.output
    assert done.stdout.split()[:3] == ["module", "kind", "mean"] and "Nothing is wrong" in done.stdout
    assert "<svg" in (here / "page.html").read_text(encoding="utf-8")


def test_dead_units_are_named(here: Path) -> None:
    done = run("--args", "bias=-99.0", "--no-plot", "--fail-on", "warning", "--format", "json")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert done.exit_code == 1 and found["remarks"][0]["name"] == "dead-units"
    assert found["layers"][1]["dead"] == 1 and len(found["layers"][1]["quantiles"]) == 5


def test_eval_mode_on_request(here: Path) -> None:
    assert run("--eval", "--no-plot").exit_code == 0
