"""What import-linter cannot see: that the offline half really runs where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

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
