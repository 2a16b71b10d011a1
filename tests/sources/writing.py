"""Runs a program that logs with a real library, apart from the tests: their imports warn, and they keep threads."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


def write_with(library: str, program: str, folder: Path, **environment: str) -> None:
    """Run a program in a folder; skip the test where the library is not installed."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"try:\n import {library}\nexcept ImportError: exit(77)\n{program}"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"{library} is installed without what it needs")
    assert done.returncode == 0, done.stderr[-2000:]
