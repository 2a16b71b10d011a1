"""`torchdoctor gradients`: the table, the verdict, the picture, and what it is told to work on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from torchdoctor.cli import group
from torchdoctor.journal import Journal
from torchdoctor.reports.plots import can_draw_png

FACTORY = """
from torch import nn

def net(kind="ReLU", depth=8, width=16):
    layers = [nn.Linear(8, width)]
    for _ in range(depth):
        layers += [getattr(nn, kind)(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Linear(width, 3))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gradient_nets.py").write_text(FACTORY, encoding="utf-8")
    torch.manual_seed(0)
    torch.save((torch.randn(64, 8), torch.randint(3, (64,))), "sample.pt")
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["gradients", *map(str, arguments)])


MODEL = ("--model", "gradient_nets.py:net", "--data", "sample.pt", "--loss", "cross-entropy")


def test_it_prints_a_table_and_draws_a_picture(here: Path) -> None:
    done = run(*MODEL)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].split() == ["layer", "norm", "mean", "std", "max", "min", "zeros", "size"]
    assert "Total norm" in done.stdout and "first over last weights" in done.stdout
    picture = here / ("gradient_flow.png" if can_draw_png() else "gradient_flow.html")
    assert picture.stat().st_size > 1000 and picture.name in done.stderr


def test_json_is_strict_and_alone_on_stdout(here: Path) -> None:
    found = json.loads(run(*MODEL, "--format", "json", "--no-plot").stdout, parse_constant=pytest.fail)
    assert {"norm", "mean", "std", "max", "min", "zeros", "size"} <= set(found["layers"][0])
    assert found["severity"] in (None, "info") and not list(here.glob("*.png"))


def test_a_sick_model_fails_where_asked(here: Path) -> None:
    sick = (*MODEL, "--args", "kind=Sigmoid", "--no-plot")
    assert "gradient-vanishing" in run(*sick).stdout
    assert [run(*sick, "--fail-on", bar).exit_code for bar in ("critical", "warning", "never")] == [0, 1, 0]


def test_a_checkpoint_that_does_not_fit_is_a_table(here: Path) -> None:
    torch.save(nn.Linear(8, 3).state_dict(), "w.pt")
    done = run(*MODEL, "--checkpoint", "w.pt")
    assert done.exit_code == 2 and "does not fit the model" in done.stderr and len(done.stderr.splitlines()) > 10


def test_a_recorded_run_needs_no_model(here: Path) -> None:
    names = [f"layers.{index}.weight" for index in range(6)]
    with Journal(here / "logs", {"type": "header", "schema": 1, "context": {}, "tensors": names}) as journal:
        journal.write({"type": "tensors", "step": 0, "vitals": {"grad_norm": [1.0] * 6}})
    torch.save(nn.Linear(8, 3).state_dict(), "w.pt")
    done = run("--checkpoint", "w.pt", "--log-dir", "logs", "--output", "flow.html")
    assert done.exit_code == 0 and "layers.5.weight" in done.stdout and (here / "flow.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no model was named"),
        (("--model", "gradient_nets.py:net"), "there is no data"),
        (("--model", "gradient_nets.py:nett", "--data", "sample.pt"), "Did you mean 'net'"),
        ((*MODEL[:4], "--loss", "mse"), "cannot be computed"),
        ((*MODEL, "--output", "flow.pdf"), "suffix"),
    ],
)
def test_wrong_usage_exits_2_with_one_sentence(here: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2 and words in done.stderr and "Traceback" not in done.output
