"""The skill: it is installed whole, its references are current, and every line of use in it works."""

from __future__ import annotations

import json
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from torchdoctor.cli import COMMANDS, group
from torchdoctor.journal import Journal
from torchdoctor.reports.catalogue import entries
from torchdoctor.reports.skill_files import references, skill_folder

SCRIPTS = ("diagnose_gradients", "analyze_activations", "compare_training_runs", "plot_losses", "lr_range_test")


def install(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(group, ["skill", "install", str(folder), *options])


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    assert install(tmp_path / "skills").exit_code == 0
    return tmp_path / "skills" / "training-diagnostics"


def test_it_is_installed_whole_and_again(skill: Path) -> None:
    wanted = {f"scripts/{name}.py" for name in SCRIPTS} | {f"references/{name}" for name in references()}
    found = {str(file.relative_to(skill)) for file in skill.rglob("*") if file.is_file()}
    assert found == wanted | {"SKILL.md", "scripts/README.md"}
    assert install(skill.parent).exit_code == 0


def test_changed_files_are_replaced_only_by_force(skill: Path) -> None:
    (skill / "SKILL.md").write_text("mine", encoding="utf-8")
    (skill / "own.md").write_text("mine too", encoding="utf-8")
    done = install(skill.parent)
    assert done.exit_code == 2 and "--force" in done.stderr and (skill / "SKILL.md").read_text() == "mine"
    assert install(skill.parent, "--force").exit_code == 0
    assert (skill / "SKILL.md").read_text(encoding="utf-8").startswith("---\n") and (skill / "own.md").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "training-diagnostics").symlink_to(tmp_path / "elsewhere")
    assert install(tmp_path / "skills").exit_code == 2 and not list((tmp_path / "elsewhere").iterdir())


def test_its_head_says_what_it_is_for() -> None:
    head = (skill_folder() / "SKILL.md").read_text(encoding="utf-8").split("---\n")[1]
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert fields["name"] == "training-diagnostics" and 100 < len(fields["description"]) < 1024


def test_what_it_names_exists() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in skill_folder().glob("**/*.md"))
    assert set(re.findall(r"`torchdoctor ([a-z][a-z-]+)", text)) <= set(COMMANDS)
    known = {entry.name for entry in entries()}
    assert set(re.findall(r"`torchdoctor explain ([a-z-]+)`", text)) <= known


def test_the_references_are_current() -> None:
    for name, page in references().items():
        assert (skill_folder() / "references" / name).read_text(encoding="utf-8") == page, "run `make docs`"


# Every line of use


def recorded(folder: Path, rate: float) -> None:
    names = ["layers.0.weight", "layers.2.weight"]
    with Journal(folder, {"type": "header", "schema": 1, "context": {}, "tensors": names}) as journal:
        for step in range(120):
            vitals = {"loss": 1 + math.exp(-step * rate), "grad_norm": 1.0, "lr": rate}
            journal.write({"type": "vitals", "step": step, "vitals": vitals})
        journal.write({"type": "tensors", "step": 119, "vitals": {"grad_norm": [0.5, 0.7]}})


@pytest.fixture
def desk(skill: Path) -> Path:
    """A folder as the lines of use take it for granted: checkpoints, data, logs, and the scripts."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    data = torch.utils.data.TensorDataset(torch.randn(128, 8), torch.randint(3, (128,)))
    for name in ("model.pt", "checkpoint.pt"):
        torch.save(model, skill / name)
    for name in ("val_loader.pkl", "data.pkl", "val_loader"):
        torch.save(torch.utils.data.DataLoader(data, batch_size=64), skill / name)
    torch.save(data.tensors, skill / "sample.pt")
    for name, rate in (("logs", 0.02), ("exp1", 0.01), ("exp2", 0.1), ("exp3", 0.001)):
        recorded(skill / name, rate)
    return skill


def call(desk: Path, line: str, *more: str) -> Result:
    """A line as a shell would run it, in this process: torch is loaded once."""
    words = line.split()
    assert words[0] == "python"
    script = words[1] if words[1].startswith("scripts/") else f"scripts/{words[1]}"

    @click.command()
    def line_of_use() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(desk)
            patch.setattr(sys, "argv", [script, *words[2:], *more])
            patch.setattr(sys, "path", [*sys.path])
            runpy.run_path(script, run_name="__main__")

    return CliRunner().invoke(line_of_use, [])


PICKLES = (
    "python scripts/diagnose_gradients.py --checkpoint model.pt --log-dir logs/",
    "python diagnose_gradients.py --checkpoint model.pt --data val_loader.pkl",
    "python scripts/diagnose_gradients.py --checkpoint checkpoint.pt --data data.pkl",
    "python scripts/diagnose_gradients.py --checkpoint model.pt --data sample.pt",
    "python scripts/analyze_activations.py --model model.pt --data val_loader",
    "python scripts/analyze_activations.py --checkpoint checkpoint.pt --data data.pkl",
    "python scripts/analyze_activations.py --model model.pt --data sample.pt",
)


@pytest.mark.parametrize("line", PICKLES)
def test_lines_that_hand_over_a_pickle_work_when_it_is_trusted(desk: Path, line: str) -> None:
    done = call(desk, line, "--trust-pickle", "--output", "picture.html")
    assert done.exit_code == 0, done.stderr
    assert "any code" in done.stderr and "layer" in done.stdout + "layer" * ("module" in done.stdout)
    assert (desk / "picture.html").is_file()


def test_and_otherwise_they_explain_how_to_convert(desk: Path) -> None:
    done = call(desk, PICKLES[3])
    assert done.exit_code == 2 and done.stdout == ""
    assert "torch.save(model.state_dict()" in done.stderr and "--trust-pickle" in done.stderr


@pytest.mark.parametrize("option", ["--log-dir ", "--log-dir="])
def test_plot_losses(desk: Path, option: str) -> None:
    done = call(desk, f"python scripts/plot_losses.py {option}logs/")
    assert done.exit_code == 0, done.stderr
    assert any((desk / f"loss_curve.{suffix}").is_file() for suffix in ("png", "html"))


def test_compare_training_runs(desk: Path) -> None:
    line = "python scripts/compare_training_runs.py --runs exp1/ exp2/ exp3/"
    done = call(desk, line)
    assert done.exit_code == 0, done.stderr
    assert "Best: exp2," in done.stdout and [word in done.stdout for word in ("exp1", "exp3")] == [True, True]
    found = json.loads(call(desk, line, "--format", "json").stdout, parse_constant=pytest.fail)
    assert [item["run"] for item in found["runs"]] == ["exp2", "exp1", "exp3"]
    assert call(desk, "python scripts/compare_training_runs.py --runs nothing/").exit_code == 2


QUICK = """
import torch
from scripts.diagnose_gradients import compute_gradient_stats, diagnose_gradient_pathology
from scripts.diagnose_gradients import diagnose_gradients, identify_issues, plot_gradient_flow
from scripts.lr_range_test import lr_range_test
from scripts.analyze_activations import analyze_activations

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
x = torch.randn(64, 4)
train_loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=32)
criterion = torch.nn.CrossEntropyLoss()

grad_stats = compute_gradient_stats(model, train_loader, criterion)
assert set(grad_stats) == {name for name, _ in model.named_parameters()}
for stats in grad_stats.values():
    assert {"mean", "std", "norm", "max", "min", "num_zeros", "total_params", "zeros", "size"} <= set(stats)
diagnosis = diagnose_gradient_pathology(grad_stats)
assert diagnosis["errors"] == [], diagnosis
assert diagnose_gradients(model, train_loader, criterion).keys() == grad_stats.keys()
assert identify_issues(grad_stats) == []
assert plot_gradient_flow(grad_stats, "flow.html").exists()
assert identify_issues(grad_stats | {"a": {"norm": 1e9, "mean": 0.0, "num_zeros": 0, "total_params": 1}}) != []

def stats(norm, zeros=0, mean=0.0):
    return {"norm": norm, "mean": mean, "std": 1.0, "max": 1.0, "min": -1.0, "num_zeros": zeros, "total_params": 10}

sick = {f"layers.{index}.weight": stats(10.0 ** (index - 8)) for index in range(8)}
assert "VANISHING" in identify_issues(sick)[0]
assert "gradient-vanishing" in diagnose_gradient_pathology(sick)["errors"][0]
assert "EXPLODING" in identify_issues({"w": stats(200.0)})[0]
assert "DEAD NEURONS: w has 60.0%" in identify_issues({"w": stats(1.0, zeros=6)})[0]
nan = {"w": stats(float("nan"), mean=float("nan"))}
assert "NaN/Inf" in identify_issues(nan)[-1] and diagnose_gradient_pathology(nan)["errors"]
assert identify_issues({}) == [] and identify_issues({"w": stats(0.0)}) == []

losses = lr_range_test(model, train_loader, start_lr=1e-7, end_lr=10)
assert losses[0][0] == 1e-7 and losses == lr_range_test(model, train_loader, 1e-7, 10)
assert analyze_activations(model, train_loader)["1"]["dead"] < 1
print("well")
"""


def test_the_scripts_can_be_imported_and_used_in_a_loop(desk: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUICK], cwd=desk, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.endswith("well\n"), done.stderr


def test_the_range_test_is_a_script_too(desk: Path) -> None:
    (desk / "nets.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(8, 3)\n", encoding="utf-8")
    line = "python scripts/lr_range_test.py --model nets:net --data sample.pt --steps 40 --trials 0 --no-plot"
    done = call(desk, line)
    assert done.exit_code == 0 and "Suggested learning rate" in done.stdout, done.stderr
