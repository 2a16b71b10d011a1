"""``torchdoctor check``: formats, exit codes, and manners."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from torchdoctor.cli import group

FACTORIES = """
import torch
from torch import nn

def sound(width=16):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
    batch = torch.randn(32, 8), torch.arange(32) % 3
    return model, nn.CrossEntropyLoss(), batch, torch.optim.Adam(model.parameters())

def cut():
    class Cut(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x).detach())
    return Cut(nn.Linear(8, 16), nn.Linear(16, 3)), *sound()[1:3]

def unused():
    model, loss, batch, _ = sound()
    model[0].extra = nn.Linear(2, 2)
    return model, loss, batch

def bare():
    return nn.Linear(8, 3)

def torn():
    model, loss, (x, y), _ = sound()
    x[3, 2] = torch.nan
    return model, loss, (x, y)

def beyond():
    model, loss, (x, y), _ = sound()
    return model, loss, (x, y + 1)
"""


@pytest.fixture(autouse=True)
def factories(tmp_path, monkeypatch):
    (tmp_path / "factories.py").write_text(FACTORIES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["check", *map(str, arguments)])


def test_a_sound_model_is_told_to_be_well():
    result = run("factories:sound", "--quick")
    assert result.exit_code == 0
    assert result.stdout.startswith("All is well: ")
    assert "passed   CK03 gradient-flow" in result.stdout
    assert "Check-up within 5 s" in result.stderr and "Check-up within" not in result.stdout


def test_the_first_line_says_that_it_is_the_batch():
    told = run("factories:torn", "--quick", "--format", "concise").stdout
    assert told.endswith("the loss is NaN on the batch itself, which holds non-finite values.\n")
    assert "..\n" not in run("factories:beyond", "--quick", "--format", "concise").stdout


def test_a_failure_is_exit_code_one_from_its_severity_on():
    given = ("factories:cut", "--select", "gradient-flow")
    assert run(*given).exit_code == 1
    assert "What to do: " in run(*given).stdout
    assert run(*given, "--fail-on", "never").exit_code == 0
    milder = ("factories:unused", "--select", "CK03")
    assert run(*milder).exit_code == 0
    assert run(*milder, "--fail-on", "warning").exit_code == 1


def test_every_format():
    given = ("factories:cut", "--select", "CK01,CK03", "--format")
    found = json.loads(run(*given, "json").stdout)
    assert found["counts"] == {"passed": 1, "failed": 1, "skipped": 0}
    assert found["results"][1]["where"] == ["0.weight", "0.bias"]
    assert run(*given, "concise").stdout.startswith("CK")
    assert {json.loads(line)["status"] for line in run(*given, "jsonl").stdout.splitlines()} >= {"passed", "failed"}
    assert json.loads(run(*given, "sarif").stdout)["runs"][0]["results"][1]["level"] == "error"
    assert run(*given, "github").stdout.startswith("::error title=CK03 gradient-flow::no gradient reaches")
    assert run(*given, "markdown").stdout.startswith("# 1 of 2 checks failed")
    assert run(*given, "full").stdout.startswith("1 of 2 checks failed")


@pytest.mark.parametrize("name", ["c.html", "c.json", "c.sarif", "c.md", "c.txt"])
def test_the_output_is_a_file(name, tmp_path):
    result = run("factories:sound", "--select", "CK03", "--output", tmp_path / name)
    assert result.exit_code == 0 and result.stdout == ""
    assert "gradient-flow" in (tmp_path / name).read_text(encoding="utf-8")


def test_checks_can_be_left_out_and_the_budget_set():
    result = run("factories:sound", "--quick", "--ignore", "CK04,gradient-flow", "--budget", "3", "--format", "json")
    found = json.loads(result.stdout)
    assert not {"CK03", "CK04"} & {item["code"] for item in found["results"]}
    assert found["context"]["budget_seconds"] == 3


def test_the_memory_limit_is_kept():
    result = run("factories:sound", "--args", "width=2000", "--select", "memory-use", "--memory", "0.0001")
    assert "above the limit of 0.1 MB" in " ".join(result.stdout.split())
    assert run("factories:sound", "--select", "memory-use", "--memory", "1").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("factories:sond",), "sound"),
        (("factories:bare",), "there is no data"),
        (("factories:sound", "--select", "gradient-flwo"), "Did you mean 'gradient-flow'?"),
        (("factories:sound", "--output", "c.pdf"), "the suffix must be one of"),
        ((), "no model was named"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_two(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.stderr


def test_model_by_option_as_other_commands_take_it():
    assert run("--model", "factories:sound", "--select", "CK01").exit_code == 0
