"""What import-linter cannot see: that the offline half really runs where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import importlib, pkgutil, sys

sys.modules["torch"] = None  # any `import torch` now fails, as if it were not installed

import torchdoctor

LIVE = {"vitals", "clinic", "checks"}  # these watch, train or check
for module in pkgutil.walk_packages(torchdoctor.__path__, "torchdoctor."):
    stage = module.name.split(".")[1]
    if stage not in LIVE and stage != "__main__":
        importlib.import_module(module.name)
        print(module.name)
"""


def test_every_offline_module_imports_where_torch_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    expected = {f"torchdoctor.{name}" for name in ("cli", "cli.demo", "doctor", "offline", "examination", "symptoms")}
    assert expected <= imported


COMMAND_WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None
from torchdoctor.cli import main

sys.argv[0] = "torchdoctor"
main()
"""


@pytest.mark.parametrize(
    "command",
    [
        ("check", "mine:make"),
        ("gradients", "--model", "mine:make"),
        ("gradients", "--log-dir", "runs"),
        ("activations", "--model", "mine:make"),
        ("lr-range", "--model", "mine:make"),
        ("demo",),
        ("clinic", "show", "lr-too-high"),
    ],
)
def test_a_command_that_needs_torch_says_so_where_it_is_missing(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND_WITHOUT_TORCH, *command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "pip install 'torchdoctor[torch]'" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["checkup", "lr_range"])
def test_a_function_that_needs_torch_says_so_where_it_is_missing(name: str) -> None:
    code = f"import sys\nsys.modules['torch'] = None\nimport torchdoctor\ntorchdoctor.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("needs torch: pip install 'torchdoctor[torch]'.")
