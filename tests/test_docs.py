"""The documentation tells the truth: its code runs, its commands and links exist, its catalogue is current."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchdoctor.cli import COMMANDS
from torchdoctor.reports.catalogue import entries
from torchdoctor.symptoms import DETECTORS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROSE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

PATIENT = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_fn = torch.nn.CrossEntropyLoss()
loader = [(torch.randn(16, 4), torch.randint(0, 2, (16,))) for _ in range(30)]
"""
"""What the examples take for granted: a loop that somebody has already."""


def python_of(page: Path) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert blocks, f"{page.name} shows no Python"
    return "\n".join(blocks)


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md"])
def test_the_examples_run_as_printed(name: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(PATIENT + python_of(ROOT / name), encoding="utf-8")
    done = run("-W", "error", "example.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "healthy" in done.stdout.lower()
    assert (tmp_path / "report.html").is_file()


def test_the_finding_that_the_guide_writes_passes_its_own_tests(tmp_path: Path) -> None:
    code = python_of(ROOT / "docs/writing-a-finding.md")
    module = "from torchdoctor.symptoms.learning_rate_zero import LearningRateZero\n"
    assert module in code  # the detector stands above the test in this one file
    (tmp_path / "test_guide.py").write_text(code.replace(module, ""), encoding="utf-8")
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", "test_guide.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout  # one doctest, one sick run, five healthy ones


def test_every_command_is_documented_and_every_documented_command_exists() -> None:
    documented = set(re.findall(r"(?:^|`)torchdoctor ([a-z][a-z-]+)", PROSE, flags=re.MULTILINE))
    assert documented == set(COMMANDS)


def test_every_make_target_that_is_documented_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    documented = set(re.findall(r"(?:^|`)make ([a-z]+)", PROSE, flags=re.MULTILINE))
    assert {"demo", "test"} <= documented <= targets


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs/catalogue").glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = "".join(page.read_text(encoding="utf-8").split("```")[::2])
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_lists_every_finding() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("| area | findings |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"`([a-z-]+)`", table)) == sorted(detector.name for detector in DETECTORS)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_catalogue", ROOT / "docs/generate_catalogue.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_catalogue_is_current() -> None:
    folder = ROOT / "docs/catalogue"
    committed = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    current = generator().pages()
    assert len(current) == len(entries()) + 1  # no two entries share a page
    assert committed == current, "a docstring has changed: run `make docs`"
